"""Expanded randomness is AES in counter mode, the same wherever reading starts."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine.seeds import SEED_BYTES, Streams, derive_seed, expand, new_seed

SEED = bytes(range(16))

# NIST SP 800-38A, F.5.1 (CTR-AES128.Encrypt): key, initial counter, output blocks.
NIST_KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
NIST_COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_BLOCKS = bytes.fromhex(
    "ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae"
    "6a2cc3787889374fbeb4c81b17ba6c44e89c399ff0f198c6d40a31db156cabfe"
)


def block(seed: bytes, stream: int, index: int) -> bytes:
    """AES_seed(stream ‖ index), one block, without counter mode."""
    encryptor = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    return encryptor.update(stream.to_bytes(8, "big") + index.to_bytes(8, "big"))


def test_words_are_the_key_stream_of_the_standard() -> None:
    stream, start = (int.from_bytes(NIST_COUNTER[half], "big") for half in (slice(8), slice(8, 16)))
    words = expand(NIST_KEY, stream, 8, 2 * start)
    assert words.astype("<u8").tobytes() == NIST_BLOCKS


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**63), st.integers(0, 2**40), st.integers(1, 40))
def test_block_i_of_stream_s_is_the_cipher_of_both(seed: bytes, stream: int, start: int, count: int) -> None:
    blocks = b"".join(block(seed, stream, start + i) for i in range((count + 1) // 2))
    assert expand(seed, stream, count, 2 * start).tobytes() == blocks[: 8 * count]


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_stream_is_the_same_wherever_reading_starts(offset: int, count: int) -> None:
    whole = expand(SEED, 3, offset + count)
    assert np.array_equal(expand(SEED, 3, count, offset), whole[offset:])


def test_a_long_stream_is_its_pieces() -> None:
    count = (1 << 18) + 10  # more than the buffer of zeros that is encrypted at a time
    pieces = [expand(SEED, 9, min(50_000, count - start), start) for start in range(0, count, 50_000)]
    assert np.array_equal(expand(SEED, 9, count), np.concatenate(pieces))


@given(st.integers(0, 3), st.integers(0, 700))
def test_bits_are_those_of_the_words_lowest_first(chunk: int, count: int) -> None:
    offset = 128 * chunk
    stream = expand(SEED, 5, (offset + count + 63) // 64).view(np.uint8)
    bits = np.unpackbits(stream, bitorder="little")[offset : offset + count]
    packed = Streams(SEED).bits(5, count, offset)
    assert np.array_equal(packed, np.packbits(bits, bitorder="little"))


def test_padding_bits_are_zero() -> None:
    assert all(Streams(SEED).bits(stream, 3)[-1] < 8 for stream in range(64))


def test_streams_and_seeds_have_nothing_in_common() -> None:
    seeds = [SEED, bytes(16), derive_seed(SEED, "a")]
    seen = [word for seed in seeds for stream in (0, 1, 2**16, 2**40) for word in expand(seed, stream, 50).tolist()]
    assert len(set(seen)) == len(seen)


def test_a_derived_seed_is_the_key_derivation_of_the_standard() -> None:
    """RFC 5869, written out: extract with a salt of zeros, expand one block."""
    info = b"comet-seed" + b"\x05\x00\x00\x00layer" + b"\x02\x00\x00\x00\xc3\xa4"
    extracted = hmac.digest(bytes(32), SEED, hashlib.sha256)
    expected = hmac.digest(extracted, info + b"\x01", hashlib.sha256)[:SEED_BYTES]
    assert derive_seed(SEED, "layer", "ä") == expected


@pytest.mark.parametrize(
    "labels", [(), ("",), ("", ""), ("a",), ("ab",), ("a", "b"), ("b", "a"), ("ab", ""), ("a", "b", ""), ("weights",)]
)
def test_a_derived_seed_is_bound_to_every_label_and_where_it_ends(labels: tuple[str, ...]) -> None:
    others = [(), ("",), ("", ""), ("a",), ("ab",), ("a", "b"), ("b", "a"), ("ab", ""), ("a", "b", ""), ("weights",)]
    mine = derive_seed(SEED, *labels)
    assert len(mine) == SEED_BYTES
    assert [other for other in others if derive_seed(SEED, *other) == mine] == [labels]
    assert derive_seed(bytes(16), *labels) != mine


def test_new_seeds_differ() -> None:
    seeds = {new_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert {len(seed) for seed in seeds} == {SEED_BYTES}
