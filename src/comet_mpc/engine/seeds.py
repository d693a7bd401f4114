"""Cryptographic randomness: seeds from the operating system, expanded by AES-128 in counter mode.

A seed has 2^64 independent streams of 2^64 blocks; block i of stream s is AES_seed(s ‖ i). Streams can be read
from any place, so that a dealer holds chunks of arrays only.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comet_mpc.engine.share import Words

SEED_BYTES = 16
_BLOCK = 16
_ZEROS = bytes(1 << 20)


def new_seed() -> bytes:
    """A fresh seed from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


def derive_seed(secret: bytes, *labels: str) -> bytes:
    """A seed bound to labels (a model's fingerprint, a tensor's name) by HKDF-SHA256."""
    info = b"comet-seed" + b"".join(len(label.encode()).to_bytes(4, "little") + label.encode() for label in labels)
    return HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=info).derive(secret)


class Streams:
    """The streams of one seed. Kept by whoever reads many: setting AES up costs more than a small tensor's words."""

    def __init__(self, seed: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(seed), modes.CTR(bytes(_BLOCK))).encryptor()

    def words(self, stream: int, count: int, offset: int = 0) -> Words:
        """Words offset … offset+count-1 of a stream (two words make a block)."""
        words = self._bytes(stream, (count + offset % 2) * 8, offset // 2).view(np.uint64)
        return words[offset % 2 :]

    def bits(self, stream: int, count: int, offset: int = 0) -> npt.NDArray[np.uint8]:
        """Bits offset … offset+count-1 of a stream, packed eight a byte, lowest first; offset is a multiple of 128.

        Padding bits of the last byte are zero.
        """
        packed = self._bytes(stream, (count + 7) // 8, offset // 128).copy()
        if count % 8:
            packed[-1] &= (1 << (count % 8)) - 1
        return packed

    def _bytes(self, stream: int, size: int, start_block: int) -> npt.NDArray[np.uint8]:
        self._encryptor.reset_nonce(stream.to_bytes(8, "big") + start_block.to_bytes(8, "big"))
        out = np.empty(size + _BLOCK, dtype=np.uint8)  # update_into asks for a block of slack
        view = out.data
        for start in range(0, size, len(_ZEROS)):
            length = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:length] if length < len(_ZEROS) else _ZEROS, view[start:])
        return out[:size]


def expand(seed: bytes, stream: int, count: int, offset: int = 0) -> Words:
    """As `Streams.words`, of a seed that is read once."""
    return Streams(seed).words(stream, count, offset)
