"""Products of bits, one known to each party, by oblivious transfer: what truncation uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from comet_mpc.engine.correlations import BitProducts
from comet_mpc.offline.ot.extension import bit_products_sizes, bit_products_steps
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.streaming import Sizes, Steps


class PairBits(PairPreparer):
    order = 20

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        for (width, modulus), members in unprepared.batches(BitProducts, lambda e: (e.width, e.modulus)):
            yield _Bits(width, modulus, members)


@dataclass(frozen=True)
class _Bits(Stage):
    part = "bits of truncation"

    width: int
    modulus: int
    members: tuple[tuple[int, BitProducts], ...]

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(index for index, _ in self.members)

    @property
    def padded(self) -> list[int]:
        """Bits of each member, in whole bytes."""
        return [-(-entry.count // 8) * 8 for _, entry in self.members]

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [bit_products_sizes(sum(self.padded), self.width, self.modulus)]

    def run(self, bench: Workbench) -> Steps[None]:
        total = sum(self.padded)
        bits, shares = yield from bit_products_steps(bench.transfers, total, self.width, self.modulus)
        start = 0
        for (index, entry), size in zip(self.members, self.padded, strict=True):
            own = bits[start // 8 : (start + size) // 8].copy()
            if entry.count % 8:
                own[-1] &= (1 << entry.count % 8) - 1
            bench.keep(index, (own, shares[start : start + entry.count].copy()))  # type: ignore[arg-type]
            start += size
