"""A file of many rows is classified by `comet query --csv` while the client is killed again and again.

    python research/benchmarks/csv_kills.py [--rows 1000] [--kills 2] [--source dealer] [--tiny] [--json FILE|-]

A server (and a dealer) and every run of the command are processes of their own. Each run but the last is killed with
SIGKILL in the middle. At the end every row must be there once, in its order, with the label that the same model has in
the clear; a row whose two largest logits are closer than what an answer is rounded to may have either label.

Where the server keeps little (--client-queries, --client-gb), what it has on disk is read again and again,
and the most that was found must be within the limit. The time left that the last run said is kept beside the time that
it really took from there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from comet_mpc.local.demo import demo_model
from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import tensor_shapes
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, read_tokenizer, save_checkpoint
from comet_mpc.net.authority import make_test_set

WORDS = ("the", "a", "film", "plot", "is", "was", "not", "very", "good", "bad", "dull", "bright", "slow", "and", "but")
COMET = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()"]
MARGIN = 0.05  # logits of the protocol and in the clear


def texts(count: int) -> list[str]:
    chosen = random.Random(1)
    return [" ".join(chosen.choices(WORDS, k=chosen.choice((4, 6, 9)))) for _ in range(count)]


@contextlib.contextmanager
def service(*arguments: str, log: Path) -> Iterator[str]:
    """A server or dealer, and where it listens."""
    with log.open("w") as file:
        process = subprocess.Popen([*COMET, *arguments], stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at " not in line:
            sys.exit(f"it did not start: {log.read_text()[-500:]}")
        yield line.split(" at ")[1].split(",")[0].strip()
    finally:
        process.terminate()
        process.wait()


def tiny_model(out: Path) -> Path:
    """The demonstration model's kind and tokenizer, with one layer of 32 and random weights: its answers are noise."""
    with as_file(files("comet_mpc") / "data" / "demo_model") as demo:
        config, tokenizer = load_checkpoint(demo)[0], read_tokenizer(demo)
    encoder = msgspec.structs.replace(config.encoder, hidden=32, layers=1, heads=2, intermediate=64)
    config = msgspec.structs.replace(config, encoder=encoder, sites={})
    chance = np.random.default_rng(0)
    tensors = {
        name: (chance.standard_normal(shape) / (32.0**0.5 if len(shape) > 1 else 10.0)).astype(np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    tensors |= {name: np.ones_like(value) for name, value in tensors.items() if name.endswith("norm.weight")}
    save_checkpoint(out, certify(config, tensors), tensors, tokenizer=tokenizer)
    return out


class Disk(threading.Thread):
    """Looks at what a server keeps for clients, until it is stopped: the most bytes and the most bundles at once."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self.state, self.bytes, self.bundles, self._ended = state, 0, 0, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.5):
            sizes = []
            for path in self.state.rglob("*.bundle"):
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(path.stat().st_size)
            self.bytes, self.bundles = max(self.bytes, sum(sizes)), max(self.bundles, len(sizes))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def said_left(shown: IO[str]) -> list[tuple[float, float]]:
    """From the lines of a command's progress: when it said that so many seconds are left."""
    found = []
    for line in shown:
        if said := re.search(r"(\d+):(\d\d):(\d\d) left", line):
            hours, minutes, seconds = map(int, said.groups())
            found.append((time.monotonic(), 3600.0 * hours + 60.0 * minutes + seconds))
    return found


def finished(command: list[str]) -> list[dict[str, float]]:
    """Runs the command to its end: at some moments, the seconds left as it said and as they were."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = said_left(process.stderr)
    end = time.monotonic()
    if process.returncode:
        sys.exit(f"the command ended with {process.returncode}")
    some = said[:: max(1, len(said) // 8)]
    return [{"said": left, "was": round(end - moment, 1)} for moment, left in some]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_at(command: list[str], part: Path, rows: int) -> int:
    """Runs the command until so many rows are answered, and kills it; how many are."""
    process, pause = subprocess.Popen(command, stderr=subprocess.DEVNULL), threading.Event()
    while lines(part) < rows and process.poll() is None:
        pause.wait(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return lines(part)


def check(model: ServedModel, asked: list[str], out: Path) -> int:
    """Every row once, in order, with the model's label; how many were too close to call."""
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["text"]) for row in rows] == [(str(n), text) for n, text in enumerate(asked)]
    close = 0
    for row in rows:
        logits = model.plain_logits(model.encode([row["text"]]))[0]
        highest = np.sort(logits)[::-1]
        if highest[0] - highest[1] < 2 * MARGIN:
            close += 1
            continue
        assert row["label"] == model.config.encoder.labels[int(np.argmax(logits))], row
    return close


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    checkpoint = tiny_model(work / "tiny") if arguments.tiny else arguments.model
    model, asked = demo_model(checkpoint), texts(arguments.rows)
    keys, table, out = work / "keys", work / "in.csv", work / "out.csv"
    make_test_set(keys)
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(asked)])
    checkpoint = checkpoint or files("comet_mpc") / "data" / "demo_model"
    limits = [("--client-queries", arguments.client_queries), ("--client-gb", arguments.client_gb)]
    limited = [str(part) for name, value in limits if value is not None for part in (name, value)]
    disk = Disk(work / "state")
    with contextlib.ExitStack() as stack:
        more: list[str] = []
        if arguments.source == "dealer":
            deal = ("deal", "--listen", "127.0.0.1:0", "--keys", str(keys))
            more = ["--dealer", stack.enter_context(service(*deal, log=work / "dealer.log"))]
        serve = ("serve", str(checkpoint), "--untrained", "--listen", "127.0.0.1:0", "--keys", str(keys))
        log = work / "server.log"
        address = stack.enter_context(service(*serve, "--state", str(work / "state"), *limited, *more, log=log))
        disk.start()
        stack.callback(disk.stop)
        common = ["--keys", str(keys), "--cache", str(work / "cache")]
        command = [*COMET, "query", address, "--csv", str(table), "--column", "text", "--out", str(out), *common]
        part, start, kept = out.with_name("out.csv.part"), time.monotonic(), []
        for number in range(1, arguments.kills + 1):
            kept.append(killed_at(command, part, number * arguments.rows // (arguments.kills + 1)))
            assert not out.exists()
        told = finished(command)
        seconds = time.monotonic() - start
    answered = [json.loads(line) for line in log.read_text().splitlines() if '"answered"' in line]
    return {
        "rows": len(asked),
        "source": arguments.source,
        "kept_by_killed_runs": kept,
        "answered_by_server": sum(event["batch"] for event in answered),
        "too_close_to_call": check(model, asked, out),
        "limits": {name.lstrip("-"): value for name, value in limits if value is not None},
        "most_on_servers_disk": {"bytes": disk.bytes, "bundles": disk.bundles},
        "seconds_left": told,
        "seconds": round(seconds, 1),
        "command": "python " + " ".join(["research/benchmarks/csv_kills.py", *sys.argv[1:]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--source", choices=("pair", "dealer"), default="dealer")
    parser.add_argument("--model", type=Path, help="a Comet checkpoint; default: the one that comes with Comet")
    parser.add_argument("--tiny", action="store_true", help="a model of one layer of 32 with random weights")
    parser.add_argument("--client-queries", type=int, help="limit of the server, in prepared queries")
    parser.add_argument("--client-gb", type=float, help="limit of the server, in GB")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = run(arguments, Path(work))
    text = json.dumps(found, indent=1)
    if arguments.json in (None, "-"):
        print(text)
    else:
        Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
