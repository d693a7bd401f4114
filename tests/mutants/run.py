"""Plants one fault after another in a copy of the checkout, runs the tests that guard the place, and names survivors.

`scripts/mutants` calls it. The copy, its build and its environment are in build/mutants; nothing else is touched. What
is known of a mutant is kept there until its file, its guards or its description change, so a run that was stopped is
resumed by the same command.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from comet_mpc import _native
from mutants.planting import DoesNotApply, Mutant, read_mutants

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutants"
COPY, CMAKE, VENV, KNOWN = WORK / "copy", WORK / "cmake", WORK / "venv", WORK / "known.json"
EXTENSION = COPY / "src" / "comet_mpc" / Path(_native.__file__).name
"""Of the copy: what `scripts/setup` has built of the same sources, or a build with a fault."""
GUARD_SECONDS = 240
"""A guard that takes longer has noticed something: without a fault each takes a fraction of it."""
_PATIENCE = 60
"""Of a test that waits for what a fault may prevent (`support.waiting`)."""


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def copy_checkout() -> None:
    """All files that git knows or would take, as they are now. Files that have not changed keep their times."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for stale in [path for path in COPY.rglob("*") if path.is_file() and path.suffix not in (".so", ".pyc")]:
        if str(stale.relative_to(COPY)) not in names:
            stale.unlink()
    for name in names:
        source, target = ROOT / name, COPY / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def make_environment() -> None:
    """The package of the copy first, then what .venv has. Its editable install stays out of the way: see sanitize."""
    run(sys.executable, "-m", "venv", "--without-pip", VENV)
    own = VENV / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    sources = [COPY / "src", COPY / "research" / "src"]
    (own / "comet.pth").write_text("\n".join([*map(str, sources), sysconfig.get_path("purelib"), ""]))
    command = VENV / "bin" / "comet"
    command.write_text(f"#!{VENV}/bin/python\nfrom comet_mpc.cli.start import run\nrun()\n")
    command.chmod(0o755)


def build() -> None:
    """The copy's extension, what has changed of it."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not (CMAKE / "build.ninja").exists():
        run("cmake", "-S", COPY, "-B", CMAKE, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
            env=tools, stdout=subprocess.DEVNULL)  # fmt: skip
    run("cmake", "--build", CMAKE, env=tools, stdout=subprocess.DEVNULL)
    run("cmake", "--install", CMAKE, "--prefix", COPY / "src", env=tools, stdout=subprocess.DEVNULL)


def failure(guards: Iterable[str], seconds: float | None = GUARD_SECONDS) -> str:
    """What pytest says of tests that fail in the copy; nothing if all pass."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["COMET_TEST_PATIENCE"] = str(_PATIENCE)
    command = [VENV / "bin" / "python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *guards]
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=COPY, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"took more than {seconds} s"
    if done.returncode not in (0, 1, 2):  # pytest: all passed, some failed, or could not even be collected
        raise SystemExit(f"mutants: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return "" if done.returncode == 0 else done.stdout[-4000:]


def fingerprint(mutant: Mutant) -> str:
    """Changes with the mutant, its file and its guards."""
    known = hashlib.sha256(repr(mutant).encode())
    for name in sorted({mutant.file, *(guard.split("::")[0] for guard in mutant.guards)}):
        known.update((COPY / name).read_bytes())
    return known.hexdigest()


def outcome(mutant: Mutant) -> str:
    """caught, survived, or does not apply. The copy is as before afterwards."""
    path = COPY / mutant.file
    before = path.read_bytes()
    try:
        text = mutant.planted(COPY)
    except DoesNotApply as error:
        print(f"mutants: DOES NOT APPLY: {error}", file=sys.stderr)
        return "does not apply"
    try:
        path.write_text(text)
        if mutant.native:
            build()
        return "caught" if failure(mutant.guards) else "survived"
    finally:
        path.write_bytes(before)


def record(found: dict[str, dict[str, object]], mutants: Sequence[Mutant], command: str) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {
        "command": command,
        "commit": commit.strip(),
        "versions": {"comet-mpc": version("comet-mpc"), "python": platform.python_version()},
        "mutants": [
            {"name": one.name, "fault": one.fault, "file": one.file, "guards": list(one.guards), **found[one.name],
             **({"explained": one.survives} if one.survives else {})}
            for one in mutants if one.name in found
        ],
    }  # fmt: skip


def show(found: dict[str, dict[str, object]], mutants: Sequence[Mutant]) -> list[str]:
    """The table; returns what is wrong."""
    wrong = []
    for one in mutants:
        known = found.get(one.name)
        verdict = str(known["outcome"]) if known else "not run yet"
        print(f"{verdict:<15} {one.name}")
        if verdict == "does not apply" or (verdict == "survived" and not one.survives):
            wrong.append(one.name)
            print(f"{'':<15} {one.file}: {one.fault}")
        elif verdict == "survived":
            print(f"{'':<15} explained: {one.survives}")
    caught = sum(known["outcome"] == "caught" for known in found.values())
    print(f"mutants: {caught} of {len(mutants)} caught, {len(mutants) - len(found)} not run yet")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="WORD", help="only mutants whose names contain one of these")
    parser.add_argument("--minutes", type=float, default=15.0, help="stop after so many; the same command resumes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have found")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    chosen = [one for one in read_mutants() if not options.names or any(word in one.name for word in options.names)]
    chosen.sort(key=lambda one: one.native)  # so that only the last ones wait for a build
    if not chosen:
        raise SystemExit("mutants: no mutant has such a name")

    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # two faults in one copy: what either run says would mean nothing
        raise SystemExit("mutants: another run is at work in build/mutants") from None
    print("mutants: copying the checkout to build/mutants", flush=True)
    copy_checkout()
    if not (VENV / "bin" / "comet").exists():
        make_environment()
    known: dict[str, dict[str, object]] = {}
    if KNOWN.exists() and not options.fresh:
        known = json.loads(KNOWN.read_text())
    keys = {one.name: fingerprint(one) for one in chosen}
    found = {name: known[key] for name, key in keys.items() if key in known}
    waiting = [one for one in chosen if one.name not in found]
    green: set[tuple[str, ...]] = set()
    for one in waiting:
        if time.monotonic() > end:
            print("mutants: the time is up. Run the same command to resume.")
            break
        print(f"mutants: planting: {one.name}", flush=True)
        began = time.monotonic()
        if one.guards not in green:
            shutil.copy(_native.__file__, EXTENSION)
            if said := failure(one.guards, None):
                raise SystemExit(f"{said}\nmutants: the guards fail without a fault: {', '.join(one.guards)}")
            green.add(one.guards)
        found[one.name] = {"outcome": outcome(one), "seconds": round(time.monotonic() - began, 1)}
        known[keys[one.name]] = found[one.name]
        KNOWN.write_text(json.dumps(known, indent=1))
    if options.json:
        command = "scripts/mutants " + " ".join(sys.argv[1:])
        options.json.write_text(json.dumps(record(found, chosen, command), indent=2, ensure_ascii=False) + "\n")
    return 1 if show(found, chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
