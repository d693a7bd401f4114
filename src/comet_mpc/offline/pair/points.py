"""How the point functions of a program are put together: which are prepared at once, with which transfers.

Every copy of a program has transfers of its own (`ot.renewal`), since keys hold a party's secret. `point_keys` makes
the keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from comet_mpc.engine.correlations import PointFunctions
from comet_mpc.errors import RandomnessError
from comet_mpc.offline.ot.extension import FOLD
from comet_mpc.offline.ot.point_keys import Making, PointKind, key_steps
from comet_mpc.offline.ot.renewal import renewal_sizes, renewal_steps
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.streaming import Item, Sizes, Steps, Work

_ROWS = 1 << 14
"""That are prepared together."""
_WIDEST = 62
"""Of masks, so that one more bit fits into a word."""
_PART = "row tables"


class PairRenewals(PairPreparer):
    """Before all others: what takes a while should not wait for it."""

    order = 5

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        size = len(unprepared.program) // unprepared.copies
        for copy in sorted({index // size for index, _ in unprepared.of(PointFunctions)}):
            yield _Renewed(copy)


class PairPoints(PairPreparer):
    order = 15

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        size = len(unprepared.program) // unprepared.copies
        groups: dict[tuple[int, PointKind], list[tuple[int, PointFunctions]]] = defaultdict(list)
        for index, entry in unprepared.of(PointFunctions):
            if not entry.whole or entry.width > _WIDEST:
                raise RandomnessError("two parties alone prepare point functions only for the top bits of a mask")
            groups[index // size, PointKind.of(entry)].append((index, entry))
        for (copy, kind), members in groups.items():
            for some in _batches(members):
                yield _Points(copy, kind, tuple((index, index % size, count) for index, count in some))


def _batches(members: Sequence[tuple[int, PointFunctions]]) -> Iterator[list[tuple[int, int]]]:
    """(index, rows) of correlations with up to `_ROWS` rows together, or of a larger one."""
    batch: list[tuple[int, int]] = []
    for index, entry in members:
        if batch and sum(count for _, count in batch) + entry.count > _ROWS:
            yield batch
            batch = []
        batch.append((index, entry.count))
    yield batch


@dataclass(frozen=True)
class _Renewed(Stage):
    """Transfers of a copy's own (`ot.renewal`)."""

    part = _PART

    copy: int

    @property
    def prepared(self) -> tuple[int, ...]:
        return ()

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [renewal_sizes(FOLD)]

    def run(self, bench: Workbench) -> Steps[None]:
        bench.renewed[self.copy] = yield from renewal_steps(bench.transfers)

    def work(self, program: object, steps: Iterator[Sequence[Item]]) -> Work[Item]:
        return Work(steps, _waited_for(self.copy), frozenset(), self.part)


def _waited_for(copy: int) -> frozenset[int]:
    """Stands for a copy's own transfers among the masks that stages wait for."""
    return frozenset({-1 - copy})


@dataclass(frozen=True)
class _Points(Stage):
    """Keys of one kind, for one copy of a program."""

    part = _PART

    copy: int
    kind: PointKind
    members: tuple[tuple[int, int, int], ...]
    """(index, the same in the copy, rows)"""

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(index for index, _, _ in self.members)

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.members)

    @property
    def sizes(self) -> list[list[Sizes]]:
        return self.kind.sizes(self.rows)

    @property
    def seconds(self) -> float:
        return 8e-9 * (self.rows << self.kind.index_bits)

    def work(self, program: object, steps: Iterator[Sequence[Item]]) -> Work[Item]:
        return Work(steps, frozenset(), _waited_for(self.copy), self.part)

    def run(self, bench: Workbench) -> Steps[None]:
        tables = [(number, rows) for _, number, rows in self.members]
        made = Making(self.kind, tables, bench.renewed[self.copy])
        yield from key_steps(made)
        for (index, _, _), arrays in zip(self.members, made.keys(), strict=True):
            bench.keep(index, arrays)
