"""Where the command begins: before anything heavy is imported, so that Ctrl-C meanwhile ends it in order.

Words that a user sees before the rest of the program is there. Numeric libraries choose their threads when they are
imported, so that is settled here too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from comet_mpc.processors import settle_threads


def run() -> None:
    settle_threads(os.environ)
    try:
        import_module("comet_mpc.cli.main").app()
    except KeyboardInterrupt:
        print("stopped before anything was done", file=sys.stderr)
        sys.exit(130)
