#!/usr/bin/env python3
"""Compares what is in a wheel with the sources: scripts/wheel_contents.py WHEEL

A wheel must hold every file of src/comet_mpc that git knows, the compiled extension, the licence, a bill of the
software that is compiled into it (PEP 770), and nothing else. The extension names no directory of the machine that
built it. Needs no other package. Without git, as in an unpacked source distribution, every file counts that Python did
not make.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"


def sources() -> set[str]:
    """The files of the package, named as in a wheel."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCES, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return set(listed.stdout.split("\0")) - {""}
    made = ("__pycache__", ".so")
    files = (path for path in SOURCES.rglob("*") if path.is_file() and not path.match("__pycache__/*"))
    return {path.relative_to(SOURCES).as_posix() for path in files if not path.name.endswith(made)}


def extension(wheel: Path) -> str:
    """What the compiled file must be called, for the Pythons that the wheel's own name promises."""
    _, _, python, abi, _ = wheel.name.removesuffix(".whl").split("-")
    if abi == "abi3":
        return "comet_mpc/_native.abi3.so"
    return f"comet_mpc/_native.cpython-{python.removeprefix('cp')}"


def differences(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.endswith("/")}
        bills = [archive.read(name) for name in found if re.fullmatch(r"[^/]+/sboms/comet-mpc\.cdx\.json", name)]
        code = [archive.read(name) for name in found if name.endswith(".so")]
    wanted, compiled = sources(), extension(wheel)
    information = {name for name in found if name.partition("/")[0].endswith(".dist-info")}
    binary = {name for name in found if name.startswith(compiled) and name.endswith(".so")}
    lines = [f"missing: {name}" for name in sorted(wanted - found)]
    lines += [f"git does not know: {name}" for name in sorted(found - wanted - information - binary)]
    if len(binary) != 1:
        lines.append(f"missing: the extension {compiled}")
    if not any(name.endswith("/licenses/LICENSE") for name in information):
        lines.append("missing: the licence")
    lines += _bill_problems(bills, wheel.name.split("-")[1])
    places = {bytes(ROOT), bytes(Path.home()), tempfile.gettempdir().encode()} - {b"/"}
    lines += [f"the extension names {place.decode()}" for place in sorted(places) if any(place in one for one in code)]
    return lines


def _bill_problems(bills: list[bytes], version: str) -> list[str]:
    if len(bills) != 1:
        return ["missing: the bill of materials sboms/comet-mpc.cdx.json"]
    bill = json.loads(bills[0])
    own, others = bill["metadata"]["component"], bill["components"]
    lines = [] if own["version"] == version else [f"the bill of materials is of version {own['version']}"]
    if not {"nanobind", "robin-map"} <= {one["name"] for one in others}:
        lines.append("the bill of materials is not whole")
    unknown = [one["name"] for one in others if not re.fullmatch(r"\d+(\.\d+)+", one["version"])]
    return lines + [f"the bill of materials has no version of {name}" for name in unknown]


def main() -> None:
    wheel = Path(sys.argv[1])
    lines = differences(wheel)
    for line in lines:
        print(f"wheel: {wheel.name}: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
