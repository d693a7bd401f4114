"""A client that writes: it runs a conversation with a server, and picks every token by itself.

    for token in client.generate("Once upon a time", tokens=64):
        print(token.text, end="", flush=True)

The prompt is one run, and after that each token is, or several with drafts (`models.writing.drafts`). A conversation
uses one bundle, prepared for as many positions as are wanted at most. It lives in memory: if either side or the line
between them ends, so does the conversation, and its bundle is spent. What was written is the caller's, and can be the
prompt of another one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

import numpy as np

from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, Reals
from comet_mpc.engine.windows import Window, WindowSession
from comet_mpc.errors import (
    ConfigurationError,
    ContextFull,
    ImpossibleAnswer,
    PeerClosed,
    PeerError,
    QuotaExceeded,
    RandomnessError,
    WritingStopped,
)
from comet_mpc.models.tokenizers.spelling import Writing
from comet_mpc.models.writing.drafts import Drafter, RepeatedWords, verified
from comet_mpc.models.writing.model import Places, WritingModel
from comet_mpc.models.writing.sampling import Sampler, Sampling
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.service.link import ServerLink, Setup
from comet_mpc.service.messages import Begin, End, Ready, Step, say

Finish = Literal["end", "stop", "length"]

_MOST_DRAFTS = 32


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token that was written, and what its run cost. Of several tokens of one run, the first one has the cost."""

    text: str
    """What can be told now: empty while a character, or what may be a stop word, is not whole."""
    id: int
    online_bytes: int = 0
    rounds: int = 0
    seconds: float = 0.0
    offline_bytes: int = 0
    """Of the whole conversation, with its first token."""
    offline_seconds: float = 0.0
    prompt_tokens: int = 0
    """The same: how many the prompt has."""
    finish: Finish | None = None
    """Why this is the last one: the model ended the text, a stop word came, or there are as many as were wanted."""


class Wanted(TypedDict, total=False):
    """What a text is written by.

    tokens    at most so many. None: as many as the model's context has room for
    sampling  how a token is picked; greedy, unless something else is said
    stop      words that end the text, and are not part of it
    drafts    up to so many tokens are guessed before each run, which then gives several if they are right. The text
              is the same; the server sees how many were guessed and right, and one that cheats can find out by it
              what the prompt says (docs/explanation/security.md). A guess that is wrong takes a position
    drafter   guesses them; None: what followed the same words earlier in the text
    """

    tokens: int | None
    sampling: Sampling
    stop: Sequence[str]
    drafts: int
    drafter: Drafter | None


class _Conversation:
    """A client's side of one conversation."""

    def __init__(self, link: ServerLink, setup: Setup, channel: Channel, session: WindowSession, total: int) -> None:
        self._link, self._setup, self._channel, self._session, self._total = link, setup, channel, session, total
        self._model: WritingModel = setup.model.writer
        self._places = Places()

    @property
    def room(self) -> int:
        """Positions that are left."""
        return self._total - self._session.position

    def run(self, ids: Sequence[int], kept: int) -> tuple[Reals, Traffic]:
        """Logits after the prompt, or after each of the tokens. kept: as of `Places.after`"""
        link, session, first = self._link, self._session, self._session.position
        window = Window(first, first + len(ids), self._total)
        places = self._places.after(len(ids), kept)
        with link.connection.lock:
            if link.writes is not self:
                raise ConfigurationError("another text was begun with this client, which ended this one: one at a time")
            if self._channel.lost:
                raise PeerClosed("the connection ended, and the conversation with it")
            link.connection.go_on(self._channel, Step(len(ids), kept))
            before = self._channel.traffic
            try:
                work = self._model.step(session.begin(len(ids)), places.all, ids)
                states = work(session, self._setup.model.weights)
                session.end_program()
            except BaseException:
                self._channel.close()  # the other side must not wait for rounds that will not come
                raise
        self._places = places
        if states is None or states.shape != self._model.state_shape(window):
            raise ImpossibleAnswer("the program did not give this client its states")
        if not self._model.possible(float(np.max(np.abs(states)))):
            raise ImpossibleAnswer("the server's answer is outside the model's range: the text cannot go on")
        return self._model.logits(states), self._channel.traffic - before

    def end(self) -> None:
        """Frees what the server holds for it, if it can still hear that. Another text may have taken its place."""
        if self._link.writes is self and not self._channel.closed:
            self._link.writes = None
            with self._link.connection.lock:
                try:
                    say(self._channel, End())
                except PeerError:
                    self._channel.close()


