"""Correlated randomness made by a third party: what the dealer computes and what the parties make of it.

The dealer draws two fresh seeds for every bundle. Each party expands its own masks from its seed. For products of
masks the client's share comes from its seed too, and the server gets the difference (the correction), so the
client's bundle is 16 bytes and the server's 16 bytes and a stream. Corrections are uniform to the server: each is
a value minus a fresh expansion of a seed that it does not know. Only the corrections of point functions go to both.

The dealer never sees an input, an opened value or a weight. It knows every mask, so it must not collude with
either party: with the client it could compute W, with the server x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from comet_mpc.engine import Abilities, Weight
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.operation import FUSED
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.seeds import Streams, derive_seed, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.dealer.preparer import (
    DealerView,
    PartyView,
    dealer_preparer,
    ring_elements,
    stream_of,
    weight_mask,
)
from comet_mpc.threads import in_order


def weights_digest(weights: Mapping[str, Weight]) -> str:
    """Names the fixed-point numbers that are masked, of all weights together."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]
        digest.update(f"{name}{weight.shape}{weight.fraction}".encode())
        digest.update(np.ascontiguousarray(weight.fixed(), "<i4").data)
    return digest.hexdigest()


def weight_key(secret: bytes, digest: str) -> bytes:
    """The key of all weight masks of one model. `digest` is that of the masked numbers: if any changes, all masks do.

    Masking two versions of a weight with one mask would give a client their difference.
    """
    return derive_seed(secret, "weights", digest)


def mask_weight(key: bytes, weight: Weight) -> Words:
    """D = W - B, which the client downloads once per model. Uniform to it: it does not know the key."""
    words = weight.fixed().astype(np.int64).view(np.uint64)
    return words - weight_mask(key, weight.name, words.size).reshape(words.shape)


class DealtRandomness(OpenBundle):
    """One party's randomness from a dealer's bundle."""

    def __init__(
        self, bundle: Bundle, weights: Mapping[str, Weight] | None = None, *, abilities: Abilities = FUSED
    ) -> None:
        """weights: of the model, masked at the client. abilities: others in tests of programs that were planned so."""
        super().__init__(bundle)
        self.abilities = abilities
        self._view = PartyView(bundle.party, Streams(bundle.seed), bundle.stored, dict(weights or {}))
        self._ahead: dict[int, tuple[Words, ...]] = {}
        if bundle.stored is None and (self.party == SERVER or any(entry.common_bytes for entry in bundle.correlations)):
            raise ForeignRandomness(f"the {('client', 'server')[self.party]}'s bundle has no corrections")

    def compute_ahead(self) -> None:
        """The client's products with masked weights: most of its work, and it needs no input."""
        if self.party == CLIENT:
            places = [i for i, entry in enumerate(self._order.correlations) if dealer_preparer(entry).ahead]
            made = in_order(lambda i: self._made(i, replace(self._view, streams=Streams(self.bundle.seed))), places)
            self._ahead = dict(zip(places, made, strict=True))

    def _words(self, index: int, correlation: Correlation) -> tuple[Words, ...]:
        ahead = self._ahead.pop(index, None)
        return self._made(index, self._view) if ahead is None else ahead

    def _made(self, index: int, view: PartyView) -> tuple[Words, ...]:
        correlation = self._order.correlations[index]
        return dealer_preparer(correlation).words(view, index, correlation)


def _in_eights(chunks: Iterator[Words]) -> Iterator[Words]:
    """The same words in chunks of multiples of eight, but for the last: whole bytes, however wide a word is."""
    left = np.empty(0, np.uint64)
    for chunk in chunks:
        whole = np.concatenate([left, chunk]) if left.size else chunk
        cut = whole.size // 8 * 8
        left = whole[cut:]
        if cut:
            yield whole[:cut]
    if left.size:
        yield left


class Dealing:
    """One bundle in the dealer's hands: fresh seeds, and the stream of corrections for the server."""

    def __init__(
        self, correlations: Sequence[Correlation], key: bytes, seeds: tuple[bytes, bytes] | None = None
    ) -> None:
        """key: of the weight masks (from the server). seeds: only tests pass them.

        A program from outside goes through `admission.admit_program` first.
        """
        self.correlations = tuple(correlations)
        self.client_seed, self.server_seed = seeds or (new_seed(), new_seed())
        self._view = DealerView(self.correlations, Streams(self.client_seed), Streams(self.server_seed), key)

    @property
    def correction_bytes(self) -> int:
        return sum(correlation.correction_bytes for correlation in self.correlations)

    def corrections(self) -> Iterator[memoryview]:
        """The server's stream, a chunk at a time."""
        for index, correlation in enumerate(self.correlations):
            for array, (_, ring) in enumerate(correlation.facts.corrections):
                values = dealer_preparer(correlation).values(self._view, index, correlation, array)
                place = 0
                for value in _in_eights(values):
                    yield ring.pack(self._hidden(value, ring, stream_of(index, array + 1), place)).data
                    place += value.size
            yield from dealer_preparer(correlation).common(self._view, index, correlation)

    @property
    def common_bytes(self) -> int:
        return sum(correlation.common_bytes for correlation in self.correlations)

    def common(self) -> Iterator[memoryview]:
        """The client's stream: of the server's, what both get."""
        for index, correlation in enumerate(self.correlations):
            if correlation.common_bytes:
                yield from dealer_preparer(correlation).common(self._view, index, correlation)

    def _hidden(self, value: Words, ring: Ring, stream: int, place: int) -> Words:
        """A product less the client's share of it."""
        return ring.subtract(value, ring_elements(self._view.client, ring, stream, value.size, place))
