"""Distributed point functions: the native tree against one written from the papers, with another library's AES."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from comet_mpc import _native
from comet_mpc.engine.share import Words

_PI = bytes.fromhex("243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89452821e638d01377be5466cf34e90c6c")
ISAS = _native.transfer_isa_names()
SHAPES = [(1, 0, 2), (3, 1, 2), (5, 2, 3), (9, 2, 2), (7, 0, 2)]


class Reference:
    """One row's tree, in integers of 128 bits."""

    def __init__(self, index_bits: int, early: int, words: int) -> None:
        self.levels, self.early, self.words = index_bits - early, early, words
        self._aes = [Cipher(algorithms.AES(_PI[16 * k : 16 * k + 16]), modes.ECB()) for k in range(3)]

    def hashed(self, key: int, x: int) -> int:
        block = x.to_bytes(16, "little")
        return int.from_bytes(self._aes[key].encryptor().update(block), "little") ^ x

    def numbers(self, seed: int) -> list[int]:
        blocks = [self.hashed(2, seed ^ i << 64) for i in range(self.words * 2**self.early // 2)]
        return [block >> 64 * half & (2**64 - 1) for block in blocks for half in (0, 1)]

    def children(self, seed: int, control: int, correction: int) -> list[tuple[int, int]]:
        found = []
        for side in (0, 1):
            raw = self.hashed(side, seed)
            child, bit = raw >> 2 << 2, raw & 1
            if control:
                child, bit = child ^ correction >> 2 << 2, bit ^ correction >> side & 1
            found.append((child, bit))
        return found

    def leaves(self, server: bool, root: int, corrections: list[int], last: list[int]) -> list[int]:
        nodes = [(root >> 2 << 2, int(server))]
        for correction in corrections:
            nodes = [child for seed, bit in nodes for child in self.children(seed, bit, correction)]
        out = []
        for seed, bit in nodes:
            own = [(n + bit * extra) % 2**64 for n, extra in zip(self.numbers(seed), last, strict=True)]
            out += [-n % 2**64 for n in own] if server else own
        return out


def _made(shape: tuple[int, int, int], rows: int, isa: str) -> tuple[Words, ...]:
    index_bits, early, words = shape
    rng = np.random.default_rng(7)
    client, server = rng.integers(0, 2**64, (2, 2 * rows), dtype=np.uint64)
    places = rng.integers(0, 2**index_bits, rows, dtype=np.uint64)
    payloads = rng.integers(0, 2**64, rows * words, dtype=np.uint64)
    corrections = np.empty(2 * rows * (index_bits - early), np.uint64)
    last = np.empty(rows * words << early, np.uint64)
    _native.make_points(*shape, client, server, places, payloads, corrections, last, isa)
    return client, server, places, payloads, corrections, last


def _all(shape: tuple[int, int, int], server: bool, roots: Words, corrections: Words, last: Words, isa: str) -> Words:
    out = np.empty((roots.size // 2, 2 ** shape[0], shape[2]), np.uint64)
    _native.evaluate_points(*shape, server, roots, corrections, last, out.reshape(-1), isa)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_shares_add_up_to_the_payload_at_the_place(shape: tuple[int, int, int], isa: str) -> None:
    client, server, places, payloads, corrections, last = _made(shape, 5, isa)
    total = _all(shape, False, client, corrections, last, isa) + _all(shape, True, server, corrections, last, isa)
    expected = np.zeros_like(total)
    expected[np.arange(5), places] = payloads.reshape(5, -1)
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_tree_is_the_one_of_an_independent_implementation(shape: tuple[int, int, int], isa: str) -> None:
    made = _made(shape, 3, isa)
    corrections, last = made[4].tobytes(), made[5].reshape(3, -1)
    levels = shape[0] - shape[1]
    for party in (0, 1):
        native = _all(shape, bool(party), made[party], made[4], made[5], isa)
        for row in range(3):
            root = int.from_bytes(made[party].tobytes()[16 * row : 16 * row + 16], "little")
            own = [
                int.from_bytes(corrections[16 * at : 16 * at + 16], "little")
                for at in range(row * levels, (row + 1) * levels)
            ]
            expected = Reference(*shape).leaves(bool(party), root, own, [int(word) for word in last[row]])
            assert [int(word) for word in native[row].reshape(-1)] == expected


@pytest.mark.parametrize("words", [2, 3])
def test_lines_are_those_of_the_table(words: int) -> None:
    shape, rows = (6, 2, words), 9
    client, server, places, payloads, corrections, last = _made(shape, rows, "")
    rng = np.random.default_rng(3)
    tables = rng.integers(0, 2**64, (2, 2, 64), dtype=np.uint64)  # columns, (A, B), cells
    doubled = np.ascontiguousarray(np.concatenate([tables, tables], axis=-1)).reshape(-1)
    starts = rng.integers(0, 64, rows, dtype=np.uint64)
    public, factors = rng.integers(0, 2**64, (2, rows), dtype=np.uint64)
    total = np.zeros((rows, 2), np.uint64)
    for party, roots in ((False, client), (True, server)):
        out = np.empty(2 * rows, np.uint64)
        _native.evaluate_lines(*shape, party, roots, corrections, last, doubled, 2, starts, public, factors, out, "")
        total += out.reshape(rows, 2)
    one, *rest = payloads.reshape(rows, words).T
    level, slope = tables[:, :, (starts + places) % np.uint64(64)].transpose(1, 0, 2)
    x = public * one + rest[0] + (factors * rest[1] if words == 3 else np.uint64(0))
    assert np.array_equal(total.T, level * one + slope * x)
