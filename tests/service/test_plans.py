"""Plans are made once, in a place of the queue, kept on disk, and made anew if anything about them is in doubt."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan, decode_plan, encode_plan
from comet_mpc.errors import ProtocolMismatch, ServerBusy, ShapeError
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR, DealerSource
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service import kept_plans
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.client import Client
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import Deployment
from comet_mpc.service.kept_plans import KeptPlans
from comet_mpc.service.messages import Prepare, Ready, Run, Welcome, expect, introduce, say
from comet_mpc.service.programs import Programs
from support.certificates import Identities
from support.clients import EnoughSlots, local_service
from support.processes import server_process
from support.waiting import PATIENCE

pytestmark = pytest.mark.service


class Counted(Counter[tuple[int, int]]):
    """How often each size was planned."""

    def __call__(self, batch: int, bucket: int) -> None:
        self[batch, bucket] += 1


@pytest.mark.parametrize("source", [PAIR, DEALER], ids=str)
def test_a_plan_that_was_kept_is_the_plan(tiny_model: ServedModel, source: Source, tmp_path: Path) -> None:
    made = Programs(tiny_model, source, tmp_path).plan(2, 16)
    counted = Counted()
    again = Programs(tiny_model, source, tmp_path, counted)
    assert again.known(2, 16) == made == decode_plan(encode_plan(made))
    assert again.plan(2, 16).digest == made.digest
    assert not counted
    with pytest.raises(ShapeError, match="no bucket of 17 tokens"):
        again.known(2, 17)


def test_a_plan_of_anything_else_is_not_found(
    tiny_model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another size, source, network, answer or model, and another version of the code."""
    Programs(tiny_model, PAIR, tmp_path).plan(2, 16)
    others = [
        replace(tiny_model, network=Network.parse("50mbit/1ms")),
        replace(tiny_model, answer_bits=5),
        replace(tiny_model, stated="0" * 64),
        replace(tiny_model, logit_bound=2 * tiny_model.logit_bound),
    ]
    assert Programs(tiny_model, PAIR, tmp_path).known(2, 16) is not None
    assert Programs(tiny_model, PAIR, tmp_path).known(1, 16) is None
    assert Programs(tiny_model, DEALER, tmp_path).known(2, 16) is None
    for other in others:
        assert Programs(other, PAIR, tmp_path).known(2, 16) is None
    monkeypatch.setattr(kept_plans, "code_digest", lambda: b"another version")
    assert Programs(tiny_model, PAIR, tmp_path).known(2, 16) is None


def test_the_code_that_plans_has_a_name_that_changes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    module = tmp_path / "engine" / "plan.py"
    monkeypatch.setattr("comet_mpc.__file__", str(tmp_path / "__init__.py"))
    names = []
    for content in ("rounds = 1", "rounds = 2"):
        module.write_text(content)
        names.append(kept_plans.code_digest.__wrapped__())
    assert len(set(names)) == 2


