"""Point functions of two parties alone: what the keys give, what they cost, and what is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine.correlations import Correlation, PointFunctions
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.ring import ODD_MODULI
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.engine.tables import PointKeys, PointShape
from comet_mpc.errors import (
    ForeignRandomness,
    PeerError,
    RandomnessError,
    RandomnessExhausted,
    RandomnessSpent,
    ShapeError,
)
from comet_mpc.net.channel import Channel
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.ot.extension import Transfers, set_up_transfers
from comet_mpc.offline.ot.point_keys import Making, PointKind, key_steps
from comet_mpc.offline.ot.renewal import renewal_steps
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.pair.shares import PairRandomness, Prepared
from comet_mpc.offline.pair.stages import arranged
from comet_mpc.offline.streaming import carry_out
from comet_mpc.testing import as_parties
from support.point_functions import Reference
from support.two_parties import outcome

MODULI = (0, *ODD_MODULI)


def described(rows: int, bits: int, cut: int, width: int, modulus: int = 0) -> PointFunctions:
    return PointFunctions(rows, bits, 1, cut, bits + cut, 0, modulus.bit_length() or width, modulus)


def made(entries: list[PointFunctions]) -> list[list[tuple[Words, ...]]]:
    """Both parties' keys, table by table; entries of one kind."""
    kind = PointKind.of(entries[0])
    tables = [(number, entry.count) for number, entry in enumerate(entries)]

    def work(channel: Channel, party: int) -> list[tuple[Words, ...]]:
        transfers = carry_out(channel, party, renewal_steps(set_up_transfers(channel, party)))
        making = Making(kind, tables, transfers)
        carry_out(channel, party, key_steps(making))
        return making.keys()

    return list(as_parties(work))


@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    bits=st.integers(1, 6),
    cut=st.integers(3, 20),
    modulus=st.sampled_from(MODULI),
)
def test_the_keys_hold_one_and_the_mask_at_the_masks_top_bits(
    rows: list[int], bits: int, cut: int, modulus: int
) -> None:
    """By an independent implementation, cell by cell."""
    entries = [described(count, bits, cut, 40, modulus) for count in rows]
    ours, theirs = made(entries)
    for number, entry in enumerate(entries):
        size, shape = entry.ring.size, entry.shape
        keys = [ours[number], theirs[number]]
        assert np.array_equal(keys[0][2], keys[1][2])  # the corrections are common
        masks = (keys[0][0] + keys[1][0]) & np.uint64((1 << entry.width) - 1)
        for row, mask in enumerate(map(int, masks)):
            total = np.zeros(2 << bits, object)
            for party, (_, root, corrections, last) in enumerate(keys):
                levels = corrections.reshape(-1, bits, 2)[row].tobytes()
                own = [int.from_bytes(levels[16 * at : 16 * at + 16], "little") for at in range(bits)]
                ends = [int(word) for word in last.reshape(-1, 2)[row]]
                reference = Reference(shape.native, number, row)
                leaves = reference.leaves(bool(party), int.from_bytes(root.tobytes(), "little"), own, ends)
                total += np.array(leaves, object)
            expected = np.zeros((1 << bits, 2), object)
            expected[mask >> cut] = 1, mask % size
            assert np.array_equal(total.reshape(-1, 2) % size, expected)


def test_masks_are_uniform_at_either_party_and_their_sum_too() -> None:
    ours, theirs = (keys[0][0] for keys in made([described(3000, 2, 3, 40)]))
    for masks in (ours, theirs, (ours + theirs) & np.uint64(31)):
        counts = np.bincount(masks.astype(np.int64), minlength=32)
        assert np.max(np.abs(counts - 3000 / 32)) < 6.0 * np.sqrt(3000 / 32)


def test_of_the_transfers_only_what_later_steps_take_is_kept() -> None:
    """Each has 16 bytes of everything, and all row tables of a program are prepared at once."""
    entry = described(3, 5, 9, 40)

    def work(channel: Channel, party: int) -> list[tuple[int, int, list[int]]]:
        transfers = carry_out(channel, party, renewal_steps(set_up_transfers(channel, party)))
        making = Making(PointKind.of(entry), [(0, entry.count)], transfers)
        carry_out(channel, party, key_steps(making))
        return [
            (receiver, len(found.rows), [len(words) for words in found.words])
            for receiver, found in sorted(making.directions.items())
        ]

    levels, carries_and_signs, signs = 5 * 3, 3 * 3, 2 * 3
    assert as_parties(work) == (
        [(CLIENT, levels, [carries_and_signs]), (SERVER, levels, [signs] * 2)],
        [(CLIENT, levels, [carries_and_signs] * 2), (SERVER, levels, [signs])],
    )


