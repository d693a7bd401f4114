"""The same work by several systems, one after the other in one run: what it costs, and whether it is right.

All processes are on this machine and talk over the loopback device. Inputs are drawn once; forms whose inputs are
normalised get the same numbers, divided by a public bound.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from comet_mpc.errors import CometError
from comet_mpc.models.heads import Head
from comet_mpc.models.transformer import SHAPES
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import Tick, silent
from comet_research.bench.cases import OPERATIONS, Case, build
from comet_research.bench.models import ModelCase, ModelRecord, input_arrays, measure_model, random_weights
from comet_research.bench.operations import Record, measure
from comet_research.crew import Crew
from comet_research.peers import crypten_party
from comet_research.peers.environments import CRYPTEN, SPU, Environment
from comet_research.peers.inputs import LAYERS, TASKS, Reals

_SEED = 2024
_BOUND = 4.0
"""Of the activation's inputs."""
_SHAPE = "bert-base"
_RIGHT = 0.05
"""A result with a larger error, against the function that the system means to compute, is wrong; of two layers, with
twice as large a one."""


class PeerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task by one system. Bytes are both parties' together."""

    record: str = "peer"
    system: str
    task: str
    tokens: int
    configuration: str
    third_party: str
    online_bytes: int
    offline_bytes: int | None
    """None: made online, or not counted (see `configuration`)."""
    rounds: int
    """For SPU: messages that the busier party sends."""
    seconds: float
    offline_seconds: float = 0.0
    cpu_seconds: float
    """Both parties', offline included."""
    peak_rss: int
    max_abs_error: float
    """Against the function that the system means to compute."""
    usual_error: float | None = None
    """Against GELU and softmax."""
    right: bool


@dataclass(frozen=True)
class System:
    """run: task, tokens, file of arrays, environments' place → record."""

    configuration: str
    third_party: str
    run: Callable[[str, int, Path, Path], dict[str, object]]
    environment: Environment | None = None
    """None: this one."""

    def installing(self, place: Path) -> str:
        """What to tell somebody who waits for its environment."""
        ready = self.environment is None or self.environment.is_ready(place)
        return "" if ready else " (installing it first takes minutes)"


def _draw(task: str, tokens: int) -> dict[str, Reals]:
    """What peers get. Ours are drawn from the same seeds; of a layer, peers' rows are all tokens, since they know no
    padding, and rows of zeros would leave the ranges of the plug-in's functions."""
    if task in LAYERS:
        case = _layer_case(task, tokens, "dealer", "minimax")
        rows, _ = input_arrays(case, padded=False)
        weights = random_weights(case.shape, np.random.default_rng(case.seed))
        query, key, value = np.split(weights["layer.0.qkv.weight"].T, 3, axis=1)
        grown = math.sqrt(SHAPES[_SHAPE].hidden) * 0.5  # queries and keys are normalised for ours
        names = {"out": "output.weight", "up": "up.weight", "down": "down.weight"}
        others = {name: weights[f"layer.0.{full}"].T for name, full in names.items()}
        return {"x": rows[0], "query": query * grown, "key": key * grown, "value": value, **others}
    built = build(Case(task, "softmax" if task == "attention" else next(iter(OPERATIONS[task])), tokens, seed=_SEED))
    arrays = built.draw(np.random.default_rng(_SEED))
    if task == "activation":
        arrays = {"x": arrays["x"] * _BOUND}
    weights = built.draw_weights(np.random.default_rng(_SEED + 1))
    return {**arrays, **({"weight": weights["linear"].T} if weights else {})}


def _allowed(task: str) -> float:
    """The largest error of a right result."""
    return _RIGHT * LAYERS.get(task, 1)


def _layer_case(task: str, tokens: int, source: str, rule: str) -> ModelCase:
    """A label for every token: the last layer computes what its head reads, and peers compute all rows."""
    shape = replace(SHAPES[_SHAPE], layers=LAYERS[task], head=Head(kind="tokens"), pooler="none")
    return ModelCase(_SHAPE, shape, tokens, 3, source=source, rule=rule)


def _ours(source: str, rule: str) -> Callable[[str, int, Path, Path], dict[str, object]]:
    def run(task: str, tokens: int, arrays: Path, place: Path) -> dict[str, object]:
        with Crew() as crew:
            if task not in LAYERS:
                one = measure(crew, Case(task, _method(task), tokens, seed=_SEED), source=find_source(source))
                return _common(one) | {
                    "cpu_seconds": sum(one.cpu_seconds_by_party) + sum(one.offline_cpu_seconds_by_party),
                    "peak_rss": one.peak_rss,
                    "max_abs_error": one.max_abs_error,
                    "right": one.max_twin_error is not None and one.max_twin_error < _RIGHT,
                }
            whole = measure_model(crew, _layer_case(task, tokens, source, rule))
            return _common(whole) | {
                "cpu_seconds": sum(whole.cpu_seconds) + sum(whole.offline_cpu_seconds),
                "peak_rss": max(whole.peak_rss),
                "max_abs_error": whole.max_logit_difference,
                "right": whole.max_logit_difference < _allowed(task),
            }

    return run


def _common(record: Record | ModelRecord) -> dict[str, object]:
    names = ("online_bytes", "offline_bytes", "rounds", "seconds", "offline_seconds")
    return {name: getattr(record, name) for name in names}


