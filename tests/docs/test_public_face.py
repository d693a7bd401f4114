"""`from comet_mpc import …`: what is promised is there, typed, documented, and quick to import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import comet_mpc
from comet_mpc import errors
from support.documents import ROOT, page_of
from support.waiting import PATIENCE

PAGES = [page_of(ROOT / "docs" / name) for name in ("how-to/python.md", "reference/errors.md")]
SPANS = {code for page in PAGES for _, code in page.code_spans}
TABLES = [line for page in PAGES for _, line in page.prose if line.startswith("| `")]


@pytest.mark.parametrize("name", comet_mpc.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(comet_mpc, name)
    assert name.startswith("__") or isinstance(found, int) or found.__doc__
    assert name in SPANS, "docs/how-to/python.md does not mention it"


@pytest.mark.parametrize("name", sorted({*comet_mpc.__all__} - {*errors.__all__, "__version__"}))
def test_a_public_name_has_an_example(name: str) -> None:
    assert any(name in block.text for page in PAGES for block in page.blocks), "docs/how-to/python.md does not use it"


def test_nothing_else_is_documented_as_public() -> None:
    named = {code for line in TABLES for code in line.split("|")[1].replace("`", "").replace(",", " ").split()}
    arguments = {name for name in named if name.islower()} - set(comet_mpc.__all__)
    assert named - arguments <= set(comet_mpc.__all__)
    assert {"address", "keys", "progress"} <= arguments  # of Client, in a table of its own


def test_all_errors_are_public() -> None:
    assert set(errors.__all__) <= set(comet_mpc.__all__)
    for name in errors.__all__:
        assert name in str(errors.__doc__), "the tree does not have it"


@pytest.mark.service
def test_the_import_is_light_and_names_are_loaded_when_they_are_used() -> None:
    program = (
        "import sys, comet_mpc\n"
        "heavy = {name for name in sys.modules if name.partition('.')[0] in ('numpy', 'scipy', 'ssl', 'tokenizers')}\n"
        "assert not heavy, heavy\n"
        "assert set(comet_mpc.__all__) <= set(dir(comet_mpc))\n"
        "from comet_mpc import *\n"
        "assert Client is comet_mpc.Client and 'numpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Clinet'"):
        comet_mpc.Clinet  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="Clinet"):
        exec("from comet_mpc import Clinet")


def test_a_public_name_is_the_very_object_of_its_module() -> None:
    for home, names in comet_mpc._HOMES.items():
        for name in names:
            assert getattr(comet_mpc, name) is getattr(import_module(f"comet_mpc.{home}"), name)