def _begun(link: ServerLink, positions: int) -> tuple[_Conversation, OpenBundle]:
    """A bundle for so many positions is consumed on both sides."""

    def use(randomness: OpenBundle, plan: Plan, setup: Setup, last: bool) -> tuple[_Conversation, OpenBundle] | None:
        with link.connection.lock:
            link.writes, request = None, Begin(randomness.bundle.bundle_id, 1, positions, plan.digest)
            try:
                channel = link.connection.request(request, Ready)
                windows = setup.model.programs.conversation(positions)
                session = WindowSession(CLIENT, channel, randomness, windows)
            except RandomnessError:
                if last:
                    raise
                return None
            finally:
                randomness.bundle.close()
            conversation = link.writes = _Conversation(link, setup, channel, session, positions)
            return conversation, randomness

    return link.with_bundle(1, positions, use)[0]


def write(link: ServerLink, prompt: str | Sequence[int], **wanted: Unpack[Wanted]) -> Generator[Token]:
    """As `Client.generate`. What is wrong with the arguments is raised here, before anything is asked for."""
    model = link.connected().model.writer
    ids, tokens, drafts = model.prompt(prompt), wanted.get("tokens"), wanted.get("drafts", 0)
    room = model.longest + 1 - len(ids)  # the last token is told, and not run
    if tokens is None:
        tokens = room
    if tokens < 1:
        raise ConfigurationError(f"at least one token must be wanted, not {tokens}")
    if tokens > room:
        raise ContextFull(
            f"{tokens} tokens are wanted after a prompt of {len(ids)}, and there is room for {room}: ask for fewer"
        )
    if not 0 <= drafts <= _MOST_DRAFTS:
        raise ConfigurationError(f"there may be 0 to {_MOST_DRAFTS} drafts before a run, not {drafts}")
    if drafts and not model.drops:
        raise ConfigurationError("this model takes no drafts: leave them out")
    writing = Writing(model.tokenizer.spelling, wanted.get("stop", ()))
    text = _Text(model, ids, tokens, Sampler(wanted.get("sampling", Sampling())), writing)
    return _written(link, text, drafts, wanted.get("drafter") or RepeatedWords())


class _Text:
    """What was written so far, and how."""

    def __init__(self, model: WritingModel, ids: list[int], tokens: int, sampler: Sampler, writing: Writing) -> None:
        self.model, self.ids, self.sampler, self.writing = model, ids, sampler, writing
        self.prompt_tokens, self.end = len(ids), len(ids) + tokens
        self.told = ""

    @property
    def wanted(self) -> int:
        """Tokens that are still to come."""
        return self.end - len(self.ids)

    def add(self, token: int) -> Token:
        """One more token, without its cost."""
        self.ids.append(token)
        finish: Finish | None = "end" if token in self.model.ends else None
        said = "" if finish else self.writing.add(token)
        if not finish and self.writing.stopped:
            finish = "stop"
        elif not finish and not self.wanted:
            finish = "length"
        if finish in ("end", "length"):
            said += self.writing.end()
        self.told += said
        return Token(text=said, id=token, finish=finish)


def _written(link: ServerLink, text: _Text, drafts: int, drafter: Drafter) -> Generator[Token]:
    spare = text.wanted // 2 if drafts else 0  # for guesses that are wrong
    positions = text.model.fitting(min(text.model.longest, text.end - 1 + spare))
    conversation, bundle = _begun(link, positions)
    start = time.monotonic()
    run, kept, guesses = [*text.ids], 0, list[int]()
    try:
        while True:
            logits, traffic = conversation.run(run, kept)
            found = verified(guesses, [*logits], text.ids, text.sampler.pick)
            seconds = time.monotonic() - start
            for place, token in enumerate(found):
                made = text.add(token)
                if not place:
                    made = _with_cost(made, traffic, seconds, None if kept else bundle, text.prompt_tokens)
                yield made
                if made.finish is not None:
                    return
            start = time.monotonic()  # what the caller does in between is no cost of a token
            kept = len(found) if kept else len(run)
            guesses = _guesses(text, drafter, min(drafts, text.wanted - 1, conversation.room - text.wanted))
            run = [text.ids[-1], *guesses]
    except (PeerError, RandomnessError) as error:
        if isinstance(error, QuotaExceeded) or len(text.ids) == text.prompt_tokens:
            raise
        raise WritingStopped.after(text.told, text.ids, str(error)) from error
    finally:
        conversation.end()
        link.pause()


def _with_cost(token: Token, traffic: Traffic, seconds: float, begun: OpenBundle | None, prompt: int) -> Token:
    """begun: the bundle, with the first token"""
    token = replace(token, online_bytes=traffic.sent + traffic.received, rounds=traffic.rounds, seconds=seconds)
    if begun is None:
        return token
    return replace(token, offline_bytes=begun.bundle.spent, offline_seconds=begun.seconds, prompt_tokens=prompt)


def _guesses(text: _Text, drafter: Drafter, most: int) -> list[int]:
    """Tokens that may follow, which must be tokens."""
    if most < 1:
        return []
    found = [*drafter.draft(text.ids, most)][:most]
    if any(not 0 <= token < text.model.vocabulary for token in found):
        raise ConfigurationError("the drafter guesses a token that this model does not know")
    return found
