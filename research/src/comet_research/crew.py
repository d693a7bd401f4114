"""Processes for measurements: a dealer that also prepares what this package has registered."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import comet_research.look_up as look_up  # registers its kind of randomness, also in the dealer's process
from comet_mpc.local import processes
from comet_mpc.local.processes import Link, Target

__all__ = ["Crew", "look_up"]


def _deal(link: Link, keys: Path) -> None:
    processes.deal(link, keys)


class Crew(processes.Crew):
    deal: ClassVar[Target] = staticmethod(_deal)
