"""Without the extra [train], the package that needs it says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.waiting import PATIENCE


@pytest.mark.parametrize("module", ["comet_mpc.train", "comet_mpc.train.loop"])
def test_what_is_missing_is_named_together_with_the_remedy(module: str) -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from comet_mpc.errors import ConfigurationError
try:
    import {module}
except ConfigurationError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert result.stdout == "this needs torch, which is not installed: pip install 'comet-mpc[train]'\n"
