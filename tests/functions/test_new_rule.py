"""A new rule is one class and one line: it plans, runs, is stored, is served and is trained, and no other file changes.

The rule is a straight line through sqrt(t). Everything that is asked of a rule is in its class.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import comet_mpc
from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import CheckpointError, RuleError
from comet_mpc.functions import rules
from comet_mpc.functions.activation import smu, smu_rule
from comet_mpc.functions.rule import Rule, Smu, Wanted
from comet_mpc.models.checkpoint import Site
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.testing import run_two_parties
from support.toy_model import TINY, make_checkpoint, twin_logits

_BITS = 12


@dataclass(frozen=True)
class LineRule(Rule):
    """sqrt(t) ≈ a + b·t, b the slope of the chord, a half way between chord and tangent. Opens nothing."""

    low: float
    high: float
    a: float
    b: float

    stored_as = "line"
    certified = True

    @staticmethod
    def make(wanted: Wanted) -> LineRule:
        ends = math.sqrt(wanted.low), math.sqrt(wanted.high)
        b = round(2**_BITS / sum(ends)) * 2.0**-_BITS
        a = 0.5 * (ends[0] - b * wanted.low + 0.25 / b)
        return LineRule(wanted.low, wanted.high, round(a * 2**_BITS) * 2.0**-_BITS, b)

    def root(self, t: Any) -> Any:
        return self.a + self.b * t

    @property
    def stable_top(self) -> float:
        return 2.0 * self.high

    @property
    def root_error(self) -> float:
        """At the ends, or where the line is parallel to the root."""
        points = np.array([self.low, self.high, 0.25 / self.b**2])
        return float(np.max(np.abs(self.root(points) - np.sqrt(points)))) / math.sqrt(self.high)

    @property
    def root_rounding(self) -> float:
        return 0.0

    def check(self) -> None:
        if not (0.0 < self.low < self.high and 0.0 < self.b < 16.0 and self.a >= 0.0):
            raise RuleError("a line must rise from above zero")

    def added(self, top: float) -> float:
        return top * 2.0 ** (_BITS + 1)  # b has as many fraction bits, and a whole one

    def square_root(self, session: Session, t: Share) -> Share:
        self.check_argument(session, t.bound)
        scaled = t.times(round(self.b * 2**_BITS)).times_power(-_BITS)
        return session.add_constant(scaled, self.a)


@pytest.fixture
def line() -> Iterator[None]:
    rules.register(LineRule, {"line": LineRule.make})
    yield
    del rules.RULES["line"], rules.STORED["line"]
    rules.SERVING.remove("line")


@pytest.mark.usefixtures("line")
@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_new_rule_is_planned_and_run_by_twin_and_parties(source: str) -> None:
    form = Smu(0.25)
    rule = smu_rule(form, 1.0, None, name="line")
    x = np.linspace(-1.0, 1.0, 64)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return smu(session, session.private(CLIENT, x.shape, 14, 1.0, x), form, rule)

    run = run_two_parties(program, source=source, tolerance=2.0**-9)  # type: ignore[arg-type]
    assert np.max(np.abs(run.value - form(x, rule))) < 2.0**-9
    assert np.max(np.abs(run.value - form(x))) < 0.5 * rule.root_error * math.sqrt(rule.high) + 2.0**-9
    assert plan_program(lambda session: program(session, {})).rounds == 2


@pytest.mark.usefixtures("line")
def test_a_new_rule_is_stored_and_served(tmp_path: Path) -> None:
    model = ServedModel.load(make_checkpoint(tmp_path, **TINY | {"rule": "line"}))
    received = PublicModel.unpack(model.package())
    for config in (model.config, received.config):
        assert isinstance(config.sites["activation"].rule, LineRule)
        assert config.sites["scores"].rule == model.config.sites["scores"].rule
    query = model.encode(["good film", "a bad plot"])
    assert np.max(np.abs(twin_logits(model, query) - model.plain_logits(query))) < 0.05


@pytest.mark.usefixtures("line")
def test_what_is_stored_of_a_new_rule_is_checked(tmp_path: Path) -> None:
    config, _ = load_checkpoint(make_checkpoint(tmp_path, **TINY | {"rule": "line"}))
    stored = msgspec.to_builtins(config.sites["activation"])
    assert msgspec.convert(stored, Site) == config.sites["activation"]
    for changes in ({"kind": "curve"}, {"numbers": {"low": 1.0}}, {"numbers": stored["numbers"] | {"a": "1"}}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(stored | changes, Site)
    with pytest.raises(CheckpointError, match=r"Expected a 1/sqrt rule, found a sqrt rule"):
        _ = config.sites["activation"].inverse


@pytest.mark.usefixtures("line")
@pytest.mark.train
def test_torch_evaluates_and_differentiates_a_new_rule() -> None:
    torch = pytest.importorskip("torch")
    from comet_mpc.train import steps

    rule = smu_rule(Smu(0.25), 1.0, None, name="line")
    x = torch.linspace(-1.0, 1.0, 33, dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(steps.smu(x, 0.25, 0.0, rule).detach().numpy(), Smu(0.25)(x.detach().numpy(), rule))
    assert torch.autograd.gradcheck(lambda z: steps.smu(z, 0.25, 0.1, rule), x)


def test_nobody_asks_which_rule_it_is() -> None:
    """Only the registry and what checkpoints have always stored name a class of rules beside its own file."""
    root = Path(comet_mpc.__file__).parent
    asked = re.compile(r"isinstance\([^)]*Rule\b|case \w*Rule\(")
    found = [path for part in ("functions", "models", "train", "service") for path in (root / part).rglob("*.py")]
    assert not [path.name for path in found if asked.search(path.read_text())]
    naming = {path.name for path in found if re.search(r"\bRootRule\b", path.read_text())}
    assert naming == {"root_rule.py", "rules.py", "checkpoint.py"}
