"""Look-ups give the chosen entry to one party and nothing to the other, at the declared cost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc import _native, table_transfer
from comet_mpc.channel import Channel, memory_pair
from comet_mpc.errors import ShapeError, WrongSize
from comet_mpc.oblivious_transfer import Transfers, extension_bytes, packed_bytes, set_up_transfers
from comet_mpc.share import CLIENT, SERVER, Words
from comet_mpc.table_transfer import give_tables, look_up

RNG = np.random.default_rng(6)
FOLD = 8


def both(client: Callable[[], object], server: Callable[[], object]) -> tuple[object, object]:
    def outcome(work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(outcome, client), pool.submit(outcome, server)
        return first.result(), second.result()


@pytest.fixture(scope="module")
def transfers() -> tuple[Transfers, Transfers]:
    ends = memory_pair(20.0)
    client, server = both(*(lambda p=p: set_up_transfers(ends[p], p, FOLD) for p in (CLIENT, SERVER)))
    assert isinstance(client, Transfers)
    assert isinstance(server, Transfers)
    return client, server


def draw(count: int, entries: int) -> tuple[npt.NDArray[np.uint8], Words]:
    return RNG.integers(0, entries, count).astype(np.uint8), RNG.integers(0, 2**64, (count, entries), np.uint64)


@pytest.mark.parametrize("entries", [2, 4, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize(("count", "width", "looks"), [(0, 8, 0), (1, 64, 0), (67, 13, 1), (130, 1, 0), (300, 37, 1)])
def test_the_chosen_entries_arrive_at_the_declared_cost(
    transfers: tuple[Transfers, Transfers],
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
    count: int,
    width: int,
    looks: int,
) -> None:
    monkeypatch.setattr(table_transfer, "CHUNK_ENTRIES", 128 * entries)
    ends = memory_pair(20.0)
    choices, tables = draw(count, entries)
    sides: list[Callable[[], object]] = [
        lambda: look_up(ends[looks], transfers[looks], choices, entries, width),
        lambda: give_tables(ends[1 - looks], transfers[1 - looks], tables, width),
    ]
    got, nothing = both(*sides)
    assert nothing is None
    expected = tables[np.arange(count), choices] & np.uint64(2**width - 1)
    np.testing.assert_array_equal(np.asarray(got), expected)
    bits = entries.bit_length() - 1
    chunks = [min(128, count - start) for start in range(0, count, 128)]
    asked = sum(8 + extension_bytes(n * bits, FOLD) + packed_bytes(n * bits, 1) for n in chunks)
    answered = sum(8 + packed_bytes(n * entries, width) for n in chunks)
    traffic = ends[looks].traffic
    assert (traffic.sent, traffic.received) == (asked, answered)
    assert traffic.rounds == (len(chunks) + 1 if chunks else 0)


def test_entries_not_chosen_look_uniform(transfers: tuple[Transfers, Transfers]) -> None:
    """What the reader receives of tables of zeros is uniform at all places but the chosen one, which it can open."""
    count, entries = 4096, 16
    ends = memory_pair(20.0)
    seen: list[npt.NDArray[np.uint8]] = []

    class Recorded:
        def exchange(self, outgoing: object, expected: int) -> memoryview:
            answer = ends[0].exchange(outgoing, expected)  # type: ignore[arg-type]
            seen.append(np.frombuffer(answer, np.uint8).copy())
            return answer

    choices, tables = draw(count, entries)
    tables[:] = 0
    got, _ = both(
        lambda: look_up(Recorded(), transfers[0], choices, entries, 8),  # type: ignore[arg-type]
        lambda: give_tables(ends[1], transfers[1], tables, 8),
    )
    assert not np.any(np.asarray(got))
    cells = np.bincount(seen[-1], minlength=256)
    expected = count * entries / 256
    assert abs(float(((cells - expected) ** 2).sum()) / expected - 255) < 8 * 22.6
    assert len(np.unique(seen[-1].reshape(count, entries), axis=0)) == count


@pytest.mark.parametrize("index_bits", [1, 3, 8])
def test_every_instruction_set_gives_the_same_bytes(index_bits: int) -> None:
    count, size = 70, 2**index_bits
    key = np.frombuffer(RNG.bytes(16), np.uint8)
    zeros, ones = (RNG.integers(0, 2**64, 2 * count * index_bits, np.uint64) for _ in range(2))
    flips = np.frombuffer(RNG.bytes((count * index_bits + 7) // 8), np.uint8)
    entries = RNG.integers(0, 2**64, count * size, np.uint64)
    results = []
    for isa in _native.transfer_isa_names():
        message = np.empty((count * size * 21 + 7) // 8, np.uint8)
        _native.tables_sender(key, 128, index_bits, zeros, ones, flips, entries, message, 21, isa)
        results.append(message.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("change", [-1, 1])
def test_messages_of_another_size_are_cut_off(transfers: tuple[Transfers, Transfers], change: int) -> None:
    question, answer = extension_bytes(40, FOLD) + 5, packed_bytes(10 * 16, 9)
    choices, tables = draw(10, 16)

    def bad_answer(end: Channel) -> object:
        end.exchange([], question)
        return end.exchange([bytes(answer + change)], 0)

    ends = memory_pair(20.0)
    error, _ = both(lambda: look_up(ends[0], transfers[0], choices, 16, 9), lambda: bad_answer(ends[1]))
    assert isinstance(error, WrongSize)
    ends = memory_pair(20.0)
    error, _ = both(
        lambda: give_tables(ends[0], transfers[0], tables, 9),
        lambda: ends[1].exchange([bytes(question + change)], answer),
    )
    assert isinstance(error, WrongSize)


def test_tables_that_make_no_sense_are_refused(transfers: tuple[Transfers, Transfers]) -> None:
    end = memory_pair(20.0)[0]
    choices, tables = draw(4, 16)
    for entries in (0, 1, 3, 512):
        with pytest.raises(ShapeError):
            look_up(end, transfers[0], choices, entries, 8)
    with pytest.raises(ShapeError):
        look_up(end, transfers[0], np.array([16], np.uint8), 16, 8)
    with pytest.raises(ShapeError):
        look_up(end, transfers[0], choices, 16, 65)
    with pytest.raises(ShapeError):
        give_tables(end, transfers[0], tables[0], 8)
    with pytest.raises(ShapeError):
        give_tables(end, transfers[0], tables[:, :3], 8)
