"""Bundles prepared by the two parties and stored: both parts or none, whatever breaks on the way."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    SquareSums,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    ForeignRandomness,
    PeerError,
    PeerTimeout,
    RandomnessError,
    RandomnessSpent,
)
from comet_mpc.logs import JsonFormatter
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.offline.pair import workbench
from comet_mpc.offline.pair.commit import prepare_stored
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.pair.workbench import Scratch
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.offline.store import BundleStore, BundleWriter, new_bundle_id
from comet_research.look_up import TableTransfers
from support.faulty_channel import Fault, FaultyChannel
from support.shared_transfers import share_base_transfers
from support.two_parties import as_parties, outcome
from support.waiting import PATIENCE

PROGRAM: tuple[Correlation, ...] = (
    Mask((2, 3, 4), 40, 0, 40),
    ClientMask((6, 4), 56),
    BitProducts(13, 20),
    Monomials((0,), (2, 3, 4), (MonomialTerm((2,), (0,), 40), MonomialTerm((3,), (0,), 40))),
    SquareSums(0, 6, 4, 40),
    WeightScale(1, "v", 6, 4, 56),
    WeightProduct(1, "w", 6, 4, 7, 56),
    MatrixProduct(0, 0, 2, 3, 4, 3, True, 40),
    TableTransfers(5, 16, (1, 2)),
)
PLAN = Plan(PROGRAM, ("",) * len(PROGRAM), ())
RNG = np.random.default_rng(5)
WEIGHTS = {
    name: Weight(name, shape, 14, 1.0, values=RNG.integers(-(2**20), 2**20, shape).astype(np.int32))
    for name, shape in (("w", (7, 4)), ("v", (4,)))
}

FAULTS: tuple[Fault, ...] = ("cut", "length", "noise", "stall")


@dataclass(frozen=True)
class Pair:
    """Two parties with a store each, in two threads."""

    stores: tuple[BundleStore, BundleStore]

    def prepare(
        self, name: str, fault: Fault | None = None, side: int = CLIENT, at: int = -1
    ) -> tuple[tuple[object, object], tuple[FaultyChannel, FaultyChannel]]:
        return self.run(lambda preparer, store: prepare_stored(preparer, [name], PLAN, store), fault, side, at)

    def run(
        self,
        work: Callable[[Preparer, BundleStore], object],
        fault: Fault | None = None,
        side: int = CLIENT,
        at: int = -1,
    ) -> tuple[tuple[object, object], tuple[FaultyChannel, FaultyChannel]]:
        """What each side returns or raises; afterwards both have ended."""
        hurry: Fault | None = "hurry" if fault == "stall" else None
        mine, theirs = memory_pair(PATIENCE)
        faults = (fault, hurry) if side == CLIENT else (hurry, fault)
        ends = FaultyChannel(mine, faults[CLIENT], at), FaultyChannel(theirs, faults[SERVER], at)

        def one(end: Channel, party: int) -> object:
            preparer = Preparer(end, party, PROGRAM, WEIGHTS if party == SERVER else None, threads=1)
            found = outcome(lambda: work(preparer, self.stores[party]))
            if faults[party] == "hurry":  # whoever stalls waits for that
                end.close()
            return found

        return as_parties(one, ends), ends

    def stored(self) -> list[set[str]]:
        return [set(store.list(PLAN.digest)) for store in self.stores]

    def files(self) -> list[str]:
        return [path.name for store in self.stores for path in store.directory.iterdir()]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair((BundleStore(tmp_path / "client", CLIENT, PAIR), BundleStore(tmp_path / "server", SERVER, PAIR)))


def drawn(store: BundleStore, name: str) -> list[tuple[Words, ...]]:
    bundle = store.take(name, PLAN.digest, PROGRAM)
    source = PAIR.open(bundle, {})
    arrays = [source.draw(correlation).arrays for correlation in PROGRAM]
    assert bundle.stored is not None
    assert bundle.stored.read(1) == b""
    bundle.close()
    return arrays


def check(client: list[tuple[Words, ...]], server: list[tuple[Words, ...]]) -> None:
    """The shares belong together: bits, a square, and a product with a weight."""
    bits = [np.unpackbits(part[2][0].view(np.uint8), bitorder="little")[:13] for part in (client, server)]
    assert np.array_equal((client[2][1] + server[2][1]) % 2**20, bits[0] & bits[1])
    mask = client[0][0] + server[0][0]
    assert np.array_equal((client[3][0] + server[3][0]) % 2**40, mask * mask % 2**40)
    values = WEIGHTS["w"].values
    assert values is not None
    product = client[1][0].reshape(6, 4) @ values.T.astype(np.int64).view(np.uint64)
    shares = client[6][0].reshape(6, 7) + server[6][0].reshape(7, 6).T
    assert np.array_equal(shares % 2**56, product % 2**56)
    own, pads, places = client[8][:2], client[8][2:], server[8][0]
    for column, size in enumerate((1, 2)):
        words = pads[column].view(f"<u{size}").reshape(5, 16)[np.arange(5), places]
        assert np.array_equal((server[8][1 + column] + own[column]) % 256**size, words)


def test_bundles_are_prepared_at_the_planned_cost_stored_and_used_once(pair: Pair) -> None:
    names = [new_bundle_id() for _ in range(3)]
    told: list[tuple[int, int]] = []

    def work(preparer: Preparer, store: BundleStore) -> list[Traffic]:
        progress = (lambda done, total: told.append((done, total))) if preparer.party == CLIENT else None
        return [prepare_stored(preparer, [name], PLAN, store, progress) for name in names]

    (client, server), _ = pair.run(work)
    first, later = (preparation_traffic(PROGRAM, first=first) for first in (True, False))
    assert client == [first, later, later]
    assert isinstance(server, list)
    assert [(t.sent, t.received) for t in server] == [(t.received, t.sent) for t in (first, later, later)]
    ends = [(done, total) for done, total in told if done == total]
    assert [total for _, total in ends] == [t.sent + t.received for t in (first, later, later)]
    assert all(0 < done <= total for done, total in told)
    assert pair.stored() == [set(names), set(names)]
    assert all((store.directory / f"{names[0]}.bundle").stat().st_mode & 0o077 == 0 for store in pair.stores)
    parts = [[drawn(store, name) for store in pair.stores] for name in names]
    for mine, theirs in parts:
        check(mine, theirs)
    for party in (CLIENT, SERVER):  # other masks every time
        assert len({part[party][0][0].tobytes() for part in parts}) == len(names)
    for store in pair.stores:
        with pytest.raises(RandomnessSpent):
            store.take(names[0], PLAN.digest, PROGRAM)
    assert not pair.files()


def test_bundles_prepared_together_cost_less_and_have_nothing_in_common(pair: Pair) -> None:
    names = [new_bundle_id() for _ in range(4)]

    def work(preparer: Preparer, store: BundleStore) -> list[Traffic]:
        return [prepare_stored(preparer, some, PLAN, store) for some in (names[:1], names[1:])]

    (client, _), _ = pair.run(work)
    alone, further = (preparation_traffic(PROGRAM, first=first) for first in (True, False))
    three = preparation_traffic(PROGRAM, first=False, count=3)
    assert client == [alone, three]
    assert three.sent + three.received < 2 * (further.sent + further.received)
    assert pair.stored() == [set(names), set(names)]
    parts = [[drawn(store, name) for store in pair.stores] for name in names]
    for mine, theirs in parts:
        check(mine, theirs)
    for party in (CLIENT, SERVER):
        for place, first in enumerate(parts[0][party]):
            for column, array in enumerate(first):
                if array.nbytes > 16:  # what is short may be alike
                    found = {part[party][place][column].tobytes() for part in parts}
                    assert len(found) == len(names), (party, place)


def test_bundles_prepared_together_are_kept_all_or_none(pair: Pair) -> None:
    names = [new_bundle_id() for _ in range(3)]
    for side in (CLIENT, SERVER):
        outcomes, _ = pair.run(lambda p, store: prepare_stored(p, names, PLAN, store), "cut", side, 3)
        assert all(isinstance(each, PeerError) for each in outcomes), outcomes
        assert pair.stored() == [set(), set()]
        assert not pair.files()


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_if_not_all_of_them_can_be_stored_the_client_keeps_none(
    pair: Pair, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server keeps then is never named to it, so no mask is used by half of a pair."""
    names, stored, commit = [new_bundle_id() for _ in range(3)], 0, BundleWriter.commit

    def fails_at_the_second(self: BundleWriter) -> None:
        nonlocal stored
        if self._store.party == side:
            if stored == 1:
                raise ConfigurationError("the disk is full")
            stored += 1
        commit(self)

    monkeypatch.setattr(BundleWriter, "commit", fails_at_the_second)
    outcomes, _ = pair.run(lambda p, store: prepare_stored(p, names, PLAN, store))
    assert stored == 1  # one of them had been there
    assert isinstance(outcomes[side], ConfigurationError)
    assert pair.stored() == [set(), set() if side == SERVER else set(names)]


