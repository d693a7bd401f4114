"""Comet's functions on CrypTen's tensors: they compute what they should, and CrypTen is as before afterwards.

CrypTen lives in one process here: its communicator of one party computes on the values themselves, by the same code.
`comet-lab bench peers` runs it between two processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.activation import smu_rule
from comet_mpc.functions.rule import Smu
from comet_research.crypten import LeakError as LeakError
from comet_research.crypten import Ranges, comet_functions, load_crypten

INSTALLED = find_spec("crypten") is not None and find_spec("torch") is not None
needs_crypten = pytest.mark.skipif(not INSTALLED, reason="crypten is not installed: see comet_research/crypten.py")


def test_without_crypten_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[load_crypten.__module__], "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"--no-deps crypten==0\.4\.1"):
        load_crypten()


@pytest.fixture(scope="module")
def crypten() -> Iterator[Any]:
    package = load_crypten()
    package.init()
    yield package
    package.uninit()


def secret(crypten: Any, values: Any) -> Any:
    torch = __import__("torch")
    return crypten.cryptensor(torch.from_numpy(np.asarray(values, np.float32)))


def plain(tensor: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(tensor.get_plain_text().numpy(), np.float64)


@needs_crypten
def test_the_certified_functions_are_those_that_comet_serves(crypten: Any) -> None:
    ranges = Ranges(activations=4.0, scores=8.0)
    x = np.linspace(-4.0, 4.0, 1001)
    rule = smu_rule(Smu(1 / 16), 1.0, ranges.steps, name=ranges.rule)
    with comet_functions("certified", ranges):
        assert np.abs(plain(secret(crypten, x).gelu()) - 4.0 * Smu(1 / 16)(x / 4.0, rule)).max() < 0.01
        t = np.geomspace(1 / 16, 16.0, 500)
        assert np.abs(plain(secret(crypten, t).inv_sqrt()) * np.sqrt(t) - 1.0).max() < 0.01
        scores = np.random.default_rng(1).normal(0.0, 2.0, (16, 32)).clip(-8.0, 8.0)
        weights = Smu(1 / 16)(scores / 8.0, rule) ** 2
        exact = weights / weights.sum(axis=-1, keepdims=True)
        assert np.abs(plain(secret(crypten, scores).softmax(-1)) - exact).max() < 0.01
        rows = np.random.default_rng(2).normal(1.0, 2.0, (8, 64))
        exact = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
        assert np.abs(plain(secret(crypten, rows).layer_norm()) - exact).max() < 0.01


@needs_crypten
@pytest.mark.parametrize("rule", ["linear", "quadratic", "cubic", "quartic", "minimax"])
def test_every_rule_of_the_roots_works(crypten: Any, rule: str) -> None:
    x = np.linspace(-1.0, 1.0, 301)
    expected = Smu(1 / 16)(x, smu_rule(Smu(1 / 16), 1.0, 3, name=rule))
    with comet_functions(ranges=Ranges(activations=1.0, rule=rule)):
        assert np.abs(plain(secret(crypten, x).gelu()) - expected).max() < 0.01


@needs_crypten
def test_afterwards_crypten_is_as_before(crypten: Any) -> None:
    kind = crypten.mpc.MPCTensor
    before = {name: getattr(kind, name, None) for name in ("inv_sqrt", "softmax", "gelu", "layer_norm")}
    with comet_functions():
        assert kind.softmax is not before["softmax"]
        with pytest.raises(RuntimeError), comet_functions(ranges=Ranges(activations=2.0)):
            raise RuntimeError
        assert kind.gelu is not None
    assert {name: getattr(kind, name, None) for name in before} == before
    assert before["gelu"] is None


@needs_crypten
def test_the_paper_needs_a_word_and_two_parties(crypten: Any) -> None:
    with pytest.raises(LeakError, match="permits_leaks"), comet_functions("paper"):
        pass
    with comet_functions("paper", permits_leaks=True), pytest.raises(ConfigurationError, match="two parties"):
        secret(crypten, [1.0]).inv_sqrt()
    with pytest.raises(ConfigurationError, match="unknown mode"), comet_functions("nonsense"):
        pass
    with pytest.raises(ConfigurationError, match="no rule"), comet_functions(ranges=Ranges(rule="exponential")):
        pass
