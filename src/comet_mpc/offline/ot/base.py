"""How the two parties of an OT extension get their keys: base transfers on a curve, then all-but-one keys.

Base transfers (Masny and Rindal 2019, "Endemic oblivious transfer") in the prime-order subgroup of edwards25519. The
chooser, with bit b, sends two points: r_{1-b} uniform and r_b = a·G - H_b(r_{1-b}). The giver sends X = x·G. Key s is
KDF(s, x·(r_s + H_s(r_{1-s}))); the chooser knows a·X for s = b and no other. Both messages can go at once.

All-but-one keys (Goldreich, Goldwasser and Micali 1986; used so by Roy 2022): the receiver of the extension grows a
tree of depth `fold` from a random root; its 2^fold leaves are the keys of one digit. For each level it offers the
sum of all left nodes and the sum of all right nodes through one base transfer. The sender takes one of the two, and so
can grow the tree again but for one path: its secret digit is the leaf at the end of it.

Hidden: the chooser's bits perfectly, the other keys by the hardness of computational Diffie-Hellman. All hashes are
taken as random oracles. Those that make keys are bound to direction, index, side and the whole transcript, so one X
serves all transfers; H is bound to direction, index and side, as it must be.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from comet_mpc.errors import PeerError, WrongSize

SECURITY = 128
"""Base transfers, bits of the sender's secret, and the security level in bits."""

POINT_BYTES = 32
OFFER_BYTES = SECURITY * 2 * POINT_BYTES
TREE_BYTES = SECURITY * 2 * 16
_NODE = 16


@dataclass(frozen=True)
class ReceiverKeys:
    """The extension's receiver: all 2^fold keys of every digit, one after the other, and the public hash keys."""

    keys: bytes = field(repr=False)
    fold: int
    hash_key: bytes
    check_key: bytes


@dataclass(frozen=True)
class SenderKeys:
    """The extension's sender: its secret, and for every digit of it the keys x in the order of x xor digit, 0 void."""

    keys: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    fold: int
    hash_key: bytes
    check_key: bytes


class ReceiverSetup:
    """The extension's receiver gives in the base transfers. `direction` names who receives; both sides say the same."""

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self._scalar = _random_scalar()
        self.message = sodium.crypto_scalarmult_ed25519_base_noclamp(self._scalar)

    def finish(self, offers: bytes, fold: int) -> tuple[ReceiverKeys, bytes]:
        """From the sender's points: the keys, and the last message, TREE_BYTES long."""
        _check_size(offers, OFFER_BYTES)
        pairs = [_pair(offers, i) for i in range(SECURITY)]
        for pair in pairs:
            for point in pair:
                _check_point(point)
        transcript = _Transcript(self._direction, self.message, offers)
        pads = [
            [transcript.key(i, side, self._shared(transcript, i, side, pair)) for side in (0, 1)]
            for i, pair in enumerate(pairs)
        ]
        leaves, tree = grow_trees(pads, fold, transcript.hash_key)
        return ReceiverKeys(leaves, fold, transcript.hash_key, transcript.check_key(tree)), tree

    def _shared(self, transcript: _Transcript, i: int, side: int, pair: tuple[bytes, bytes]) -> bytes:
        try:
            point = sodium.crypto_core_ed25519_add(pair[side], transcript.point(i, side, pair[1 - side]))
            return sodium.crypto_scalarmult_ed25519_noclamp(self._scalar, point)
        except CryptoError as error:
            raise PeerError("a base transfer of the peer's ends in a point of small order") from error


class SenderSetup:
    """The extension's sender chooses in the base transfers, with random bits that become its secret."""

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self._choices = [secrets.randbits(1) for _ in range(SECURITY)]
        self._scalars = [_random_scalar() for _ in range(SECURITY)]
        hashes = _Transcript(direction, b"", b"")
        self.message = b"".join(
            self._offer(hashes, i, choice, scalar)
            for i, (choice, scalar) in enumerate(zip(self._choices, self._scalars, strict=True))
        )

    @staticmethod
    def _offer(hashes: _Transcript, i: int, choice: int, scalar: bytes) -> bytes:
        other = sodium.crypto_scalarmult_ed25519_base_noclamp(_random_scalar())
        own = sodium.crypto_core_ed25519_sub(
            sodium.crypto_scalarmult_ed25519_base_noclamp(scalar), hashes.point(i, choice, other)
        )
        return own + other if choice == 0 else other + own

    def finish(self, point: bytes, tree: bytes, fold: int) -> SenderKeys:
        """From the receiver's two messages, the point of the first round and the sums of the second."""
        _check_size(point, POINT_BYTES)
        _check_size(tree, TREE_BYTES)
        _check_point(point)
        transcript = _Transcript(self._direction, point, self.message)
        pads = []
        for i, (side, scalar) in enumerate(zip(self._choices, self._scalars, strict=True)):
            pads.append(transcript.key(i, side, sodium.crypto_scalarmult_ed25519_noclamp(scalar, point)))
        keys, secret = regrow_trees(self._choices, pads, tree, fold, transcript.hash_key)
        return SenderKeys(keys, secret, fold, transcript.hash_key, transcript.check_key(tree))