def test_a_damaged_plan_is_made_anew(tiny_model: ServedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Programs(tiny_model, PAIR, tmp_path).plan(2, 16)
    kept = KeptPlans(tmp_path, tiny_model, PAIR)
    path = kept.directory / "2x16"
    good = path.read_bytes()
    other = bytes([good[len(good) // 2] ^ 1])
    damaged = [b"", good[:7], good[:-1], good + b"0", good[: len(good) // 2] + other + good[len(good) // 2 + 1 :]]
    for content in damaged:
        path.write_bytes(content)
        counted = Counted()
        assert Programs(tiny_model, PAIR, tmp_path, counted).plan(2, 16) == made
        assert counted[2, 16] == 1
        assert "damaged" in caplog.text
        assert path.read_bytes() == good
    path.rename(kept.directory / "1x16")
    assert kept.find(1, 16) is None  # a plan of another size, whatever its name


def test_plans_in_use_are_not_removed_however_old_they_are(
    tiny_model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model that starts beside this one removes what was not used for 30 days."""
    served = Programs(tiny_model, PAIR, tmp_path)
    served.plan(2, 16)
    directory, now = KeptPlans(tmp_path, tiny_model, PAIR).directory, time.monotonic()
    for later, left in ((3600.0, True), (3601.0, False)):  # noted once an hour
        monkeypatch.setattr("comet_mpc.service.kept_plans.time.monotonic", lambda later=later: now + later)
        os.utime(directory, (0, 0))
        assert served.known(2, 16) is not None  # from memory
        KeptPlans(tmp_path, replace(tiny_model, answer_bits=5), PAIR)
        assert directory.exists() is left


def test_of_all_who_ask_at_once_one_plans(tiny_model: ServedModel, tmp_path: Path) -> None:
    """Each as a process of its own would: they share the directory and nothing else."""
    made, meeting = Programs(tiny_model, PAIR).plan(2, 16), threading.Barrier(2)
    counted: list[Plan] = []

    def plan(batch: int, bucket: int) -> Plan:
        counted.append(made)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.3)  # for another one that plans at the same time
        return made

    def ask(_: int) -> Plan:
        return KeptPlans(tmp_path, tiny_model, PAIR).make(2, 16, plan)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [made] * 4
    assert len(counted) == 1


def test_where_nothing_can_be_written_plans_are_made_all_the_same(tiny_model: ServedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    counted = Counted()
    programs = Programs(tiny_model, PAIR, tmp_path / "file", counted)
    assert programs.plan(2, 16) == programs.plan(2, 16)
    assert counted[2, 16] == 1


# At a server --------------------------------------------------------------------------------------------------------


def test_connections_plan_a_size_once_for_all_and_for_ever(
    keys: Path, shared_dealer: int, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(metrics: str) -> int:
        text = urllib.request.urlopen(metrics, timeout=PATIENCE).read().decode()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("comet_plans_total "))

    def serve(clients: list[str]) -> int:
        with server_process(keys, tiny_checkpoint, shared_dealer, tmp_path / "state", workers=2) as server:
            for name in clients:
                with Client(server.address, keys=keys, cache=tmp_path / name, ready=0, batch=2) as client:
                    client.classify(["the film is good", "the plot is dull"])
            return planned(server.metrics)

    here = Counter[tuple[int, int]]()
    plan = PublicModel.plan

    def noted(model: PublicModel, batch: int, bucket: int, source: Source) -> Plan:
        here[batch, bucket] += 1
        return plan(model, batch, bucket, source)

    monkeypatch.setattr(PublicModel, "plan", noted)
    assert serve(["one", "another", "one"]) == 2  # one text, when it starts; two texts, for the first client
    assert here == {(1, 16): 2, (2, 16): 2}  # each client once: none trusts the plan of another
    assert serve(["one more"]) == 0


class Watched(EnoughSlots):
    """Notes the kinds of places that were held whenever something was planned."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__()
        self.full = full
        self.held: list[str] = []

    def planned(self, batch: int, bucket: int) -> None:
        self.held.append("+".join(sorted(self.used.elements())) or "none")

    @contextmanager
    def slot(self, kind: str, channel: Channel) -> Iterator[None]:
        if self.full:
            raise ServerBusy("it is not this client's turn")
        with super().slot(kind, channel):
            yield


@contextmanager
def talking(service: Deployment, places: Watched) -> Iterator[Channel]:
    mine, theirs = memory_pair(PATIENCE)
    conversation = Conversation(Catalogue({"model": service}), theirs, places, require_client=False)
    thread = threading.Thread(target=conversation.serve, daemon=True)
    thread.start()
    with mine:
        introduce(mine, "client")
        expect(mine, Welcome)
        service.programs._planned = places.planned
        yield mine
    thread.join(PATIENCE)


@pytest.mark.parametrize("source", [PAIR, DealerSource(("127.0.0.1", 1))], ids=str)
def test_a_server_plans_in_a_place_of_its_queue_or_not_at_all(
    tiny_model: ServedModel, identities: Identities, source: Source, tmp_path: Path
) -> None:
    """A place that stands for a core: with a dealer those of preparations do not."""
    service = local_service(tiny_model, source, identities["server"], tmp_path)
    digest = "0" * 64  # it is found to be wrong after the server has planned
    requests: list[Prepare | Run] = [Prepare(new_bundle_id(), 2, 16, digest), Run(new_bundle_id(), 3, 16, digest)]
    places = Watched(full=True)
    with talking(service, places) as channel:
        for request in requests:
            say(channel, request)
            with pytest.raises(ServerBusy):
                expect(channel, Ready)
    assert not places.held
    assert service.programs.known(2, 16) is None
    places = Watched()
    with talking(service, places) as channel:
        for request in [*requests, *requests]:
            say(channel, request)
            with pytest.raises(ProtocolMismatch, match="parameters of the program"):
                expect(channel, Ready)
    assert places.held == ["prepare" if source.name == "pair" else "run", "run"]
