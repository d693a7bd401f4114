"""What keeps the house in order: short functions, light imports, nothing of the laboratory in the product."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from support.documents import ROOT
from support.waiting import PATIENCE

PRODUCT = ROOT / "src" / "comet_mpc"
LONGEST = 60
"""Lines of a function, its signature and docstring included."""


def long_functions(source: str) -> list[str]:
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno + 1 > LONGEST]


def test_no_function_is_longer_than_60_lines() -> None:
    found = {
        f"{path.relative_to(PRODUCT).as_posix()} {name}"
        for path in PRODUCT.rglob("*.py")
        for name in long_functions(path.read_text())
    }
    assert not found


def test_a_long_function_is_found() -> None:
    short, long = ("def f(\n    x: int,\n) -> None:\n    pass\n" + "    x = 1\n" * n for n in (56, 57))
    assert (long_functions(short), long_functions(long)) == ([], ["f"])


def test_the_product_has_no_word_of_the_laboratory() -> None:
    """Neither the paper's flooded shares nor tables for look-ups: both are registered from there."""
    words = re.compile(r"flooded|flooding|permits_leaks|TableTransfers|look_up")
    found = {path.relative_to(ROOT).as_posix() for path in PRODUCT.rglob("*.py") if words.search(path.read_text())}
    assert not found


def loaded(program: str) -> tuple[set[str], set[str]]:
    """What a program imports in a fresh interpreter: our own modules, and the packages of others."""
    code = f"""
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: print(*(set(sys.modules) - before), file=sys.stderr))
{program}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    names = set(done.stderr.split())
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    return {name for name in names if name.startswith("comet_mpc")}, {name for name in packages if name[0] != "_"}


def test_the_version_is_said_before_anything_heavy_is_imported() -> None:
    """`comet --version` takes less than 0.3 s. What would take longer is an import."""
    ours, others = loaded("sys.argv = ['comet', '--version']\nfrom comet_mpc.cli.start import run\nrun()")
    assert len(ours) <= 9, sorted(ours)
    heavy = {"numpy", "cryptography", "nacl", "msgspec", "safetensors", "tokenizers", "torch", "rich", "fastapi"}
    assert not others & heavy, others


def test_a_client_loads_no_more_modules_than_it_did() -> None:
    ours, others = loaded("from comet_mpc import Client")
    assert "comet_mpc.service.client" in ours
    assert len(ours) <= 105, sorted(ours)
    later = "offline.pair offline.dealer models.images.reading models.vision models.writing.model service.writing"
    assert not [name for name in ours if name.removeprefix("comet_mpc.").startswith(tuple(later.split()))]
    allowed = "comet_mpc numpy cryptography nacl msgspec safetensors threadpoolctl tokenizers cffi typing_extensions"
    assert others <= set(allowed.split()), others


def test_modules_are_counted_where_they_are_loaded() -> None:
    ours, others = loaded("import comet_mpc.units\nimport numpy")
    assert "comet_mpc.units" in ours
    assert "numpy" in others
