"""The programs of one model, by batch and bucket: both sides plan them on their own, once, and keep the plans."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import WeightCorrelation
from comet_mpc.engine.plan import Plan
from comet_mpc.errors import ShapeError
from comet_mpc.models.writing.packages import Model, writing
from comet_mpc.offline.source import Source
from comet_mpc.service.kept_plans import KeptPlans

if TYPE_CHECKING:
    from comet_mpc.engine.windows import WindowPlan

_MOST_IN_MEMORY = 64
_MOST_CONVERSATIONS = 2


class Programs:
    """Plans are made when they are asked for and nobody has made them before; see `KeptPlans`.

    home     where they are kept; None: in memory only
    planned  callback(size) when a plan is made
    """

    def __init__(
        self,
        model: Model,
        source: Source,
        home: Path | None = None,
        planned: Callable[[int, int], None] = lambda batch, bucket: None,
    ) -> None:
        self._model, self._source, self._planned = model, source, planned
        self._weights = {name: weight.public() for name, weight in model.weights().items()}
        self._kept = None if home is None else KeptPlans(home, model, source)
        self._plans: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._conversations: OrderedDict[int, WindowPlan] = OrderedDict()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def known(self, batch: int, bucket: int) -> Plan | None:
        """The plan, unless it is still to be made."""
        with self._lock:
            return self._known(batch, bucket)

    def plan(self, batch: int, bucket: int) -> Plan:
        with self._lock:
            plan = self._known(batch, bucket)
            if plan is None:
                plan = self._make(batch, bucket) if self._kept is None else self._kept.make(batch, bucket, self._make)
                self._remember((batch, bucket), plan)
            return plan

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Batch and bucket of every program that was planned, by its digest."""
        if self._kept is None:
            return {plan.digest: size for size, plan in self._plans.items()}
        for size in set(self._kept.sizes()) - set(self._sizes.values()):
            plan = self._kept.find(*size)
            if plan is not None:
                self._sizes[plan.digest] = size
        return self._sizes

    def _known(self, batch: int, bucket: int) -> Plan | None:
        if bucket not in self._model.buckets():
            raise ShapeError(f"this model has no bucket of {bucket} tokens: {self._model.buckets()}")
        plan = self._plans.get((batch, bucket))
        if plan is None and self._kept is not None:
            plan = self._kept.find(batch, bucket)
        if plan is not None:
            self._remember((batch, bucket), plan)
        return plan

    def _remember(self, size: tuple[int, int], plan: Plan) -> None:
        """The least recently used are forgotten."""
        if self._kept is not None:
            self._kept.note_use()
        self._plans[size] = plan
        self._plans.move_to_end(size)
        if len(self._plans) > _MOST_IN_MEMORY:
            self._plans.popitem(last=False)

    def _make(self, batch: int, bucket: int) -> Plan:
        plan = self._model.plan(batch, bucket, self._source)
        self._planned(batch, bucket)
        return plan

    def conversation(self, positions: int) -> WindowPlan:
        """The program of a conversation, of which `plan` keeps what is prepared alone. Not kept on disk."""
        model = writing(self._model)
        with self._lock:
            if positions not in self._conversations:
                self._conversations[positions] = model.conversation(positions, self._source)
                if len(self._conversations) > _MOST_CONVERSATIONS:
                    self._conversations.popitem(last=False)
            return self._conversations[positions]

    def weights(self) -> tuple[Weight, ...]:
        """Public part of every weight that has a masked form, in the order of their first use, and of the download."""
        plan = self.plan(1, self._model.buckets()[0])
        used = dict.fromkeys(c.weight for c in plan.correlations if isinstance(c, WeightCorrelation))
        return tuple(self._weights[name] for name in used)
