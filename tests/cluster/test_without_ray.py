"""Without --cluster nothing of Ray is needed or imported; with it, its absence is said."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import comet_mpc
from support.waiting import PATIENCE

SOURCE = Path(comet_mpc.__file__).parent

_REFUSING = """
import sys

class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")

sys.meta_path.insert(0, NoRay())
sys.modules.pop("ray", None)
"""


def without_ray(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in an environment that has no ray."""
    command = [sys.executable, "-c", _REFUSING + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def imported(path: Path) -> set[str]:
    """Packages that a module imports, at any place in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_only_the_package_cluster_imports_ray() -> None:
    users = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if "ray" in imported(path)}
    assert users == {"cluster"}


@pytest.mark.service
def test_serving_asking_and_evaluating_import_no_ray() -> None:
    modules = ("cli.operating.service", "cli.asking.query", "cli.evaluate", "service.hosting.server", "service.client")
    program = "\n".join(f"import comet_mpc.{module}" for module in modules)
    found = without_ray(f"{program}\nprint(any(name.partition('.')[0] == 'ray' for name in sys.modules))")
    assert (found.stdout.strip(), found.stderr) == ("False", "")


@pytest.mark.service
@pytest.mark.parametrize(
    "command",
    [
        ("serve", "model", "--cluster", "auto"),
        ("query", "127.0.0.1:7001", "a text", "--cluster", "auto"),
        ("eval", "model", "--data", "rows", "--secure", "--cluster", "auto"),
    ],
)
def test_with_cluster_and_no_ray_the_extra_is_named(command: tuple[str, ...]) -> None:
    found = without_ray("from comet_mpc.cli.start import run; run()", *command)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        "comet: this needs ray, which is not installed: pip install 'comet-mpc[cluster]'"
    )
