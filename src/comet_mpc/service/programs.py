"""The programs of one model, by batch and bucket: both sides plan them on their own."""

from __future__ import annotations

import threading
from collections import OrderedDict

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import WeightCorrelation
from comet_mpc.engine.plan import Plan
from comet_mpc.errors import ShapeError
from comet_mpc.models.served import PublicModel
from comet_mpc.offline.source import Source

_MOST_KEPT = 64


class Programs:
    """Plans are made when they are asked for; the least recently used are forgotten."""

    def __init__(self, model: PublicModel, source: Source) -> None:
        self._model, self._source = model, source
        self._weights = {name: weight.public() for name, weight in model.weights().items()}
        self._plans: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, batch: int, bucket: int) -> Plan:
        with self._lock:
            plan = self._plans.get((batch, bucket))
            if plan is None:
                if bucket not in self._model.buckets():
                    raise ShapeError(f"this model has no bucket of {bucket} tokens: {self._model.buckets()}")
                plan = self._plans[batch, bucket] = self._model.plan(batch, bucket, self._source)
                if len(self._plans) > _MOST_KEPT:
                    self._plans.popitem(last=False)
            self._plans.move_to_end((batch, bucket))
            return plan

    def weights(self) -> tuple[Weight, ...]:
        """Public part of every weight that has a masked form, in the order of their first use, and of the download."""
        plan = self.plan(1, self._model.buckets()[0])
        used = dict.fromkeys(c.weight for c in plan.correlations if isinstance(c, WeightCorrelation))
        return tuple(self._weights[name] for name in used)