def grow_trees(pads: Sequence[Sequence[bytes]], fold: int, hash_key: bytes) -> tuple[bytes, bytes]:
    """The receiver's keys of every digit, and what it sends: sums of every level under the two pads of a transfer."""
    leaves, message = [], []
    for digit in range(0, SECURITY, fold):
        level = [secrets.token_bytes(_NODE)]
        for i in range(digit, digit + fold):
            level = [child for node in level for child in _children(hash_key, node)]
            message += [_sum([*level[side::2], pads[i][side]]) for side in (0, 1)]
        leaves += level
    return b"".join(leaves), b"".join(message)


def regrow_trees(
    choices: Sequence[int], pads: Sequence[bytes], tree: bytes, fold: int, hash_key: bytes
) -> tuple[bytes, bytes]:
    """The sender's keys, and its secret, from the one pad of each transfer that it chose.

    Bit 0 of the secret is the opposite of choice fold - 1.
    """
    secret, ordered = 0, []
    for digit in range(0, SECURITY, fold):
        sums = []
        for i in range(digit, digit + fold):
            place = (2 * i + choices[i]) * _NODE
            sums.append((choices[i], _sum([tree[place : place + _NODE], pads[i]])))
        missing, leaves = _grow_around(hash_key, sums)
        secret |= missing << digit
        ordered += [leaves[x ^ missing] for x in range(2**fold)]
    return b"".join(ordered), secret.to_bytes(SECURITY // 8, "little")


def _grow_around(hash_key: bytes, sums: Sequence[tuple[int, bytes]]) -> tuple[int, list[bytes]]:
    """All leaves but one of a tree, from one side's sum on every level; and the place of the missing one, zeroed."""
    level, missing = [bytes(_NODE)], 0
    for side, total in sums:
        level = [
            child
            for place, node in enumerate(level)
            for child in (_children(hash_key, node) if place != missing else (bytes(_NODE), bytes(_NODE)))
        ]
        level[2 * missing + side] = _sum([total, *level[side::2]])  # its own place holds zero so far
        missing = 2 * missing + 1 - side
    return missing, level


class _Transcript:
    """The hashes of one set-up, apart from those of every other and from each other."""

    def __init__(self, direction: str, point: bytes, offers: bytes) -> None:
        self._direction = direction.encode()
        self._digest = self._hash(b"transcript", 32, point, offers)
        self.hash_key = self._hash(b"hash key", 16, self._digest)

    def _hash(self, purpose: bytes, size: int, *parts: bytes) -> bytes:
        state = hashlib.blake2b(digest_size=size, person=b"comet-transfer")
        for part in (purpose, self._direction, *parts):
            state.update(len(part).to_bytes(8, "little") + part)
        return state.digest()

    def check_key(self, tree: bytes) -> bytes:
        """Binds the extension's check to the receiver's keys too: it must not know the challenge when it makes them."""
        return self._hash(b"check key", 32, self._digest, tree)

    def point(self, i: int, side: int, other: bytes) -> bytes:
        """H_side: a point whose logarithm nobody knows. The sum of two maps is uniform (Brier et al. 2010)."""
        uniform = self._hash(b"point", 64, bytes([i, side]), other)
        return sodium.crypto_core_ed25519_add(
            sodium.crypto_core_ed25519_from_uniform(uniform[:32]),
            sodium.crypto_core_ed25519_from_uniform(uniform[32:]),
        )

    def key(self, i: int, side: int, shared: bytes) -> bytes:
        return self._hash(b"key", _NODE, bytes([i, side]), self._digest, shared)


def _children(hash_key: bytes, node: bytes) -> tuple[bytes, bytes]:
    both = hashlib.blake2b(node, digest_size=2 * _NODE, key=hash_key, person=b"comet-tree").digest()
    return both[:_NODE], both[_NODE:]


def _random_scalar() -> bytes:
    return sodium.crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64))


def _pair(offers: bytes, i: int) -> tuple[bytes, bytes]:
    start = 2 * i * POINT_BYTES
    return offers[start : start + POINT_BYTES], offers[start + POINT_BYTES : start + 2 * POINT_BYTES]


def _sum(nodes: Iterable[bytes]) -> bytes:
    total = reduce(lambda a, b: a ^ b, (int.from_bytes(node, "little") for node in nodes), 0)
    return total.to_bytes(_NODE, "little")


def _check_size(message: bytes, expected: int) -> None:
    if len(message) != expected:
        raise WrongSize(got=len(message), expected=expected)


def _check_point(point: bytes) -> None:
    if not sodium.crypto_core_ed25519_is_valid_point(point):
        raise PeerError("a point of the peer's base transfers is not one of the prime-order group")
