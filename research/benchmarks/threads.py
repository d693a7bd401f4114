"""How long `comet serve` takes to let clients in, and `comet unify` to convert a model, alone and beside a load.

python research/benchmarks/threads.py MODEL [--load 8] [--repeats 3] [--note TEXT] [--json FILE|-]

MODEL is a Hugging Face checkpoint, for example MiniLM. Each is measured with the threads that Comet chooses and with
those that numeric libraries take by themselves, one after the other. The load is that of another user: processes in a
session of their own, each of which keeps a core busy. A process that computes on one core gets a share of 2 cores
beside 8 such processes of about 1/5, so about 5 times its CPU time is what the load explains.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from comet_mpc.net.authority import make_test_set
from comet_mpc.processors import cores

_COMET = Path(sys.executable).with_name("comet")
_LONGEST = 600.0
_CHOICES = ("Comet's", "libraries'")


@dataclass(frozen=True)
class Result:
    command: str
    threads: str
    """Whose choice."""
    cores: int
    load: int
    """Other processes that compute all the time."""
    seconds: float
    cpu_seconds: float


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    spin = f"import time; end = time.monotonic() + {_LONGEST}\nwhile time.monotonic() < end: sum(range(10000))"
    started = [subprocess.Popen([sys.executable, "-c", spin], start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def environment(choice: str) -> dict[str, str]:
    names = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    if choice == _CHOICES[0]:
        return bare
    count = str(os.cpu_count())
    return bare | {"OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count, "GOMP_SPINCOUNT": "300000"}


def measure(command: list[str], choice: str, said: str) -> tuple[float, float]:
    """Seconds until a line of the command's output begins so, and CPU seconds until it has ended."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    arguments = [str(_COMET), *command]
    with subprocess.Popen(
        arguments, env=environment(choice), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        found = next((line for line in process.stdout if line.startswith(said)), None)
        seconds = time.monotonic() - start
        process.send_signal(signal.SIGTERM)
    if found is None:
        raise SystemExit(f"comet {command[0]} failed: try {' '.join(arguments)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_all(model: Path, load: int, repeats: int) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_test_set(directory / "keys")
        unify = ["unify", str(model), str(directory / "unified")]
        serve = ["serve", str(directory / "unified"), "--untrained", "--listen", "127.0.0.1:0"]
        serve += ["--keys", str(directory / "keys"), "--state", str(directory / "state")]
        for processes in (0, load):
            with busy(processes):
                for command, said in ((unify, "wrote "), (serve, "serving at ")):
                    measured: dict[str, list[tuple[float, float]]] = {choice: [] for choice in _CHOICES}
                    for _ in range(repeats):
                        for choice in _CHOICES:
                            measured[choice].append(measure(command, choice, said))
                    for choice, pairs in measured.items():
                        seconds, used = (statistics.median(values) for values in zip(*pairs, strict=True))
                        yield Result(command[0], choice, cores(), processes, round(seconds, 2), round(used, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face checkpoint")
    parser.add_argument("--load", type=int, default=8, help="other processes that compute all the time")
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--note", default="", help="what else was going on, for the record")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; - for standard output")
    options = parser.parse_args()
    results = []
    for result in measure_all(options.model, options.load, options.repeats):
        results.append(asdict(result))
        if options.json != "-":
            facts = f"{result.command:6} threads: {result.threads:10} load: {result.load}"
            print(f"{facts}  {result.seconds:7.2f} s  {result.cpu_seconds:7.2f} CPU-s", flush=True)
    text = json.dumps({"note": options.note, "results": results}, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        Path(options.json).write_text(text)


if __name__ == "__main__":
    main()
