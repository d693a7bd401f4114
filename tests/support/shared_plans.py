"""Plans that the services and clients of this process share: planning takes longer than most of what tests do with it.

A plan follows from public facts alone. That client and server find the same one, each on its own, is tested where they
are processes (`tests/service`), and where models plan (`tests/models/test_ways.py`): nothing is shared there.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from comet_mpc.engine.plan import Plan
from comet_mpc.models.public import PublicModel
from comet_mpc.offline.source import Source
from comet_mpc.service.programs import Programs

__all__ = ["share_plans"]

_plans: dict[tuple[bytes, int, int, str], Plan] = {}
_lock = threading.Lock()
_PLAN = PublicModel.plan


class _Remembering:
    """A model that plans what nobody has planned before."""

    def __init__(self, model: PublicModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def plan(self, batch: int, bucket: int, source: Source) -> Plan:
        if PublicModel.plan is not _PLAN:  # a test looks at who plans
            return self._model.plan(batch, bucket, source)
        key = self._model.planned_from(), batch, bucket, source.name
        with _lock:
            if key not in _plans:
                _plans[key] = self._model.plan(batch, bucket, source)
            return _plans[key]


def share_plans(patch: pytest.MonkeyPatch) -> None:
    """All `Programs` from now on."""
    begin = Programs.__init__

    def begun(self: Programs, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        if isinstance(self._model, PublicModel):
            self._model = _Remembering(self._model)  # type: ignore[assignment]

    patch.setattr(Programs, "__init__", begun)
