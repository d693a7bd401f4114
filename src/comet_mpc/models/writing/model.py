"""What the service needs of a model that writes: a program of many positions that is run a few at a time.

    ids of tokens  ->  one run of the program for some positions (`engine.windows`)  ->  last hidden states

The client gets the states, with `answer_bits` fraction bits, and makes logits of them by itself: the head is public. Of
the first run, which is the prompt, it gets the last position's state alone; of any other, those of all positions.

A position that was written is not read by later ones if it was dropped. Which ones count is public, and is known when
a run begins: it changes neither what is sent nor what was prepared.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import Reals
from comet_mpc.engine.windows import Window, WindowPlan
from comet_mpc.errors import ConfigurationError, ContextFull, ShapeError
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.offline.source import Source

DROPPED = -1
"""In place of a position in the text (`WritingModel.step`)."""

Step = Callable[[Session, Mapping[str, Weight]], Reals | None]


def told(window: Window) -> int:
    """How many positions, the last ones of a run, the client is told the states of."""
    return 1 if window.first == 0 else window.size


class Places:
    """Which positions of a conversation count, and where in the text they are: both parties keep them."""

    def __init__(self) -> None:
        self._places: tuple[int, ...] = ()
        self._length = self._last = 0

    @property
    def all(self) -> tuple[int, ...]:
        """Of every position so far: where in the text it is, or `DROPPED`."""
        return self._places

    @property
    def length(self) -> int:
        """Of the text, in tokens, without what was dropped."""
        return self._length

    def after(self, size: int, kept: int) -> Places:
        """What they are once `size` more positions are run.

        kept: how many of the run before count, from its first on; at least one, and all of the first run
        """
        if not min(1, self._last) <= kept <= self._last or (kept < self._last == len(self._places)):
            raise ConfigurationError(f"{kept} positions of the last run are to count, and it had {self._last}")
        found, dropped = Places(), self._last - kept
        before = [*self._places[: len(self._places) - dropped], *[DROPPED] * dropped]
        start = self._length - dropped
        found._places = (*before, *range(start, start + size))
        found._length, found._last = start + size, size
        return found


class WritingModel(ABC):
    """What a client is given of it, and the program that both parties run. A server's also has its weights."""

    tokenizer: TextTokenizer
    network: Network
    vocabulary: int
    """Tokens that it knows."""
    longest: int
    """Positions that it takes: its context."""
    ends: frozenset[int]
    """Tokens that end a text."""
    state_bound: float
    """|state|, coordinate by coordinate."""
    answer_bits: int
    drops: bool
    """Whether positions may be dropped, so that drafts can be verified."""
    private_embeddings = False

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of the package."""

    @abstractmethod
    def package(self) -> bytes:
        """What a client downloads (`packages`)."""

    @abstractmethod
    def planned_from(self) -> bytes:
        """All of the model that its plans depend on, and the fingerprint."""

    @abstractmethod
    def weights(self) -> dict[str, Weight]:
        """At a client their public parts alone."""

    @abstractmethod
    def step(self, window: Window, places: Sequence[int], ids: Sequence[int] | None = None) -> Step:
        """One run: the states that are told (`told`), to the client. None at the server and in a plan.

        places: of all positions up to the window's end, in the text; or `DROPPED`. ids: of the window; the client's
        """

    @abstractmethod
    def state_shape(self, window: Window) -> tuple[int, ...]:
        """Of what `step` gives."""

    @abstractmethod
    def logits(self, states: Reals) -> Reals:
        """(positions, vocabulary), of what `step` gave. Local, by the public head."""

    def buckets(self) -> tuple[int, ...]:
        """How many positions a conversation may be prepared for."""
        return (
            *(size for size in (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024) if size < self.longest),
            self.longest,
        )

    def fitting(self, positions: int) -> int:
        """The least number of positions that a conversation of so many is prepared for."""
        if positions > self.longest:
            raise ContextFull(
                f"{positions} tokens are wanted, and this model takes {self.longest}, the prompt's included"
            )
        return next(size for size in self.buckets() if size >= positions)

    def conversation(self, positions: int, source: Source) -> WindowPlan:
        """The program of so many positions."""
        if positions not in self.buckets():
            raise ShapeError(f"this model has no conversation of {positions} positions: {self.buckets()}")
        weights = {name: weight.public() for name, weight in self.weights().items()}

        def run(session: Session, window: Window) -> None:
            self.step(window, range(window.stop))(session, weights)

        return WindowPlan(run, positions, abilities=source.abilities)

    def plan(self, batch: int, bucket: int, source: Source) -> Plan:
        """What is prepared for a conversation of `bucket` positions: as `PublicModel.plan`, for one text."""
        if batch != 1:
            raise ShapeError(f"a conversation is about one text, not {batch}")
        return self.conversation(bucket, source).whole

    def prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt, or those that somebody has made of it, which must be known."""
        if isinstance(prompt, str):
            if not prompt.strip():
                raise ConfigurationError("the prompt is empty: begin the text with a word or two")
            tokens = self.tokenizer.encode(prompt, self.longest)
            if tokens.truncated:
                raise ContextFull(f"the prompt has {tokens.total} tokens, and this model takes {self.longest}")
            return [int(token) for token in tokens.ids]
        ids = [*prompt]
        if not ids:
            raise ConfigurationError("the prompt is empty: begin the text with a token or two")
        wrong = [token for token in ids if isinstance(token, bool) or not isinstance(token, int)]
        if wrong or not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ConfigurationError(f"a prompt has a token that is not one of 0 to {self.vocabulary - 1}")
        if len(ids) > self.longest:
            raise ContextFull(f"the prompt has {len(ids)} tokens, and this model takes {self.longest}")
        return ids

    def possible(self, largest: float) -> bool:
        """Whether a state may be so large."""
        return math.isfinite(largest) and largest <= self.state_bound + 1.5 * 2.0**-self.answer_bits