@pytest.mark.parametrize("knows", [CLIENT, SERVER])
def test_no_party_knows_a_bit_of_a_mask(knows: int) -> None:
    """Every bit is that of either party's transfers, added up: one that knows its own choices must miss the other's."""
    entry = described(3000, 3, 4, 40)
    kind = PointKind.of(entry)

    def work(channel: Channel, party: int) -> tuple[Words, Bytes]:
        transfers = carry_out(channel, party, renewal_steps(set_up_transfers(channel, party)))
        making = Making(kind, [(0, entry.count)], transfers)
        carry_out(channel, party, key_steps(making))
        choices = making.directions[party].choices
        assert choices is not None
        return making.keys()[0][0], choices

    parts = as_parties(work)
    masks, choices = parts[0][0] + parts[1][0], parts[knows][1]
    for bit in range(kind.width if knows == CLIENT else kind.index_bits):  # the server's low bits are no choices
        own = choices[bit * entry.count : (bit + 1) * entry.count]
        place = bit if knows == CLIENT else kind.width - 1 - bit
        differ = np.count_nonzero((masks >> np.uint64(place)) & np.uint64(1) != own)
        assert abs(differ - 1500) < 6.0 * np.sqrt(3000 / 4), place


PROGRAM: list[Correlation] = [
    described(5, 5, 9, 0, min(MODULI[1:])),
    described(3, 4, 8, 40),
    described(2, 5, 9, 0, min(MODULI[1:])),
]


@pytest.fixture(scope="module")
def prepared() -> list[list[Prepared]]:
    """Two bundles together, at the client and at the server; what is planned is what was sent."""

    def work(channel: Channel, party: int) -> list[Prepared]:
        bundles = Preparer(channel, party, PROGRAM).prepare(2)
        planned = preparation_traffic(PROGRAM, count=2)
        mine = (planned.sent, planned.received) if party == CLIENT else (planned.received, planned.sent)
        assert (channel.traffic.sent, channel.traffic.received) == mine
        assert channel.traffic.rounds == planned.rounds
        return bundles

    return list(as_parties(work))


def test_every_bundle_has_roots_of_its_own(prepared: list[list[Prepared]]) -> None:
    """A bundle holds a secret of its party's: whoever has one bundle must not have that of another."""
    roots = [[bundle.shares[0][1] for bundle in bundles] for bundles in prepared]
    assert len({root.tobytes() for bundles in roots for root in bundles}) == 4
    assert [int(root[0]) & 1 for bundles in roots for root in bundles] == [0, 0, 1, 1]


def test_a_key_that_is_too_short_foreign_or_used_twice_is_refused(prepared: list[list[Prepared]]) -> None:
    data = b"".join(prepared[SERVER][1].packed())

    def bundle(stored: bytes) -> Bundle:
        return Bundle(SERVER, bytes(16), PROGRAM, io.BytesIO(stored))

    short = PairRandomness(bundle(data[:-1]))
    short.draw(PROGRAM[0])
    short.draw(PROGRAM[1])
    with pytest.raises(RandomnessExhausted):
        short.draw(PROGRAM[2])
    whole = bundle(data)
    drawn = PairRandomness(whole)
    with pytest.raises(ForeignRandomness, match="prepared for another program"):
        drawn.draw(described(5, 6, 8, 0, min(MODULI[1:])))
    with pytest.raises(RandomnessSpent):
        PairRandomness(whole)
    for entry in PROGRAM:
        _, root, corrections, last = drawn.draw(entry).arrays
    with pytest.raises(RandomnessExhausted):
        drawn.draw(PROGRAM[-1])
    with pytest.raises(ShapeError, match="too short, or for another table"):
        PointKeys(PointShape(6, 2), 2, root, corrections, last)


@pytest.mark.parametrize("changed", [{"factor": 3}, {"width": 15}, {"shift": 2}])
def test_what_two_parties_cannot_prepare_is_refused_while_planning(changed: dict[str, int]) -> None:
    fields = {name: getattr(PROGRAM[1], name) for name in PROGRAM[1].__struct_fields__} | {"out_width": 12}
    with pytest.raises(RandomnessError, match="only for the top bits of a mask"):
        arranged([PointFunctions(**fields | changed)])


def test_transfers_that_are_not_consistent_end_the_preparation() -> None:
    """The receiver of a renewed set-up is checked like every other."""
    kind = PointKind.of(described(4, 3, 5, 40))

    def work(channel: Channel, party: int) -> object:
        transfers: Transfers = carry_out(channel, party, renewal_steps(set_up_transfers(channel, party)))
        if party == CLIENT:
            keys = bytearray(transfers.receiver._keys)
            keys[0] ^= 1  # one of the 256 keys of a digit: its choices differ from those of the others
            transfers.receiver._keys = np.frombuffer(bytes(keys), np.uint8)
        return outcome(lambda: carry_out(channel, party, key_steps(Making(kind, [(0, 4)], transfers))))

    _, server = as_parties(work)
    assert isinstance(server, PeerError)
    assert "not consistent" in str(server)
