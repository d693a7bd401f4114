"""Requests that wait for a round that happens anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from comet_mpc.engine.ops.operation import Request

Made = TypeVar("Made")


class Deferred(Generic[Made]):
    """A request (and what follows from it) that rides along with rounds that happen anyway. See `Session.defer`."""

    def __init__(
        self,
        communicate: Callable[[], object],
        request: Request[Any],
        then: Sequence[Callable[..., Request[Any]]],
        part: str,
    ) -> None:
        """part: of the program, which it is for"""
        self._communicate, self.part = communicate, part
        self._request: Request[Any] | None = request
        self._then = list(then)
        self._value: object = None

    @property
    def request(self) -> Request[Any] | None:
        """What is still to be carried out."""
        return self._request

    def advance(self, value: object) -> None:
        self._value = value
        self._request = self._then.pop(0)(value) if self._then else None

    def result(self) -> Made:
        """The last request's result; whatever was not carried along by now takes rounds of its own."""
        while self._request is not None:
            self._communicate()
        return cast(Made, self._value)
