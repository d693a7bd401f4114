"""Look-ups: random 1-of-M transfers at the declared cost, and what is fetched with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc import _native
from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import ShapeError, WrongSize
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.ot.extension import Transfers, extension_bytes, set_up_transfers
from comet_mpc.offline.streaming import carry_out, planned_traffic
from comet_research.look_up import Column, Table, look_up
from comet_research.look_up import transfers as table_transfer
from comet_research.look_up.transfers import give_words, read_words, table_sizes
from support.two_parties import as_parties, both, outcome, run_two_parties

RNG = np.random.default_rng(6)


@pytest.fixture(scope="module")
def transfers() -> tuple[Transfers, Transfers]:
    return as_parties(set_up_transfers)


@pytest.mark.parametrize("entries", [2, 4, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize(("count", "reader"), [(0, 0), (1, 1), (300, 0), (515, 1)])
def test_the_reader_has_one_word_of_every_table(
    transfers: tuple[Transfers, Transfers], monkeypatch: pytest.MonkeyPatch, entries: int, count: int, reader: int
) -> None:
    monkeypatch.setattr(table_transfer, "CHUNK_ENTRIES", 128 * entries)
    ends = memory_pair()
    giver, words = 1 - reader, np.zeros((count, entries), np.uint64)

    def taken(start: int, some: Words) -> None:
        words[start : start + len(some)] = some

    (places, known), _ = both(
        lambda: carry_out(ends[reader], reader, read_words(transfers[reader], count, entries)),
        lambda: carry_out(ends[giver], giver, give_words(transfers[giver], count, entries, taken)),
    )
    np.testing.assert_array_equal(words[np.arange(count), places.astype(np.int64)], known)
    assert len(np.unique(words)) == words.size  # a word that two places have would be open at one that was not read
    if count > 300:
        assert len(np.unique(places)) > min(entries, 150) / 2
    assert ends[giver].traffic == planned_traffic(giver, [table_sizes(reader, count, entries)])
    assert ends[giver].traffic.rounds == min(count, 1)


@pytest.mark.parametrize("index_bits", [1, 3, 8])
def test_every_instruction_set_gives_the_same_words(index_bits: int) -> None:
    count = 70
    key = np.frombuffer(RNG.bytes(16), np.uint8)
    zeros, ones = (RNG.integers(0, 2**64, 2 * count * index_bits, np.uint64) for _ in range(2))
    results = []
    for isa in _native.transfer_isa_names():
        words = np.empty(count * 2**index_bits, np.uint64)
        _native.tables_sender(key, 128, index_bits, zeros, ones, words, isa)
        results.append(words.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("change", [-1, 1])
def test_messages_of_another_size_are_cut_off(transfers: tuple[Transfers, Transfers], change: int) -> None:
    ends = memory_pair()
    error, _ = both(
        lambda: outcome(lambda: carry_out(ends[0], 0, give_words(transfers[0], 10, 16, lambda *_: None))),
        lambda: ends[1].exchange([bytes(extension_bytes(40) + change)], 0),
    )
    assert isinstance(error, WrongSize)


def test_tables_that_make_no_sense_are_refused(transfers: tuple[Transfers, Transfers]) -> None:
    end = memory_pair()[0]
    for entries in (0, 1, 3, 512):
        with pytest.raises(ShapeError):
            carry_out(end, 0, read_words(transfers[0], 4, entries))
        with pytest.raises(ShapeError):
            carry_out(end, 0, give_words(transfers[0], 4, entries, lambda *_: None))
    with pytest.raises(ShapeError):
        table_sizes(SERVER, -1, 16)
    for columns in ((), (Column((1, 2, 3), 8),), (Column((1, 2), 8), Column((1, 2, 3, 4), 8)), (Column((1, 2), 7),)):
        with pytest.raises(ShapeError):
            Table(columns)
    with pytest.raises(ShapeError):
        Table((Column((1, 2), 64), Column((1, 2), 8)))
    with pytest.raises(ShapeError, match="an index of 5 bits"):
        look_up(TwinSession(), Share((2,), 0, 1.0, 5, np.zeros(2, np.uint64)), Table((Column((1, 2), 8),)))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    bits = draw(st.integers(2, 8))
    widths = draw(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=2))
    return Table(
        tuple(
            Column(tuple(RNG.integers(-(2 ** (width - 2)), 2 ** (width - 2), 2**bits).tolist()), width, 3)
            for width in widths
        )
    )


@given(tables(), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_what_is_looked_up_is_the_tables_entry(table: Table, places: list[int], other: int) -> None:
    width = table.entries.bit_length() - 1
    held: Mapping[int, Words] = {
        CLIENT: np.array(places, np.uint64),
        SERVER: np.full(len(places), other, np.uint64),
    }

    def program(session: Session, _: Mapping[str, Weight]) -> tuple[Share, ...]:
        mine = [words for party, words in held.items() if session.holds(party)]
        values = np.add.reduce(mine, dtype=np.uint64) if mine else None
        return look_up(session, Share((len(places),), 0, float(table.entries), width, values), table)

    run = run_two_parties(program)
    expected = (held[CLIENT] + held[SERVER]) % np.uint64(table.entries)
    for column, mine, theirs, twin in zip(
        table.columns, run.client, run.server, program(TwinSession(), {}), strict=True
    ):
        assert mine.values is not None
        assert theirs.values is not None
        assert twin.values is not None
        exact = np.array(column.values)[expected.astype(np.int64)] / 8.0
        np.testing.assert_array_equal(decode(mine.values + theirs.values, 3, column.width), exact)
        np.testing.assert_array_equal(decode(twin.values, 3, column.width), exact)
    assert run.plan.rounds == 2
    assert run.plan.sent(SERVER) == 8 + (len(places) * width + 7) // 8
    assert run.plan.sent(CLIENT) == 8 + len(places) * table.entries * sum(table.sizes)
