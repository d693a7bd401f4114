"""Every kind of correlation: its JSON, and what it says of itself against what a dealer makes of it."""

from __future__ import annotations

import tracemalloc

from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    PartyBits,
    PointFunctions,
    SquareSums,
    WeightProduct,
    WeightScale,
    any_kind,
    decode_correlations,
    encode_correlations,
)
from comet_mpc.engine.ring import ODD_MODULI
from comet_mpc.offline.dealer.admission import ProgramLimits, admit_program
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.preparer import CHUNK
from comet_mpc.processors import cores
from comet_research.look_up import TableTransfers

ODD = min(ODD_MODULI)
PROGRAM: dict[Correlation, str] = {
    Mask((2, 3), 64, 5, 32): '{"type":"Mask","shape":[2,3],"width":64,"shift":5,"out_width":32,"modulus":0}',
    Mask((2, 3), 40): '{"type":"Mask","shape":[2,3],"width":40,"shift":0,"out_width":64,"modulus":0}',
    ClientMask((4,), 24): '{"type":"ClientMask","shape":[4],"width":24}',
    BitProducts(9, 17): '{"type":"BitProducts","count":9,"width":17,"modulus":0}',
    Monomials((0, 1), (2, 3), (MonomialTerm((1, 2), (0, 1), 64), MonomialTerm((2, 0), (0, 0), 32))): (
        '{"type":"Monomials","masks":[0,1],"shape":[2,3],"terms":[[[1,2],[0,1],64],[[2,0],[0,0],32]],"modulus":0}'
    ),
    SquareSums(1, 2, 3, 40): '{"type":"SquareSums","mask":1,"rows":2,"columns":3,"width":40,"modulus":0}',
    MatrixProduct(0, 1, 1, 2, 3, 2, True, 40): (
        '{"type":"MatrixProduct","left":0,"right":1,"batch":1,"m":2,"k":3,"n":2,"transposed":true,"width":40}'
    ),
    WeightProduct(2, "w", 2, 2, 3, 24): (
        '{"type":"WeightProduct","mask":2,"weight":"w","rows":2,"inputs":2,"outputs":3,"width":24}'
    ),
    WeightScale(2, "s", 2, 2, 24): '{"type":"WeightScale","mask":2,"weight":"s","rows":2,"size":2,"width":24}',
    TableTransfers(6, 16, (1, 3)): '{"type":"TableTransfers","count":6,"entries":16,"sizes":[1,3]}',
    PointFunctions(5, 6, 9, 20, 40, 12, 33): (
        '{"type":"PointFunctions","count":5,"index_bits":6,"factor":9,"cut":20,"width":40,"shift":12,"out_width":33}'
    ),
    PartyBits((4,), 33, 0, 33, ODD, 1): (
        f'{{"type":"PartyBits","shape":[4],"width":33,"shift":0,"out_width":33,"modulus":{ODD},"owner":1}}'
    ),
}


def test_the_json_of_every_kind_is_as_it_was() -> None:
    data = f"[{','.join(PROGRAM.values())}]".encode()
    assert encode_correlations(PROGRAM) == data
    assert decode_correlations(data) == list(PROGRAM)


def test_the_program_above_has_every_kind() -> None:
    assert {type(entry) for entry in PROGRAM} == set(any_kind().__args__)


def test_a_dealer_streams_the_corrections_that_a_kind_announces() -> None:
    dealing = admit_program(encode_correlations(PROGRAM), bytes(16), ProgramLimits())
    assert len(b"".join(dealing.corrections())) == sum(entry.correction_bytes for entry in PROGRAM)
    for place, entry in enumerate(PROGRAM):
        upto = [b"".join(Dealing(list(PROGRAM)[:end], bytes(16)).corrections()) for end in (place, place + 1)]
        assert len(upto[1]) - len(upto[0]) == entry.correction_bytes


def test_what_both_parties_get_is_a_part_of_what_the_server_gets() -> None:
    dealing = Dealing(list(PROGRAM), bytes(16))
    common, all_of_it = b"".join(dealing.common()), b"".join(dealing.corrections())
    assert len(common) == dealing.common_bytes == sum(entry.common_bytes for entry in PROGRAM) > 0
    assert common in all_of_it


def test_many_rows_of_a_weight_product_are_dealt_in_pieces() -> None:
    """Its blocks are made on all cores, and are the smaller the more rows there are."""
    rows, outputs = 500, 20_000
    program = [ClientMask((rows, 1), 64), WeightProduct(0, "w", rows, 1, outputs, 64)]
    dealing = admit_program(encode_correlations(program), bytes(16), ProgramLimits())
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in dealing.corrections())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 8 * rows * outputs == 80_000_000
    assert peak < 8 * CHUNK * (4 * cores() + 8)


def test_every_kind_has_a_price_and_a_size() -> None:
    for entry in PROGRAM:
        assert entry.facts.elements > 0
        assert entry.facts.seconds > 0
