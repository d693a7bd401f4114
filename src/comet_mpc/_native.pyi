"""The C++ extension. Arrays are flat and contiguous; sizes are not checked. Use comet_mpc.engine.kernels instead."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Products = Sequence[tuple[int, int]]
Rows = Sequence[tuple[int, int, Sequence[tuple[int, int]]]]

def isa_names() -> list[str]: ...
def matmul(
    x: Words, y: Words, out: Words, batch: int, m: int, k: int, n: int, transposed: bool, width: int, isa: str, /
) -> None: ...
def matmul_int32(
    x: Words, w: NDArray[np.int32], out: Words, m: int, k: int, n: int, width: int, isa: str, /
) -> None: ...
def evaluate(
    plan: tuple[Products, Rows], opened: list[Words], shares: list[Words], out: Words, isa: str, /
) -> None: ...
def truncate_mask(x: Words, bits: Bytes, out: Bytes, width: int, leader: bool, isa: str, /) -> None: ...
def truncate_finish(
    x: Words,
    bits: Bytes,
    mine: Bytes,
    theirs: Bytes,
    product: Words,
    out: Words,
    width: int,
    shift: int,
    leader: bool,
    isa: str,
    /,
) -> None: ...
def pack_words(x: Words, out: Bytes, size: int, isa: str, /) -> None: ...
def unpack_words(data: Bytes, out: Words, size: int, isa: str, /) -> None: ...

# Modulo an odd number: use comet_mpc.engine.ring instead.
Numbers = tuple[int, int, int, int, int, int, int, int, int]
CutNumbers = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

def pack_bits(x: Words, out: Bytes, width: int, /) -> None: ...
def unpack_bits(data: Bytes, out: Words, width: int, limit: int, /) -> bool: ...
def odd_multiply(modulus: int, a: Words, b: Words, out: Words, /) -> None: ...
def odd_evaluate(
    modulus: int, plan: tuple[Products, Rows], opened: list[Words], shares: list[Words], out: Words, /
) -> None: ...
def odd_uniform(modulus: int, words: Words, out: Words, /) -> None: ...
def convert_mask(numbers: Numbers, leader: bool, x: Words, bits: Bytes, out: Bytes, /) -> None: ...
def convert_finish(
    numbers: Numbers, leader: bool, x: Words, bits: Bytes, mine: Bytes, theirs: Bytes, product: Words, out: Words, /
) -> None: ...
def cut_finish(
    numbers: CutNumbers, leader: bool, x: Words, bits: Bytes, mine: Bytes, theirs: Bytes, product: Words, out: Words, /
) -> None: ...
def cut_free(numbers: CutNumbers, leader: bool, x: Words, out: Words, /) -> None: ...

# Oblivious transfer: use comet_mpc.offline.ot instead.
def transfer_isa_names() -> list[str]: ...
def extend_receiver(
    keys: Bytes,
    fold: int,
    hash_key: Bytes,
    first: int,
    bits: Bytes,
    message: Bytes,
    words: Words,
    halves: int,
    planes: Bytes,
    isa: str,
    /,
) -> None: ...
def extend_sender(
    keys: Bytes,
    fold: int,
    hash_key: Bytes,
    first: int,
    delta: Bytes,
    message: Bytes,
    zeros: Words,
    ones: Words,
    halves: int,
    planes: Bytes,
    isa: str,
    /,
) -> None: ...
def transfer_hash_planes(key: Bytes, planes: Bytes, digests: Bytes, isa: str, /) -> None: ...
def products_sender(zeros: Words, ones: Words, bits: Bytes, shares: Words, message: Bytes, width: int, /) -> None: ...
def products_receiver(words: Words, bits: Bytes, message: Bytes, shares: Words, width: int, /) -> None: ...
def odd_products_sender(
    zeros: Words, ones: Words, bits: Bytes, shares: Words, message: Bytes, width: int, modulus: int, /
) -> None: ...
def correlate_sender(
    zeros: Words, ones: Words, flips: Bytes, values: Words, shares: Words, message: Bytes, width: int, /
) -> None: ...
def correlate_receiver(words: Words, chosen: Bytes, message: Bytes, shares: Words, width: int, /) -> None: ...
def tables_sender(
    hash_key: Bytes, first: int, index_bits: int, zeros: Words, ones: Words, words: Words, isa: str, /
) -> None: ...
def tables_receiver(
    hash_key: Bytes, first: int, index_bits: int, known: Words, choices: Bytes, words: Words, isa: str, /
) -> None: ...
def transfer_aes(key: Bytes, data: Bytes, out: Bytes, isa: str, /) -> None: ...
def transfer_transpose(planes: Words, rows: Bytes, isa: str, /) -> None: ...
def transfer_hash(key: Bytes, first: int, rows: Bytes, out: Words, isa: str, /) -> None: ...

# Lattice arithmetic: use comet_mpc.offline.rlwe instead.
Residues = NDArray[np.uint32]
Small = NDArray[np.int8]

class Basis:
    def __init__(self, primes: list[int], /) -> None: ...

def lattice_isa_names() -> list[str]: ...
def lattice_packed_residues(basis: Basis, count: int, /) -> int: ...
def lattice_forward(basis: Basis, x: Residues, out: Residues, isa: str, /) -> None: ...
def lattice_forward_short(basis: Basis, x: Residues, live: int, out: Residues, isa: str, /) -> None: ...
def lattice_backward(basis: Basis, x: Residues, out: Residues, isa: str, /) -> None: ...
def lattice_to_montgomery(basis: Basis, x: Residues, out: Residues, /, isa: str = "") -> None: ...
def lattice_sample_uniform(basis: Basis, words: Residues, out: Residues, /) -> bool: ...
def lattice_sample_ternary(data: Bytes, out: Small, /) -> bool: ...
def lattice_sample_errors(words: Words, out: Small, /) -> None: ...
def lattice_transform_small(basis: Basis, x: Small, out: Residues, isa: str, /) -> None: ...
def lattice_scale_power(basis: Basis, words: Words, width: int, out: Residues, /, isa: str = "") -> None: ...
def lattice_scale_odd(basis: Basis, plain: Basis, residues: Residues, out: Residues, /, isa: str = "") -> None: ...
def lattice_transform_plain(basis: Basis, plain: Basis, residues: Residues, out: Residues, isa: str, /) -> None: ...
def lattice_encrypt(
    basis: Basis, scaled: Residues, errors: Small, c1: Residues, secret: Residues, c0: Residues, isa: str, /
) -> None: ...
def lattice_blind(
    basis: Basis, errors: Small, c1: Residues, secret: Residues, w: Residues, fractions: Words, isa: str, /
) -> None: ...
def lattice_pack_rest(
    basis: Basis,
    w: Residues,
    base: Residues,
    bits: int,
    dropped: int,
    largest: Words,
    out: Bytes,
    /,
    isa: str = "",
) -> bool: ...
def lattice_unpack_rest(
    basis: Basis, data: Bytes, base: Residues, bits: int, dropped: int, c0: Residues, isa: str, /
) -> None: ...
def lattice_multiply_short(
    basis: Basis,
    x: Residues,
    y: NDArray[np.int64],
    row_blocks: int,
    inputs: int,
    outputs: int,
    live: int,
    divisor: int,
    out: Residues,
    isa: str,
    /,
) -> None: ...
def lattice_turn_all(
    from_: Basis,
    to: Basis,
    special: int,
    ciphertexts: list[Residues],
    levels: int,
    turns: int,
    keys: Residues,
    key_digits: int,
    key_step: int,
    out: Residues,
    start: int,
    next: int,
    apart: int,
    way: int,
    isa: str,
    /,
) -> None: ...
def lattice_turned_places(step: int, out: Residues, /) -> None: ...
def lattice_multiply_turned(
    basis: Basis,
    x: Residues,
    y: NDArray[np.int64],
    row_blocks: int,
    inputs: int,
    outputs: int,
    live: int,
    levels: int,
    turns: int,
    plain_limbs: int,
    out: Residues,
    isa: str,
    /,
) -> None: ...
def lattice_pack(
    from_: Basis,
    to: Basis,
    special: int,
    ciphertexts: Residues,
    levels: int,
    keys: Residues,
    key_digits: int,
    out: Residues,
    isa: str,
    /,
) -> None: ...
def lattice_multiply_plain(basis: Basis, x: list[Residues], y: list[Residues], out: Residues, isa: str, /) -> None: ...
def lattice_respond(
    basis: Basis,
    ciphertext: Residues,
    public_key: Residues,
    ephemeral: Small,
    errors0: Small,
    errors1: Small,
    positions: Residues,
    bits: int,
    sent: Bytes,
    kept: Words,
    isa: str,
    /,
) -> None: ...
def lattice_phase(
    basis: Basis, data: Bytes, secret: Residues, positions: Residues, bits: int, out: Words, isa: str, /
) -> None: ...
def lattice_round_power(fractions: Words, width: int, out: Words, /) -> None: ...
def lattice_round_odd(plain: Basis, fractions: Words, out: Residues, /, isa: str = "") -> None: ...
def lattice_split(basis: Basis, residues: Residues, words: Words, upper: Bytes, /, isa: str = "") -> None: ...
def lattice_pack_residues(basis: Basis, x: Residues, out: Bytes, /) -> None: ...
def lattice_unpack_residues(basis: Basis, data: Bytes, out: Residues, /) -> bool: ...

# Distributed point functions ---------------------------------------------------------------------------

PointShape = tuple[int, int, int, int]
"""Index bits, levels that the tree ends above the cells, words of a payload, modulus or 0."""
PointRows = tuple[int, int]
"""The table's number, the first row's."""

def make_points(
    shape: PointShape,
    rows: PointRows,
    client_root: Words,
    server_root: Words,
    places: Words,
    payloads: Words,
    corrections: Words,
    last: Words,
    isa: str,
    /,
) -> None: ...
def point_level_sums(
    shape: PointShape,
    rows: PointRows,
    server: bool,
    root: Words,
    corrections: Words,
    level: int,
    sums: Words,
    isa: str,
    /,
) -> None: ...
def point_leaf_sums(
    shape: PointShape,
    rows: PointRows,
    server: bool,
    root: Words,
    corrections: Words,
    sums: Words,
    controls: Words,
    isa: str,
    /,
) -> None: ...
def evaluate_lines(
    shape: PointShape,
    rows: PointRows,
    numbers: Words,
    server: bool,
    root: Words,
    corrections: Words,
    last: Words,
    tables: Words,
    columns: int,
    starts: Words,
    values: Words,
    factors: Words,
    out: Words,
    isa: str,
    /,
) -> None: ...
def evaluate_points(
    shape: PointShape,
    rows: PointRows,
    server: bool,
    root: Words,
    corrections: Words,
    last: Words,
    out: Words,
    isa: str,
    /,
) -> None: ...
