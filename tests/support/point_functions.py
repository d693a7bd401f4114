"""A distributed point function written from the papers, with another library's AES, to compare the native one with."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Shape = tuple[int, int, int, int]
"""Index bits, levels that the tree ends above the cells, words of a payload, modulus or 0."""


class Reference:
    """One row's tree, in integers of 128 bits."""

    def __init__(self, shape: Shape, table: int, row: int) -> None:
        index_bits, self.early, self.words, self.modulus = shape
        self.levels, self._table, self._row = index_bits - self.early, table, row

    def hashed(self, level: int, node: int, number: int = 0) -> int:
        key = self._table.to_bytes(8, "little") + (self._row << 8 | level).to_bytes(8, "little")
        low, high = node & (2**64 - 1), node >> 64
        x = (high | (low ^ high) << 64) ^ number
        block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(x.to_bytes(16, "little"))
        return int.from_bytes(block, "little") ^ x

    def numbers(self, leaf: int) -> list[int]:
        count = self.words * 2**self.early
        if self.modulus:
            return [self.hashed(self.levels, leaf, i) * self.modulus >> 128 for i in range(count)]
        blocks = [self.hashed(self.levels, leaf, i) for i in range((count + 1) // 2)]
        return [block >> 64 * half & (2**64 - 1) for block in blocks for half in (0, 1)][:count]

    def leaves(self, server: bool, root: int, corrections: list[int], last: list[int]) -> list[int]:
        nodes = [root >> 1 << 1 | server]
        for level, correction in enumerate(corrections):
            lefts = [self.hashed(level, node) ^ (correction if node & 1 else 0) for node in nodes]
            nodes = [child for node, left in zip(nodes, lefts, strict=True) for child in (left, left ^ node)]
        out, size = [], self.modulus or 2**64
        for node in nodes:
            own = [(n + (node & 1) * extra) % size for n, extra in zip(self.numbers(node), last, strict=True)]
            out += [-n % size for n in own] if server else own
        return out