def test_shares_wait_in_a_file_without_a_name_until_all_are_prepared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = Scratch.write

    def counted(self: Scratch, data: Bytes) -> tuple[int, int]:
        written.append(data.nbytes)
        return write(self, data)

    monkeypatch.setattr(workbench, "_LARGE", 20)
    monkeypatch.setattr(Scratch, "write", counted)
    names = [new_bundle_id() for _ in range(2)]
    outcomes, _ = pair.run(lambda preparer, store: prepare_stored(preparer, names, PLAN, store))
    assert all(isinstance(each, Traffic) for each in outcomes), outcomes
    assert len(written) > 20
    for name in names:
        check(*(drawn(store, name) for store in pair.stores))
    assert not pair.files()


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_disk_that_fills_up_while_preparing_leaves_nothing(
    pair: Pair, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def scratch(dir: Path) -> io.BytesIO:
        return Full() if dir == pair.stores[side].directory else io.BytesIO()

    monkeypatch.setattr(workbench, "_LARGE", 20)
    monkeypatch.setattr(tempfile, "TemporaryFile", scratch)
    outcomes, _ = pair.prepare(new_bundle_id())
    assert isinstance(outcomes[side], ConfigurationError)
    assert "No space" in str(outcomes[side])
    assert isinstance(outcomes[1 - side], PeerError)
    assert pair.stored() == [set(), set()]
    assert not pair.files()


def test_an_id_that_the_server_has_spoils_all_that_are_prepared_with_it_and_stays(pair: Pair) -> None:
    known, names = new_bundle_id(), [new_bundle_id() for _ in range(2)]
    pair.prepare(known)
    outcomes, _ = pair.run(lambda p, store: prepare_stored(p, [names[0], known, names[1]], PLAN, store))
    assert all(isinstance(each, CometError) for each in outcomes), outcomes
    assert pair.stored() == [{known}, {known}]
    check(*(drawn(store, known) for store in pair.stores))  # the one from before


def test_what_is_kept_survives_a_restart_and_damage_is_found_before_use(pair: Pair) -> None:
    name, damaged = new_bundle_id(), new_bundle_id()
    pair.run(lambda preparer, store: [prepare_stored(preparer, [each], PLAN, store) for each in (name, damaged)])
    again = [BundleStore(store.directory, store.party, PAIR) for store in pair.stores]
    check(*(drawn(store, name) for store in again))
    for store in again:
        assert store.list(PLAN.digest) == (damaged,)
        with (store.directory / f"{damaged}.bundle").open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"\x00\x01\x02")
        with pytest.raises(RandomnessError, match="damaged"):
            store.take(damaged, PLAN.digest, PROGRAM)
        assert not any(store.directory.iterdir())  # a damaged one is gone too: its seed was read


