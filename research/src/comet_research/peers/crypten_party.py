"""One party of CrypTen: computes one task of `inputs`, with its own functions or with Comet's. Prints its record.

    python -m comet_research.peers.crypten_party TASK ARRAYS own|certified|paper

The rank and the meeting place come by environment variables, as CrypTen wants them. Its best configuration that gives
right results: GELU by tanh, since its erf leaves its range; everything else as it comes.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from typing import Any

import numpy as np

from comet_mpc.functions.activation import smu_rule
from comet_mpc.functions.rule import Smu
from comet_research.crypten import Ranges, comet_functions, load_crypten
from comet_research.peers.inputs import HEAD, HEADS, HIDDEN, TASKS, USUAL, Functions, Reals, load, smooth

CLIENT, SERVER = 0, 1
_RANGES = Ranges(activations=4.0, scores=8.0, variances=(1 / 16, 64.0))


def begin() -> Any:
    """CrypTen, connected, on one core."""
    crypten = load_crypten()
    sys.modules["torch"].set_num_threads(1)
    crypten.init()
    return crypten


def functions_of(variant: str, ranges: Ranges) -> contextlib.AbstractContextManager[None]:
    """CrypTen's own functions in the block, or Comet's."""
    if variant == "own":
        return contextlib.nullcontext()
    return comet_functions(variant, ranges, permits_leaks=variant == "paper")


def stands_for(variant: str, ranges: Ranges) -> Functions:
    """What is meant to be computed: with Comet's functions, their public polynomials included."""
    if variant == "own":
        return USUAL
    if variant == "paper":
        form = Smu(1 / math.sqrt(2.0))
        return smooth(lambda x, _: form(x), 1.0, 1.0, 1)
    rule = smu_rule(Smu(1 / 16), 1.0, ranges.steps, name=ranges.rule)
    return smooth(lambda x, bound: Smu(1 / 16)(x / bound, rule) * bound, ranges.activations, ranges.scores, 2)


def decoded(tensor: Any) -> Reals:
    """The values, exactly. CrypTen's own decoding is off by 1 for some negative numbers just above a whole one."""
    return np.asarray(tensor.reveal().numpy() / float(tensor.encoder.scale))


def compute_gelu(x: Any) -> Any:
    if hasattr(x, "gelu"):
        return x.gelu()
    inner = (x * x * x * 0.044715 + x) * math.sqrt(2.0 / math.pi)
    return (inner.tanh() + 1) * x * 0.5


def compute_layer_norm(x: Any) -> Any:
    if hasattr(x, "layer_norm"):
        return x.layer_norm()
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-12).inv_sqrt()


def _attend(q: Any, k: Any, v: Any) -> Any:
    return (q.matmul(k.transpose(-1, -2)) * (1 / math.sqrt(HEAD))).softmax(-1).matmul(v)


def _heads(x: Any) -> Any:
    return x.reshape(x.size(0), HEADS, HEAD).permute(1, 0, 2)


def _layer(a: dict[str, Any]) -> Any:
    x = a["x"]
    context = _attend(*(_heads(x.matmul(a[name])) for name in ("query", "key", "value")))
    middle = compute_layer_norm(x + context.permute(1, 0, 2).reshape(x.size(0), HIDDEN).matmul(a["out"]))
    return compute_layer_norm(middle + compute_gelu(middle.matmul(a["up"])).matmul(a["down"]))


def _two_layers(a: dict[str, Any]) -> Any:
    return _layer({**a, "x": _layer(a)})


COMPUTE = {
    "inverse_sqrt": lambda a: a["x"].inv_sqrt(),
    "activation": lambda a: compute_gelu(a["x"]),
    "attention": lambda a: _attend(a["q"], a["k"], a["v"]),
    "layer_norm": lambda a: compute_layer_norm(a["x"]),
    "linear": lambda a: a["x"].matmul(a["weight"]),
    "layer": _layer,
    "two_layers": _two_layers,
}


def main(task: str, path: str, variant: str) -> dict[str, Any]:
    crypten, torch = begin(), sys.modules["torch"]
    communicator = crypten.communicator.get()
    sys.modules["crypten.config"].cfg.communicator.verbose = True
    wanted, values = TASKS[task], load(path)
    arrays = {
        name: crypten.cryptensor(
            torch.from_numpy(values[name].astype(np.float32)), src=CLIENT if name in wanted.inputs else SERVER
        )
        for name in wanted.names
    }
    with functions_of(variant, _RANGES):
        communicator.barrier()
        communicator.reset_communication_stats()
        began, cpu = time.perf_counter(), time.process_time()
        result = COMPUTE[task](arrays)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        stats = communicator.get_communication_stats()
    plain = decoded(result)
    meant = stands_for(variant, _RANGES)
    error, usual = (np.abs(plain - wanted.exact(values, functions)) for functions in (meant, USUAL))
    return {
        "online_bytes": int(stats["bytes"]),
        "rounds": int(stats["rounds"]),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "max_abs_error": float(error.max()),
        "usual_error": float(usual.max()),
    }


if __name__ == "__main__":
    record = main(*sys.argv[1:4])
    print("RECORD" + json.dumps(record), flush=True)
