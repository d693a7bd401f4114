"""A preparation is a list of stages: one list, by which a program is planned, prepared and stored.

What a stage sends is planned, and then done, by the same object.

A `PairPreparer` lists the stages of its kinds of randomness, and takes their correlations off the list of those that
are left. Preparers come in their `order`, whoever registered them first, so that both parties find the same stages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, TypeVar

from comet_mpc.engine.correlations import AnyMask, Correlation, repeated
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import RandomnessError
from comet_mpc.net.channel import Traffic
from comet_mpc.offline import registry
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.streaming import Item, Planned, Sizes, Steps, Work, planned_rounds

BATCH = 1 << 19
"""Elements of small tensors that are prepared together."""

Kind = TypeVar("Kind", bound=Correlation)
Common = TypeVar("Common")


class Stage(ABC):
    """Correlations that are prepared together."""

    part: ClassVar[str]
    """What its bytes are spent on, in words."""

    @property
    @abstractmethod
    def prepared(self) -> tuple[int, ...]:
        """Indices of the correlations that it prepares."""

    @property
    def free_masks(self) -> frozenset[int]:
        """Indices of the masks whose words at the client may be what its ciphertexts say; its bundle stores them."""
        return frozenset()

    @property
    @abstractmethod
    def sizes(self) -> Sequence[Sequence[Sizes]]:
        """Of the requests that `run` makes, step by step."""

    @property
    def traffic(self) -> Traffic:
        """Bytes that `run` sends and receives, as the client counts them."""
        return sum((one.traffic(CLIENT) for step in self.sizes for one in step), Traffic())

    @property
    def seconds(self) -> float:
        """About how long it takes, beside the time for its bytes."""
        return 0.0

    @abstractmethod
    def run(self, bench: Workbench) -> Steps[None]:
        """Does one party's side of it. Other stages may begin while its requests are in flight (`streaming`)."""

    def used_masks(self, program: Sequence[Correlation]) -> frozenset[int]:
        """Indices of the masks that it needs and does not define."""
        named = (reference.mask for index in self.prepared for reference in program[index].facts.references)
        return frozenset(named) - self.free_masks

    def work(self, program: Sequence[Correlation], steps: Iterator[Sequence[Item]]) -> Work[Item]:
        """The stage in its order among the others, planned or carried out."""
        return Work(steps, self.free_masks, self.used_masks(program), self.part)


@dataclass(frozen=True)
class Unprepared:
    """A program, several copies of it one after the other, and what no stage prepares yet."""

    program: tuple[Correlation, ...]
    copies: int
    left: dict[int, Correlation] = field(default_factory=dict)

    def of(self, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
        return ((index, entry) for index, entry in self.left.items() if isinstance(entry, kind))

    def batches(
        self, kind: type[Kind], common: Callable[[Kind], Common]
    ) -> Iterator[tuple[Common, tuple[tuple[int, Kind], ...]]]:
        """Correlations of a kind, with their indices, by what they have in common; in batches of bounded size."""
        groups: dict[Common, list[tuple[int, Kind]]] = defaultdict(list)
        for index, entry in self.of(kind):
            groups[common(entry)].append((index, entry))
        for name, members in groups.items():
            batch: list[tuple[int, Kind]] = []
            elements = 0
            for member in members:
                size = member[1].facts.elements
                if batch and elements + size > BATCH:
                    yield name, tuple(batch)
                    batch, elements = [], 0
                batch.append(member)
                elements += size
            yield name, tuple(batch)


class PairPreparer(ABC):
    """How two parties prepare a kind between themselves, or several kinds that share ciphertexts."""

    order: ClassVar[int]
    """Those with a lower one come first: matrix products, which define masks that others use, before all."""

    @abstractmethod
    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        """Its stages, in order."""


def arranged(once: Sequence[Correlation], copies: int = 1) -> tuple[Stage, ...]:
    """All stages of so many copies of a program together."""
    return _arranged(tuple(once), copies)


@lru_cache(maxsize=4)  # planning, preparing and storing a bundle ask for the same
def _arranged(once: tuple[Correlation, ...], copies: int) -> tuple[Stage, ...]:
    return tuple(_stages(repeated(once, copies), copies))


def _stages(program: tuple[Correlation, ...], copies: int) -> Iterator[Stage]:
    left = {index: entry for index, entry in enumerate(program) if not isinstance(entry, AnyMask)}
    for preparer in sorted(registry.PAIR.values(), key=lambda preparer: preparer.order):
        stages = tuple(preparer.stages(Unprepared(program, copies, left)))
        taken = {index for stage in stages for index in stage.prepared}
        left = {index: entry for index, entry in left.items() if index not in taken}
        yield from stages
    for entry in left.values():
        raise RandomnessError(f"two parties alone do not know how to prepare {type(entry).__name__}")


def stage_rounds(once: Sequence[Correlation], copies: int = 1) -> Counter[str]:
    """Rounds of carrying out all stages, by their parts."""
    program = repeated(once, copies)
    return planned_rounds(
        stage.work(program, iter([[Planned(one) for one in step] for step in stage.sizes]))
        for stage in arranged(once, copies)
    )


def masks_by_ciphertext(program: Sequence[Correlation]) -> frozenset[int]:
    """Indices of the masks whose words at the client may be what its ciphertexts say; it stores them in its bundle."""
    return frozenset(mask for stage in arranged(program) for mask in stage.free_masks)