def test_a_dealers_bundle_is_none_of_a_pairs(tmp_path: Path) -> None:
    dealt = BundleStore(tmp_path / "bundles", CLIENT, DEALER)
    name = new_bundle_id()
    with dealt.add(name, PLAN.digest, bytes(16)):
        pass
    paired = BundleStore(tmp_path / "bundles", CLIENT, PAIR)
    assert paired.list(PLAN.digest) == ()
    with pytest.raises(ForeignRandomness):
        paired.take(name, PLAN.digest, PROGRAM)


MESSAGES = 28
"""Digest, seeds, keys, base transfers, what the program needs, and two to commit."""


@pytest.mark.slow
@pytest.mark.parametrize("side", [CLIENT, SERVER])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_message_leaves_nothing_at_either_side(
    pair: Pair, fault: Fault, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message has every fault, at one side or, the one before and the one after it, at the other."""
    share_base_transfers(monkeypatch)
    places = range((FAULTS.index(fault) // 2 + side) % 2, MESSAGES, 2)

    def attempt(at: int) -> tuple[object, object]:
        name = new_bundle_id()
        results, ends = pair.prepare(name, fault, side, at)
        client, server = (name in names for names in pair.stored())
        errors = [result for result in results if isinstance(result, CometError)]
        assert all(isinstance(error, PeerError) for error in errors), at
        assert all(end.closed for end, result in zip(ends, results, strict=True) if isinstance(result, CometError)), at
        assert client <= server, at  # what the client keeps, the server has
        assert client == (not isinstance(results[CLIENT], CometError)), at
        # Without an error the fault was none (a pause that nobody waited in, a byte too many after the last message) or
        # makes shares wrong: both believe in those.
        assert errors or fault in ("noise", "stall") or (fault == "length" and at == MESSAGES - 1), at
        for store in pair.stores:
            store.discard(name)
        return results

    with ThreadPoolExecutor(4 if fault == "stall" else 1) as pool:
        results = [result for ended in pool.map(attempt, places) for result in ended]
    if fault == "stall":
        assert sum(isinstance(result, PeerTimeout) for result in results) > len(places) / 2
    assert not pair.files()
    good = new_bundle_id()
    _, ends = pair.prepare(good)  # the next one is served
    assert [end.messages for end in ends] == [MESSAGES, MESSAGES]
    check(*(drawn(store, good) for store in pair.stores))


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_break_between_the_two_commits_leaves_nothing_at_the_client(pair: Pair, side: int) -> None:
    """The last two messages: the client's word that it has sealed, and the server's that it has committed."""
    good, name = new_bundle_id(), new_bundle_id()
    _, ends = pair.prepare(good)
    results, _ = pair.prepare(name, "cut", side, ends[CLIENT].messages - 1)
    assert isinstance(results[CLIENT], PeerError)
    client, server = pair.stored()
    assert client == {good}
    assert server - {name} == {good}  # the server may not have noticed; nobody will ever name that bundle to it


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_an_error_that_nobody_has_foreseen_is_typed_and_the_servers_operator_is_told_where_it_was(
    tmp_path: Path, party: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Preparer, count: int, progress: object) -> object:
        raise ValueError("a number that is secret")

    monkeypatch.setattr(Preparer, "prepare", fail)
    near, _ = memory_pair(PATIENCE)
    store = BundleStore(tmp_path / "store", party, PAIR)
    with pytest.raises(PeerError, match="nothing of it is kept"):
        prepare_stored(Preparer(near, party, PROGRAM, WEIGHTS), [new_bundle_id()], PLAN, store)
    shown = [JsonFormatter().format(record) for record in caplog.records]
    assert ["test_pair_commit.py" in line for line in shown] == [True] * (party == SERVER)
    assert not any("secret" in line for line in shown)
    assert near.closed
    assert not any(store.directory.iterdir())
