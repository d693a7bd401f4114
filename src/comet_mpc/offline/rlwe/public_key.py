"""The client's public key, and the responses that the server hides with it.

Before C0 and C1 of a product are used, both get twice a fresh encryption of zero: 2·(r·pk0 + e0) and 2·(r·pk1 + e1),
with r ternary. pk1 is expanded from bytes of both parties, so that it is nobody's choice; pk0 comes with a proof that
it is made of short numbers (`key_proof`, where the factor 2 comes from). So C1 is uniform to the client under RLWE, and
what the server keeps depends on r through C1 alone.
"""

from __future__ import annotations

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.seeds import derive_seed
from comet_mpc.errors import WrongSize
from comet_mpc.offline.rlwe.key_proof import PROOF_BYTES, prove, verify
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    PRIMES,
    Bytes,
    Fractions,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    basis,
    pack,
    public_polynomial,
    unpack,
)

_KEY_BYTES = len(PRIMES) * DEGREE * 30 // 8
_TWICE = np.int8(2)


def common_seed(client: bytes, server: bytes) -> bytes:
    """The seed of pk1, which neither party chooses. Every seed of an upload is bound to it, too (`upload_seed`)."""
    return derive_seed(client + server, "public key")


def upload_seed(common: bytes, sent: bytes) -> bytes:
    """The public seed of an upload: the client draws one for each, and neither party chooses what becomes of it."""
    return derive_seed(common + sent, "upload")


def make_public_key(secret: SecretKey, seed: bytes) -> bytes:
    """pk0 of an encryption of zero and its proof, as they are sent. seed: of pk1 (`common_seed`)."""
    pk0, errors = secret.zero(seed, 0, PRIMES)
    proof = prove(pk0, public_polynomial(seed, 0, PRIMES), secret.turned(1), errors, seed, secret.stream)
    return pack(pk0, PRIMES).tobytes() + proof


class PublicKey:
    """What the server adds fresh encryptions of zero with."""

    SIZE = _KEY_BYTES + PROOF_BYTES

    def __init__(self, c0: Residues, c1: Residues) -> None:
        self._both = np.stack([c0, c1]).reshape(2, len(PRIMES), DEGREE)
        self._cut: dict[int, Residues] = {}

    @staticmethod
    def decode(data: bytes | bytearray | memoryview, seed: bytes) -> PublicKey:
        """From what `make_public_key` gave. Refuses a key whose proof does not hold."""
        if len(data) != PublicKey.SIZE:
            raise WrongSize(got=len(data), expected=PublicKey.SIZE)
        c0 = unpack(np.frombuffer(data, np.uint8)[:_KEY_BYTES], PRIMES)
        c1 = public_polynomial(seed, 0, PRIMES)
        verify(c0, c1, memoryview(data)[_KEY_BYTES:], seed)
        return PublicKey(c0, c1)

    def cut(self, limbs: int) -> Residues:
        """The key modulo the first primes only."""
        if limbs not in self._cut:
            self._cut[limbs] = np.ascontiguousarray(self._both[:, :limbs]).reshape(-1)
        return self._cut[limbs]


def respond(
    scheme: Scheme, ciphertext: Residues, key: PublicKey, positions: Residues, stream: Stream
) -> tuple[Bytes, Fractions]:
    """What is sent back, C1; and what the server keeps, C0 at these coefficients as fractions of q. Both re-randomised.

    Destroys the ciphertext.
    """
    sent, kept = np.empty(scheme.response_bytes, np.uint8), np.empty(3 * positions.size, np.uint64)
    _native.lattice_respond(
        basis(scheme.primes),
        ciphertext.reshape(-1),
        key.cut(scheme.limbs),
        _TWICE * stream.ternary(),
        _TWICE * stream.errors(positions.size),
        _TWICE * stream.errors(DEGREE),
        positions,
        scheme.response_bits,
        sent,
        kept,
        "",
    )
    return sent, kept
