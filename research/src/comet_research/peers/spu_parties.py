"""SPU: compiles one task of `inputs`, runs it by two processes that are connected by TCP, and prints their record.

    python spu_parties.py TASK ARRAYS CHEETAH|SEMI2K
    python spu_parties.py party RANK DIRECTORY PORT PORT

Run by an environment that has spu 0.9.5 and nothing of this package, so `inputs` is imported from beside this file.
Its best configuration for Transformers: GELU by BumbleBee's piecewise polynomials, softmax with a clipped exponential,
1/sqrt of lower accuracy; a ring of 64 bits with 18 fraction bits. CHEETAH makes its randomness as it goes. SEMI2K has
it from a trusted first party, which SPU calls a mode for debugging.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from inputs import HEAD, HEADS, HIDDEN, TASKS, USUAL, load  # type: ignore[import-not-found]

_LINK = re.compile(r"total send bytes (\d+), recv bytes (\d+), send actions (\d+)")
_CUBIC = (-0.5054031199708174, -0.42226581151983866, -0.11807612951181953, -0.011034134030615728)
_SEXTIC = (
    0.008526321541038084, 0.5, 0.3603292692789629, 0.0, -0.037688200365904236, 0.0, 0.0018067462606141187,
)  # fmt: skip


def _functions() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    def gelu(x: Any) -> Any:
        """BumbleBee's (and PUMA's) polynomials: on [-4, -1.95] of degree 3, on [-1.95, 3] of degree 6."""
        low, middle, high = x < -4.0, x < -1.95, x > 3.0
        powers = [x]
        for _ in range(5):
            powers.append(powers[-1] * x)
        cubic = _CUBIC[0] + sum(c * p for c, p in zip(_CUBIC[1:], powers, strict=False))
        sextic = _SEXTIC[0] + sum(c * p for c, p in zip(_SEXTIC[1:], powers, strict=False) if c)
        inside = jnp.logical_not(middle | high)
        return jnp.logical_xor(low, middle) * cubic + inside * sextic + high * x

    def softmax(x: Any) -> Any:
        x = x - jnp.max(x, axis=-1, keepdims=True)
        powers = jnp.exp(x) * (x > -14.0)
        return powers / jnp.sum(powers, axis=-1, keepdims=True)

    def layer_norm(x: Any) -> Any:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-6)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ jnp.swapaxes(k, -1, -2) / math.sqrt(HEAD)) @ v

    def layer(a: dict[str, Any]) -> Any:
        rows = a["x"].shape[0]
        q, k, v = (
            jnp.transpose((a["x"] @ a[name]).reshape(rows, HEADS, HEAD), (1, 0, 2))
            for name in ("query", "key", "value")
        )
        context = jnp.transpose(attend(q, k, v), (1, 0, 2)).reshape(rows, HIDDEN)
        middle = layer_norm(a["x"] + context @ a["out"])
        return layer_norm(middle + gelu(middle @ a["up"]) @ a["down"])

    return {
        "inverse_sqrt": lambda a: jax.lax.rsqrt(a["x"]),
        "activation": lambda a: gelu(a["x"]),
        "attention": lambda a: attend(a["q"], a["k"], a["v"]),
        "layer_norm": lambda a: layer_norm(a["x"]),
        "linear": lambda a: a["x"] @ a["weight"],
        "layer": layer,
        "two_layers": lambda a: layer({**a, "x": layer(a)}),
    }


def _config(protocol: str) -> Any:
    import spu.libspu as libspu

    config = libspu.RuntimeConfig()
    config.protocol = getattr(libspu.ProtocolKind, protocol)
    config.field = libspu.FieldType.FM64
    config.fxp_fraction_bits = 18
    config.enable_lower_accuracy_rsqrt = True
    config.enable_pphlo_profile = True
    config.experimental_enable_colocated_optimization = True
    return config


def main(task: str, path: str, protocol: str) -> dict[str, Any]:
    import spu
    import spu.libspu as libspu
    from spu.utils import frontend

    wanted, values = TASKS[task], load(path)
    arrays = {name: values[name].astype(np.float32) for name in wanted.names}
    names = list(arrays)
    compute = _functions()[task]
    executable, _ = frontend.compile(
        frontend.Kind.JAX, lambda *values: compute(dict(zip(names, values, strict=True))), list(arrays.values()), {},
        names, [libspu.Visibility.VIS_SECRET] * len(names), lambda out: [f"out{place}" for place in range(len(out))],
    )  # fmt: skip
    config = _config(protocol)
    io = spu.Io(2, config)
    with tempfile.TemporaryDirectory() as place:
        shares = {
            n: io.make_shares(arrays[n], libspu.Visibility.VIS_SECRET, -1 if n in wanted.inputs else 1) for n in names
        }
        for rank in (0, 1):
            content = (protocol, executable, {name: both[rank] for name, both in shares.items()})
            (Path(place) / f"in{rank}").write_bytes(pickle.dumps(content))
        ports = _free_ports()
        parties = [
            subprocess.Popen(
                [sys.executable, __file__, "party", str(rank), place, *ports],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        said = [party.communicate()[0] for party in parties]
        if any(party.returncode for party in parties):
            raise SystemExit("\n".join(text[-1500:] for text in said))
        sides = [pickle.loads((Path(place) / f"out{rank}").read_bytes()) for rank in (0, 1)]
    links = [_LINK.findall(text)[-1] for text in said]
    result = io.reconstruct([side["share"] for side in sides])
    error = np.abs(result - wanted.exact(values, USUAL))
    return {
        "online_bytes": sum(int(sent) for sent, _, _ in links),
        "rounds": max(int(actions) for _, _, actions in links),
        "seconds": max(side["seconds"] for side in sides),
        "cpu_seconds_by_party": [side["cpu"] for side in sides],
        "peak_rss": max(side["rss"] for side in sides),
        "max_abs_error": float(error.max()),
        "usual_error": float(error.max()),
    }


def _free_ports() -> list[str]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def party(rank: int, place: Path, ports: list[str]) -> None:
    import spu
    import spu.libspu as libspu

    protocol, executable, shares = pickle.loads((place / f"in{rank}").read_bytes())
    description = libspu.link.Desc()
    description.recv_timeout_ms = 3_600_000
    description.http_timeout_ms = 3_600_000
    for other, port in enumerate(ports):
        description.add_party(f"party{other}", f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(description, rank)
    runtime = spu.Runtime(link, _config(protocol))
    for name, share in shares.items():
        runtime.set_var(name, share)
    link.barrier()
    began, before = time.perf_counter(), time.process_time()
    runtime.run(executable)
    seconds, cpu = time.perf_counter() - began, time.process_time() - before
    (output,) = executable.output_names
    side = {
        "share": runtime.get_var(output),
        "seconds": seconds,
        "cpu": cpu,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    (place / f"out{rank}").write_bytes(pickle.dumps(side))
    link.stop_link()


if __name__ == "__main__":
    if sys.argv[1] == "party":
        party(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        print("RECORD" + json.dumps(main(*sys.argv[1:4])), flush=True)
