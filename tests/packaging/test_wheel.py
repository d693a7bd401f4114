"""A wheel holds what git knows of the package, and starts without the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.documents import ROOT

CONTENTS = ROOT / "scripts" / "wheel_contents.py"
INFORMATION = "comet_mpc-1.dist-info/"
BILL = INFORMATION + "sboms/comet-mpc.cdx.json"
SOURCES = [
    path.relative_to(ROOT / "src").as_posix()
    for path in (ROOT / "src").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
]


def bill_of(version: str = "1", *parts: str) -> dict[str, object]:
    components = [{"name": name, "version": "3.1.0"} for name in parts or ("nanobind", "robin-map")]
    return {"metadata": {"component": {"version": version}}, "components": components}


def wheel(
    directory: Path, tag: str, *, extension: str, without: str = "", more: str = "", bill: object = None, code: str = ""
) -> Path:
    bill = bill or bill_of()
    path = directory / f"comet_mpc-1-{tag}-manylinux_2_28_x86_64.whl"
    names = {*SOURCES, f"comet_mpc/_native.{extension}.so", INFORMATION + "licenses/LICENSE", BILL, *more.split()}
    contents = {BILL: json.dumps(bill), f"comet_mpc/_native.{extension}.so": code}
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(names - {without}):
            archive.writestr(name, contents.get(name, ""))
    return path


def compared(path: Path) -> str:
    done = subprocess.run([sys.executable, str(CONTENTS), str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def test_a_whole_wheel_passes(tmp_path: Path) -> None:
    assert compared(wheel(tmp_path, "cp311-cp311", extension="cpython-311-x86_64-linux-gnu")) == ""
    assert compared(wheel(tmp_path, "cp312-abi3", extension="abi3")) == ""


@pytest.mark.parametrize(
    ("without", "more", "said"),
    [
        ("comet_mpc/py.typed", "", "missing: comet_mpc/py.typed"),
        ("comet_mpc/data/demo_model/tokenizer.json", "", "missing: comet_mpc/data/demo_model/tokenizer.json"),
        ("comet_mpc/_native.abi3.so", "", "missing: the extension comet_mpc/_native.abi3.so"),
        (INFORMATION + "licenses/LICENSE", "", "missing: the licence"),
        (BILL, "", "missing: the bill of materials"),
        ("", "comet_mpc/server.key", "git does not know: comet_mpc/server.key"),
        ("", "comet_mpc/_native.cpython-312-x86_64-linux-gnu.so", "git does not know: comet_mpc/_native.cpython-312"),
        ("", "tests/conftest.py", "git does not know: tests/conftest.py"),
    ],
)
def test_what_is_missing_or_too_much_is_named(tmp_path: Path, without: str, more: str, said: str) -> None:
    assert said in compared(wheel(tmp_path, "cp312-abi3", extension="abi3", without=without, more=more))


def test_an_extension_of_another_python_than_the_name_says_is_found(tmp_path: Path) -> None:
    """Such a wheel installs on every later Python, and cannot be imported there."""
    found = compared(wheel(tmp_path, "cp312-abi3", extension="cpython-312-x86_64-linux-gnu"))
    assert "missing: the extension comet_mpc/_native.abi3.so" in found


@pytest.mark.parametrize(
    ("bill", "said"),
    [
        (bill_of("2"), "the bill of materials is of version 2"),
        (bill_of("1", "nanobind"), "the bill of materials is not whole"),
        (
            {"metadata": {"component": {"version": "1"}}, "components": [{"name": "nanobind", "version": "@V@"}]},
            "no version of nanobind",
        ),
    ],
)
def test_a_bill_of_materials_that_is_wrong_is_named(tmp_path: Path, bill: object, said: str) -> None:
    assert said in compared(wheel(tmp_path, "cp312-abi3", extension="abi3", bill=bill))


def test_an_extension_that_names_the_place_where_it_was_built_is_found(tmp_path: Path) -> None:
    found = compared(wheel(tmp_path, "cp312-abi3", extension="abi3", code=f"assert {ROOT}/native/ring/words.cpp"))
    assert f"the extension names {ROOT}" in found


@pytest.mark.slow
@pytest.mark.service
def test_a_wheel_of_this_checkout_is_whole_and_answers() -> None:
    """The short form of scripts/wheel: no network, and only what changed is compiled."""
    done = subprocess.run([ROOT / "scripts" / "wheel", "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "What each text cost" in done.stdout
