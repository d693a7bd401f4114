"""The products that an audited preparation makes: every kind of upload and of response that deployments have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.ring import odd_ring
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.offline.rlwe.odd_slots import OddJob, OddPlan, odd_plan, read_slots
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import Job, MatrixJob
from comet_mpc.offline.rlwe.scheme import DEGREE, Residues, Scheme, read_uploads
from comet_mpc.offline.rlwe.slots import SlotJob, choose_plan
from comet_mpc.offline.rlwe.tiling import Tiling, choose_tiling

ROWS = INPUTS = OUTPUTS = 8
ODD = odd_ring(2.0**30)


@dataclass(frozen=True)
class LayerProduct:
    """One way to make a matrix product."""

    kind: str
    width: int
    tiling: Tiling

    def weights(self, which: int) -> npt.NDArray[np.int64]:
        return np.full((self.tiling.outputs, self.tiling.inputs), (1, -3)[which], np.int64)


def _layer_products() -> tuple[LayerProduct, ...]:
    """As small ones go, and as layers go: the client's factor is what its ciphertexts say, and responses are packed."""
    width, size, bits = 48, 64, 20
    scheme = choose_tiling(ROWS, size, size, width, bits, Packing.TURNS).scheme
    packed = Tiling(ROWS, size, size, size, size, scheme, size.bit_length() - 1, part_bits=bits, defines=True)
    turned = replace(packed, turns=2, turned_limbs=scheme.limbs + 1)
    plain = choose_tiling(ROWS, INPUTS, OUTPUTS, 64, 24)
    return (
        LayerProduct("", 64, plain),
        LayerProduct(", packed", width, packed),
        LayerProduct(", turned", width, turned),
    )


LAYER_PRODUCTS = _layer_products()


class Repeating(MatrixJob):
    """seed: for uploads under the same public polynomials every time."""

    def __init__(self, tiling: Tiling, width: int, x: Words | None, seed: bytes | None) -> None:
        super().__init__(tiling, width, x=x)
        self._seed = seed

    def drawn_seed(self) -> bytes:
        return self._seed or super().drawn_seed()


class SlotProduct:
    """In the slots of a ring of 2^w: the client's factor is chosen, one of two, as is the server's."""

    kind = "response in slots"
    _plan = choose_plan(1, ((0,),), 32, 32)

    @property
    def scheme(self) -> Scheme:
        return self._plan.moduli[0].scheme

    def uploads(self, seed: bytes, packed: memoryview) -> Iterator[tuple[str, Residues]]:
        """The first ciphertext. Those modulo other primes are of the same kind."""
        yield "upload in slots", read_uploads([self.scheme], seed, packed[: self.scheme.upload_bytes])[0]

    def job(self, party: int, which: int, seed: bytes | None = None) -> Job:
        if party == CLIENT:
            return _RepeatingSlots(self._plan, DEGREE, left=[np.full(DEGREE, (0, 2**30)[which])], seed=seed)
        return SlotJob(self._plan, DEGREE, right=[[np.full(DEGREE, (1, -3)[which])]])


class _RepeatingSlots(SlotJob):
    def __init__(self, *given: object, seed: bytes | None, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self._seed = seed

    def drawn_seed(self) -> bytes:
        return self._seed or super().drawn_seed()


class OddSlotProduct(SlotProduct):
    """In an odd ring: one mask that is defined and one factor that is chosen, each times a factor of the server's."""

    kind = "response in odd slots"

    @cached_property
    def plan(self) -> OddPlan:
        return odd_plan(ODD, 1, 2, (((0, 0), (1, 1)),))

    @property
    def scheme(self) -> Scheme:
        return self.plan.scheme

    def uploads(self, seed: bytes, packed: memoryview) -> Iterator[tuple[str, Residues]]:
        kinds = ("upload in odd slots, defined", "upload in odd slots")
        return zip(kinds, read_slots(self.plan, seed, packed), strict=True)

    def job(self, party: int, which: int, seed: bytes | None = None) -> Job:
        return _OddProducts(self.plan, which, seed)


class _OddProducts(OddJob):
    """What is chosen is one of two, at either party."""

    def __init__(self, plan: OddPlan, which: int, seed: bytes | None) -> None:
        super().__init__(plan)
        self._which, self._seed = which, seed

    def chosen(self, defined: list[Words]) -> list[Words]:
        return [np.full(DEGREE, (0, ODD.modulus // 2)[self._which], np.uint64)]

    def factors(self) -> list[Words]:
        return [np.full(DEGREE, (1, ODD.modulus - 3)[self._which], np.uint64)] * 2

    def drawn_seed(self) -> bytes:
        return self._seed or super().drawn_seed()


SLOT_PRODUCTS = (SlotProduct(), OddSlotProduct())
