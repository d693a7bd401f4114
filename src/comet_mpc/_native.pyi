"""The C++ extension. Arrays are flat and contiguous; sizes are not checked. Use comet_mpc.kernels instead."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Products = Sequence[tuple[int, int]]
Rows = Sequence[tuple[int, int, Sequence[tuple[int, int]]]]

def isa_names() -> list[str]: ...
def matmul(
    x: Words,
    y: Words,
    out: Words,
    batch: int,
    m: int,
    k: int,
    n: int,
    transposed: bool,
    width: int,
    isa: str,
    /,
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

# Oblivious transfer: use comet_mpc.oblivious_transfer instead.
def transfer_isa_names() -> list[str]: ...
def extend_receiver(
    keys: Bytes, fold: int, hash_key: Bytes, first: int, bits: Bytes, message: Bytes, words: Words, isa: str, /
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
    isa: str,
    /,
) -> None: ...
def products_sender(zeros: Words, ones: Words, bits: Bytes, shares: Words, message: Bytes, width: int, /) -> None: ...
def products_receiver(words: Words, bits: Bytes, message: Bytes, shares: Words, width: int, /) -> None: ...
def correlate_sender(
    zeros: Words, ones: Words, flips: Bytes, values: Words, shares: Words, message: Bytes, width: int, /
) -> None: ...
def correlate_receiver(words: Words, chosen: Bytes, message: Bytes, shares: Words, width: int, /) -> None: ...
def transfer_aes(key: Bytes, data: Bytes, out: Bytes, isa: str, /) -> None: ...
def transfer_transpose(planes: Words, rows: Bytes, isa: str, /) -> None: ...
def transfer_hash(key: Bytes, first: int, rows: Bytes, out: Words, isa: str, /) -> None: ...