def _method(task: str) -> str:
    """The rule that is served, where there is one for the task."""
    return next((name for name in ("quadratic", "minimax") if name in OPERATIONS[task]), next(iter(OPERATIONS[task])))


def run_crypten(module: str, arguments: list[str], place: Path) -> list[dict[str, Any]]:
    """A script of this package by both parties of CrypTen: what each has printed."""
    python = CRYPTEN.python(place)
    with tempfile.TemporaryDirectory() as directory:
        surroundings = {
            "WORLD_SIZE": "2", "RENDEZVOUS": f"file://{directory}/meeting", "DISTRIBUTED_BACKEND": "gloo",
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        words = [str(python), "-W", "ignore", "-m", module, *arguments]
        parties = [_start(words, surroundings | {"RANK": str(rank)}) for rank in (0, 1)]
        return [_record_of(party) for party in parties]


def _crypten(variant: str) -> Callable[[str, int, Path, Path], dict[str, object]]:
    def run(task: str, tokens: int, arrays: Path, place: Path) -> dict[str, object]:
        sides = run_crypten(crypten_party.__name__, [task, str(arrays), variant], place)
        first = sides[0]
        return {
            **{name: first[name] for name in ("online_bytes", "rounds", "max_abs_error", "usual_error")},
            "offline_bytes": None,
            "seconds": max(float(side["seconds"]) for side in sides),
            "cpu_seconds": sum(float(side["cpu_seconds"]) for side in sides),
            "peak_rss": max(int(side["peak_rss"]) for side in sides),
            "right": float(first["max_abs_error"]) < _allowed(task),
        }

    return run


def _spu(protocol: str) -> Callable[[str, int, Path, Path], dict[str, object]]:
    def run(task: str, tokens: int, arrays: Path, place: Path) -> dict[str, object]:
        words = [str(SPU.python(place)), str(Path(__file__).with_name("spu_parties.py")), task, str(arrays), protocol]
        found = _record_of(_start(words, {}))
        cpu = found.pop("cpu_seconds_by_party")
        return {
            **found,
            "offline_bytes": None,
            "cpu_seconds": sum(cpu),
            "right": float(found["max_abs_error"]) < _allowed(task),
        }

    return run


def _start(words: list[str], surroundings: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, env={**os.environ, **surroundings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _record_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a script of a peer printed last."""
    out, err = process.communicate()
    for line in reversed(out.splitlines()):
        if line.startswith("RECORD"):
            return dict(msgspec.json.decode(line.removeprefix("RECORD")))
    raise CometError(f"a peer failed with {process.returncode}: {(err or out).strip()[-400:]}")


_FIRST = "party 0 deals, which is not private; its bytes are not counted"
SYSTEMS: Mapping[str, System] = {
    "comet": System(
        "certified form, a layer by fitted functions, with a dealer; its offline phase included",
        "a dealer",
        _ours("dealer", "fitted"),
    ),
    "comet-pair": System(
        "certified form, a layer by fitted functions, no third party; offline included",
        "none",
        _ours("pair", "fitted"),
    ),
    "comet-quadratic": System("as comet, all by quadratic roots", "a dealer", _ours("dealer", "quadratic")),
    "comet-quadratic-pair": System("as comet-pair, all by quadratic roots", "none", _ours("pair", "quadratic")),
    "crypten": System(
        "0.4.1, GELU by tanh (its erf leaves its range), else as it comes", _FIRST, _crypten("own"), CRYPTEN
    ),
    "crypten-comet": System(
        "the same with Comet's certified functions plugged in", _FIRST, _crypten("certified"), CRYPTEN
    ),
    "crypten-paper": System(
        "the same with the paper's functions as printed, not private", _FIRST, _crypten("paper"), CRYPTEN
    ),
    "spu-semi2k": System("0.9.5, BumbleBee's GELU, clipped exp, 64 bits", "a trusted first party", _spu("SEMI2K"), SPU),
    "spu-cheetah": System("0.9.5, BumbleBee's GELU, clipped exp, 64 bits", "none", _spu("CHEETAH"), SPU),
}


def compare(
    systems: Iterable[str],
    tasks: Iterable[str],
    tokens: int,
    place: Path,
    known: Iterable[PeerRecord] = (),
    progress: Tick = silent,
) -> Iterator[PeerRecord]:
    """Everything that is not known yet, as it comes."""
    done = {(record.system, record.task, record.tokens) for record in known}
    wanted = [(s, t) for t in tasks for s in systems if (s, t, tokens) not in done]
    for count, (system, task) in enumerate(wanted):
        progress(count, len(wanted), f"{task} by {system}{SYSTEMS[system].installing(place)}")
        yield _one(system, task, tokens, place)


def _one(name: str, task: str, tokens: int, place: Path) -> PeerRecord:
    system = SYSTEMS[name]
    about = {
        "system": name, "task": task, "tokens": tokens, "configuration": system.configuration,
        "third_party": system.third_party,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        arrays = Path(directory) / "arrays.npz"
        drawn: dict[str, Any] = _draw(task, tokens)
        np.savez(arrays, **{key: drawn[key] for key in TASKS[task].names})
        found = system.run(task, tokens, arrays, place)
    return msgspec.convert({**about, **found}, PeerRecord)
