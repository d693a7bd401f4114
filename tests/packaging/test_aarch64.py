"""The C++ sources compile for a processor that is not x86: a kernel without a portable form is found at once.

`scripts/aarch64` also runs them there, under emulation.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from support.documents import ROOT

COMPILER = shutil.which("aarch64-linux-gnu-g++")
KERNELS = sorted(path for path in (ROOT / "native").glob("*/*.cpp") if path.parent.name != "bindings")
CHECKED = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a compiler for aarch64 (aarch64-linux-gnu-g++)")


def compiled(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(COMPILER), *CHECKED, "-I", str(ROOT / "native"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@needs_compiler
def test_the_kernels_compile_for_aarch64_without_a_warning() -> None:
    assert len(KERNELS) > 20
    done = compiled(*KERNELS)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_what_only_x86_has_does_not_compile() -> None:
    source = ROOT / "native" / "ot" / "aes_x86.hpp"
    done = compiled("-DCOMET_X86=1", "-include", "immintrin.h", source)
    assert done.returncode != 0
