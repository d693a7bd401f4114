"""New transfers from old ones: with secrets of their own, for what is made of the secrets themselves and is stored.

Keys of point functions are (`offline.pair.points`): a bundle holds its party's secret Δ. So every bundle has another,
and whoever finds one that is not used yet learns nothing of those that were. The base transfers of the new set-up are
128 random transfers of the old one, in the other direction: whoever will send chooses, and takes its choices for its
secret; the other grows the trees of `base`. Bit 0 of the secret is clear at the client and set at the server, by a
correction of one choice: 127 bits are left of each secret, and the two differ in that bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from comet_mpc.offline.ot.base import SECURITY, TREE_BYTES, ReceiverKeys, SenderKeys, grow_trees, regrow_trees
from comet_mpc.offline.ot.extension import (
    TransferReceiver,
    Transfers,
    TransferSender,
    extension_bytes,
)
from comet_mpc.offline.streaming import Request, Sizes, Steps

if TYPE_CHECKING:
    from comet_mpc.net.channel import Sendable

_FLIP_BYTES = 1


def renewal_sizes(fold: int) -> list[Sizes]:
    """Of its requests."""
    return [Sizes(asker, extension_bytes(SECURITY, fold) + _FLIP_BYTES, TREE_BYTES) for asker in (0, 1)]


def renewal_steps(old: Transfers) -> Steps[Transfers]:
    """The new transfers. One step. Reveals nothing."""
    requests = [_Renewal(old, sizes) for sizes in renewal_sizes(old.fold)]
    yield requests
    mine, theirs = requests[old.party], requests[1 - old.party]
    return Transfers(old.party, mine.sender(), theirs.receiver())


class _Renewal(Request):
    """One direction: the asker will send."""

    def __init__(self, old: Transfers, sizes: Sizes) -> None:
        self._old, self._sizes = old, sizes
        self._sender: TransferSender | None = None
        self._receiver: TransferReceiver | None = None

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def sender(self) -> TransferSender:
        assert self._sender is not None
        return self._sender

    def receiver(self) -> TransferReceiver:
        assert self._receiver is not None
        return self._receiver

    def ask(self) -> Sequence[Sendable]:
        old = self._old
        message, bits, words = old.receiver.extend(SECURITY, halves=2)
        self._choices = np.unpackbits(bits, count=SECURITY, bitorder="little").astype(np.int64)
        self._pads = _blocks(words.tobytes())
        place, wanted = old.fold - 1, 1 - old.party  # bit 0 of the secret is the opposite of that choice
        flip = int(self._choices[place]) ^ wanted
        self._choices[place] = wanted
        self._hash_key = self._key("hash key", 16, message.tobytes())
        return [message, bytes([flip])]

    def answer(self, question: memoryview) -> Sequence[Sendable]:
        old, message = self._old, question[:-_FLIP_BYTES]
        zeros, ones = old.sender.extend(message, SECURITY, halves=2)
        pads = list(zip(_blocks(zeros.tobytes()), _blocks(ones.tobytes()), strict=True))
        if question[-1] & 1:
            pads[old.fold - 1] = pads[old.fold - 1][::-1]
        hash_key = self._key("hash key", 16, bytes(message))
        leaves, tree = grow_trees(pads, old.fold, hash_key)
        check_key = self._key("check key", 32, hash_key + tree)
        self._receiver = TransferReceiver(ReceiverKeys(leaves, old.fold, hash_key, check_key))
        return [tree]

    def finish(self, answer: memoryview) -> None:
        tree, fold = bytes(answer), self._old.fold
        keys, secret = regrow_trees(self._choices.tolist(), self._pads, tree, fold, self._hash_key)
        check_key = self._key("check key", 32, self._hash_key + tree)
        self._sender = TransferSender(SenderKeys(keys, secret, fold, self._hash_key, check_key))

    def _key(self, purpose: str, size: int, message: bytes) -> bytes:
        state = hashlib.blake2b(message, digest_size=size, person=b"comet-renewal")
        state.update(f"{purpose} {self._sizes.asker}".encode())
        return state.digest()


def _blocks(data: bytes) -> list[bytes]:
    return [data[start : start + 16] for start in range(0, len(data), 16)]
