"""Texts that are written privately: by real parties over TLS, as the plaintext twin writes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from comet_mpc.cli.asking.generate import printable
from comet_mpc.cli.main import app
from comet_mpc.errors import (
    ConfigurationError,
    ContextFull,
    PeerClosed,
    QuotaExceeded,
    RandomnessSpent,
    WritingStopped,
)
from comet_mpc.local.service import local_service
from comet_mpc.models.writing.model import DROPPED, Places
from comet_mpc.models.writing.sampling import Sampling
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.service.client import Client
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.messages import Begin, Ready, Run, Step
from comet_mpc.service.writing import client as writing
from comet_mpc.service.writing.client import Token
from support.toy_writer import ToyWriter
from support.waiting import PATIENCE, eventually

MODEL = ToyWriter(18)
PROMPT = "abc hi"
COUNT = 10
EXPECTED = MODEL.written(PROMPT, COUNT)
"""By the twin. Of this seed the likeliest token is far ahead of the next one each time."""
LIMITS = ServiceLimits(stall_seconds=PATIENCE, idle_seconds=PATIENCE, dealer_seconds=PATIENCE)


@dataclass(frozen=True)
class Place:
    address: str
    keys: Path
    cache: Path

    def client(self, **options: Any) -> Client:
        return Client(self.address, keys=self.keys, cache=self.cache, timeout=PATIENCE, **options)


@contextlib.contextmanager
def served(source: Source, **limits: Any) -> Iterator[Place]:
    changed = {name: limits.get(name, getattr(LIMITS, name)) for name in LIMITS.__dataclass_fields__}
    with local_service(MODEL, source, limits=ServiceLimits(**changed)) as (address, keys, directory):
        yield Place(address, keys, directory / "cache")


@pytest.fixture(scope="module")
def dealt() -> Iterator[Place]:
    with served(DEALER) as place:
        yield place


@pytest.fixture(scope="module")
def paired() -> Iterator[Place]:
    with served(PAIR) as place:
        yield place


@pytest.fixture(params=["dealer", "pair"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue("dealt" if request.param == "dealer" else "paired")
    return found


def ids(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens]


# What is written, and what it costs ----------------------------------------------------------------------


@pytest.mark.service
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_text_is_the_twins_and_costs_what_is_planned(place: Place, drafts: int) -> None:
    with place.client() as client:
        tokens = list(client.generate(PROMPT, tokens=COUNT, drafts=drafts))
        source = DEALER if client.source == "dealer" else PAIR
    assert ids(tokens) == EXPECTED
    assert [token.finish for token in tokens] == [None] * (COUNT - 1) + ["length"]
    assert tokens[0].prompt_tokens == 6
    plan = MODEL.conversation(16, source)
    runs = [index for index, token in enumerate(tokens) if token.rounds]
    assert (len(runs) == COUNT) == (not drafts)
    if not drafts:
        planned = [plan.window(0, 6), *(plan.window(first, first + 1) for first in range(6, 15))]
        assert [(t.online_bytes, t.rounds) for t in tokens] == [(each.online_bytes, each.rounds) for each in planned]
    assert sum(token.offline_bytes > 0 for token in tokens) == 1


@pytest.mark.service
def test_a_seed_gives_the_same_text_with_drafts_and_without(dealt: Place) -> None:
    """The seed is one whose numbers are far from where two tokens meet: the last digit of a state is a coin."""
    sampling = Sampling(temperature=0.5, top_k=4, seed=121)
    with dealt.client() as client:
        first = list(client.generate(PROMPT, tokens=6, sampling=sampling))
        again = list(client.generate(PROMPT, tokens=6, sampling=sampling, drafts=2))
    assert ids(first) == ids(again) == [260, 263, 266, 259, 260, 263]


@pytest.mark.service
def test_a_stop_word_ends_the_text_before_it(dealt: Place) -> None:
    text = b"".join(MODEL.tokenizer.spelling[token] for token in EXPECTED).decode()
    stop = text[3:5]
    with dealt.client() as client:
        tokens = list(client.generate(PROMPT, tokens=COUNT, stop=[stop]))
    assert "".join(token.text for token in tokens) == text[: text.find(stop)]
    assert tokens[-1].finish == "stop"


@pytest.mark.service
def test_tasks_that_write_do_not_wait_for_each_other_and_may_leave(dealt: Place) -> None:
    async def some(client: AsyncClient, count: int) -> list[int]:
        found = []
        async for token in client.generate(PROMPT, tokens=COUNT):
            found.append(token.id)
            if len(found) == count:
                break
        return found

    async def both() -> list[list[int]]:
        options: Any = {"keys": dealt.keys, "cache": dealt.cache, "timeout": PATIENCE}
        async with AsyncClient(dealt.address, connections=2, **options) as client:
            return [*await asyncio.gather(some(client, COUNT), some(client, 3)), await some(client, 2)]

    assert asyncio.run(both()) == [EXPECTED, EXPECTED[:3], EXPECTED[:2]]


@pytest.mark.service
def test_two_texts_go_on_in_turn(dealt: Place) -> None:
    """Each is a conversation of its own: between two tokens of one there may be any number of the other."""
    with dealt.client() as one, dealt.client() as other:
        first, second = (client.generate(PROMPT, tokens=COUNT) for client in (one, other))
        found = [(next(first).id, next(second).id) for _ in range(COUNT)]
    assert found == [(token, token) for token in EXPECTED]


@pytest.mark.service
def test_a_text_that_is_begun_with_the_same_client_ends_the_one_before_and_not_the_other_way(dealt: Place) -> None:
    """The server has one text of a connection: a step of the first would be a step of the second."""
    with dealt.client() as client:
        first, second = (client.generate(PROMPT, tokens=COUNT) for _ in range(2))
        assert (next(first).id, next(second).id) == (EXPECTED[0], EXPECTED[0])
        with pytest.raises(ConfigurationError, match="another text was begun"):
            next(first)
        third = client.generate(PROMPT, tokens=2)
        assert [next(second).id for _ in range(COUNT - 1)] == EXPECTED[1:]
        second.close()
        assert ids(list(third)) == EXPECTED[:2]


@pytest.mark.service
def test_a_server_whose_model_takes_no_drafts_drops_no_positions() -> None:
    class Plain(ToyWriter):
        drops = False

    with local_service(Plain(18), DEALER, limits=LIMITS) as (address, keys, directory):
        place = Place(address, keys, directory / "cache")
        with place.client() as client:  # which believes otherwise
            connection, tokens = client._link.connection, client.generate(PROMPT, tokens=COUNT, drafts=2)
            assert [next(tokens).id for _ in range(2)] == EXPECTED[:2]  # the second by a run of three positions
            with connection.lock, pytest.raises(ConfigurationError, match="takes no drafts"):
                connection.go_on(connection.channel(), Step(2, 1))


@pytest.mark.service
def test_a_model_that_writes_runs_nothing_else_and_keeps_the_bundle(dealt: Place) -> None:
    with dealt.client() as client:
        setup = client._link.connected()
        (name,) = setup.pool.prepare(1, 16)
        digest = setup.model.programs.plan(1, 16).digest
        connection = client._link.connection
        with connection.lock:
            with pytest.raises(ConfigurationError, match="ask it to generate"):
                connection.request(Run(name, 1, 16, digest), Ready)
            connection.request(Begin(name, 1, 16, digest), Ready)


@pytest.mark.service
def test_the_command_shows_the_text_and_its_cost(dealt: Place, tmp_path: Path) -> None:
    command = ["generate", dealt.address, PROMPT, "--tokens", str(COUNT), "--drafts", "2"]
    where = ["--keys", str(dealt.keys), "--cache", str(dealt.cache), "--timeout", str(PATIENCE)]
    text = b"".join(MODEL.tokenizer.spelling[token] for token in EXPECTED).decode()
    shown = CliRunner().invoke(app, [*command, *where])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == PROMPT + text + "\n"
    assert "10 tokens after 6 tokens" in shown.stderr
    assert "each token after the first: " in shown.stderr
    told = json.loads(CliRunner().invoke(app, [*command, *where, "--json", "-"]).stdout)
    assert (told["text"], told["finish"], told["prompt_tokens"]) == (text, "length", 6)
    assert told["rounds"] == sum(token["rounds"] for token in told["tokens"]) > 0
    known = tmp_path / "known.txt"
    known.write_text(f"{PROMPT + text}\n\n")
    guessed = CliRunner().invoke(app, [*command, *where, "--draft-texts", str(known), "--json", "-"])
    assert json.loads(guessed.stdout)["text"] == text
    assert json.loads(guessed.stdout)["rounds"] < told["rounds"]  # it knows all of it
    refused = CliRunner().invoke(app, ["generate", dealt.address, "a" * 49, *where])
    assert refused.exit_code == 1
    assert "this model takes 48" in refused.stderr


@pytest.mark.service
def test_the_command_shows_what_was_written_before_the_server_stopped(
    dealt: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, run = [], writing._Conversation.run

    def stopped(self: Any, ids: Sequence[int], kept: int) -> Any:
        runs.append(len(ids))
        if len(runs) == 4:
            self._channel.close()
            raise PeerClosed("the connection ended")
        return run(self, ids, kept)

    monkeypatch.setattr(writing._Conversation, "run", stopped)
    where = ["--keys", str(dealt.keys), "--cache", str(dealt.cache), "--timeout", str(PATIENCE)]
    shown = CliRunner().invoke(app, ["generate", dealt.address, PROMPT, "--tokens", str(COUNT), *where])
    text = b"".join(MODEL.tokenizer.spelling[token] for token in EXPECTED[:3]).decode()
    assert shown.exit_code == 1
    assert shown.stdout == PROMPT + text + "\n"
    assert "What was written is kept" in " ".join(shown.stderr.split())
    assert "3 tokens after 6 tokens" in shown.stderr


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    assert printable("a\x1b[2Jb\nc\td\x07é") == "a\ufffd[2Jb\nc\td\ufffdé"


# What is wrong is said at once -----------------------------------------------------------------------------


@pytest.mark.service
def test_what_cannot_be_written_is_refused_before_randomness_is_used(dealt: Place) -> None:
    with dealt.client() as client:
        client.prepare(1, bucket=16, warm=False)
        before = client.prepared(1, 16)
        prompt: Any
        for prompt in ("", " \n", []):
            with pytest.raises(ConfigurationError, match="the prompt is empty"):
                client.generate(prompt)
        for prompt in ([3, 270], [-1], [True], [1.5]):
            with pytest.raises(ConfigurationError, match="not one of 0 to 269"):
                client.generate(prompt)
        for prompt in ("a" * 49, [3] * 49):
            with pytest.raises(ContextFull, match="49 tokens, and this model takes 48"):
                client.generate(prompt)
        with pytest.raises(ContextFull, match="room for 43"):
            client.generate(PROMPT, tokens=44)
        wrong: Any
        for wrong in ({"tokens": 0}, {"drafts": -1}, {"drafts": 33}, {"stop": [""]}):
            with pytest.raises(ConfigurationError):
                client.generate(PROMPT, **wrong)
        with pytest.raises(ConfigurationError, match=r"supports generate\(\)"):
            client.classify(["abc"])
        assert client.prepared(1, 16) == before


@pytest.mark.service
def test_a_full_context_ends_the_text(dealt: Place) -> None:
    with dealt.client() as client:
        tokens = list(client.generate("a" * 46))
    assert len(tokens) == 3
    assert tokens[-1].finish == "length"


@pytest.mark.service
def test_a_client_that_asks_out_of_order_is_refused_and_goes_on(dealt: Place) -> None:
    with dealt.client() as client:
        link = client._link
        setup = link.connected()

        def step(size: int, kept: int) -> None:
            with link.connection.lock:
                link.connection.go_on(link.connection.channel(), Step(size, kept))

        with pytest.raises(ConfigurationError, match="begin one"):
            step(1, 0)
        (name,) = setup.pool.prepare(1, 16)
        begin = Begin(name, 1, 16, setup.model.programs.plan(1, 16).digest)
        with link.connection.lock:
            link.connection.request(begin, Ready)
            with pytest.raises(ConfigurationError, match="prepared for 16"):
                step(17, 0)
            with pytest.raises(ConfigurationError, match="positions of the last run"):
                step(1, 1)
            with pytest.raises(RandomnessSpent):
                link.connection.request(begin, Ready)
        assert ids(list(client.generate(PROMPT, tokens=2))) == EXPECTED[:2]


@pytest.mark.service
def test_tokens_of_a_day_are_counted_and_what_was_written_is_there() -> None:
    with served(DEALER, tokens_per_day=4) as place, place.client() as client:
        tokens = client.generate(PROMPT, tokens=COUNT)
        assert [next(tokens).id for _ in range(4)] == EXPECTED[:4]
        with pytest.raises(QuotaExceeded, match="writes 4 tokens a day"):
            next(tokens)
        with pytest.raises(QuotaExceeded):
            next(client.generate(PROMPT, tokens=1))


# When it ends in the middle ----------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def conversations() -> list[int]:
    """The processes of the connections of servers, which are children of this process."""
    servers = [child for child in _children(os.getpid()) if len(_children(child)) >= 1]
    return [worker for server in servers for desk in _children(server) for worker in _children(desk)]


@pytest.mark.service
def test_a_server_that_is_killed_between_two_tokens_leaves_what_was_written() -> None:
    with served(DEALER) as place, place.client() as client:
        tokens, before = client.generate(PROMPT, tokens=COUNT), set(conversations())
        found = [next(tokens).id for _ in range(4)]
        assert before
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        with pytest.raises(WritingStopped, match="What was written is kept") as caught:
            next(tokens)
        stopped = caught.value
        assert list(stopped.tokens) == [*MODEL.prompt(PROMPT), *found]
        assert found == EXPECTED[:4]
        rest = list(client.generate(list(stopped.tokens), tokens=COUNT - 4))  # with randomness of its own
        assert ids(rest) == EXPECTED[4:]


@pytest.mark.service
def test_a_text_that_nobody_goes_on_with_ends() -> None:
    with served(DEALER, idle_seconds=0.5) as place, place.client() as client:
        tokens = client.generate(PROMPT, tokens=COUNT)
        first = next(tokens)
        eventually(lambda: client._link.connection._channel is not None and client._link.connection._channel.lost)
        with pytest.raises(WritingStopped) as caught:
            next(tokens)
        assert caught.value.text == first.text
        assert not conversations() or eventually(lambda: not conversations())


def _write_one(place: Place, told: Any) -> None:
    with place.client() as client:
        told.send(next(tokens := client.generate(PROMPT, tokens=COUNT)).id)
        told.recv()
        next(tokens)


@pytest.mark.service
def test_a_client_that_is_killed_between_two_tokens_frees_what_it_held() -> None:
    with served(DEALER) as place:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_write_one, args=(place, there), daemon=True)
        process.start()
        assert here.recv() == EXPECTED[0]
        assert conversations()
        process.kill()
        process.join(PATIENCE)
        eventually(lambda: not conversations(), "the server still holds the conversation")
        with place.client() as client:  # the same cache: the bundle is gone from it, and another one is prepared
            assert client.prepared(1, 16) == 0
            assert ids(list(client.generate(PROMPT, tokens=3))) == EXPECTED[:3]


# Positions -----------------------------------------------------------------------------------------------------


def test_dropped_positions_do_not_count() -> None:
    places = Places().after(3, 0).after(3, 3)
    assert places.all == (0, 1, 2, 3, 4, 5)
    places = places.after(2, 1)
    assert places.all == (0, 1, 2, 3, DROPPED, DROPPED, 4, 5)
    assert places.length == 6
    for start, kept in ((Places(), 1), (Places().after(3, 0), 2), (places, 0), (places, 3)):
        with pytest.raises(ConfigurationError, match="positions of the last run"):
            start.after(1, kept)
