"""Where the command begins: before anything heavy is imported, so that Ctrl-C meanwhile ends it in order.

Words that a user sees before the rest of the program is there.
"""

from __future__ import annotations

import sys
from importlib import import_module


def run() -> None:
    try:
        import_module("comet_mpc.cli.main").app()
    except KeyboardInterrupt:
        print("stopped before anything was done", file=sys.stderr)
        sys.exit(130)
