"""A window of positions, and what a program does with what earlier windows have opened."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from comet_mpc.engine.session import Session
from comet_mpc.engine.tensors import Opened
from comet_mpc.errors import ForeignRandomness, ShapeError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Positions first … stop-1 of a program of `total`."""

    first: int
    stop: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop <= self.total:
            raise ShapeError(f"positions {self.first} to {self.stop} of {self.total} are no window")

    @property
    def size(self) -> int:
        return self.stop - self.first

    def cut(self, whole: Shape, own: Shape) -> tuple[slice, ...]:
        """Which part of a tensor of the whole program a window's tensor is.

        One axis must have the window's own positions: without it other windows would be given the same part.
        """
        if len(whole) != len(own):
            raise ForeignRandomness(f"a tensor of shape {own} is no part of one of shape {whole}")
        cut = tuple(self._axis(*sizes) for sizes in zip(whole, own, strict=True))
        if self.size < self.total and slice(self.first, self.stop) not in cut:
            raise ForeignRandomness(f"a tensor of shape {own} has no axis of the positions {self.first} to {self.stop}")
        return cut

    def _axis(self, whole: int, own: int) -> slice:
        if whole == own:
            return slice(None)
        if whole == self.total and own in (self.size, self.stop):
            return slice(self.first if own == self.size else 0, self.stop)
        raise ForeignRandomness(f"{own} elements are no part of {whole} for positions {self.first} to {self.stop}")


def with_past(session: Session, name: str, opened: Opened, window: Window, axis: int) -> Opened:
    """The rows of all positions so far along an axis, opened before or now; kept for the next window."""
    if window.first:
        opened = _joined(_first(session.kept(name, Opened), window.first, axis), opened, axis)
    session.keep(name, opened)
    return opened


def _first(opened: Opened, count: int, axis: int) -> Opened:
    """The first rows of an opened tensor: a plan has kept those of all positions."""
    shape = list(opened.shape)
    if shape[axis] == count:
        return opened
    shape[axis] = count
    return replace(opened, shape=tuple(shape), known={}).with_mask(None)


def _joined(first: Opened, second: Opened, axis: int) -> Opened:
    """Rows under the same mask of the whole program, one after the other."""
    if (first.mask, first.ring, first.fraction) != (second.mask, second.ring, second.fraction) or first.step:
        raise ShapeError("rows that were opened under different masks cannot be put together")
    shape = list(first.shape)
    shape[axis] += second.shape[axis]
    bound = max(first.bound, second.bound)
    if first.public is None or second.public is None:
        return replace(second, shape=tuple(shape), bound=bound, known={}).with_mask(None)
    public = np.concatenate([first.words(), second.words()], axis=axis)
    joined = replace(second, shape=tuple(shape), bound=bound, public=public, known={})
    if not first.known:  # a twin has no masks
        return joined
    return joined.with_mask(np.concatenate([first.own_mask(), second.own_mask()], axis=axis))
