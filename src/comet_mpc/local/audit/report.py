"""The audit: every message's statistics, beside the same of protocols that are broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from comet_mpc.errors import ConfigurationError
from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import Recorded, record
from comet_mpc.local.audit.preparation import SET_UPS, record_preparation
from comet_mpc.local.audit.statistics import LIMIT, STATISTICS, judge, pile_up
from comet_mpc.local.audit.writing import record_writing
from comet_mpc.offline.dealer.fetch import PARTY_ROLES
from comet_mpc.progress import Tick, silent

FEWEST = 40
"""Runs with which every control is still caught."""

PHASES = ("dealer", "pair", "writing", "preparing")
"""Messages of a query and of its dealer; of a query that two parties have prepared; of a text that is written, with a
dealer; of the preparation by two parties."""

CAUGHT: dict[str, dict[Control, tuple[str, ...]]] = {
    "dealer": {
        "same seed": (
            "Open", "Truncate", "TruncateOpen", "TableLine", "Give", "products, bits", "products, powers",
            "products, squares", "products, matrix", "products, weights", "products, scale",
        ),
        "old mask": ("weights", "Open", "Truncate", "TruncateOpen", "TableLine", "Give", "products, points"),
        "no mask": (
            "products, bits", "products, powers", "products, squares", "products, matrix", "products, weights",
            "products, scale",
        ),
    },
    "pair": {
        "same seed": ("Open", "TruncateOpen", "TruncateOpen, bit", "Give"),
        "old mask": ("Open", "Truncate", "TruncateOpen", "TruncateOpen, bit", "TableLine", "Give", "products, points"),
        "no mask": ("TruncateOpen, bit",),
    },
    "writing": {"old mask": ("Open", "Truncate", "TruncateOpen", "Give")},
    "preparing": {
        "old mask": (
            "points", "trees", "extension", "answer", "extension, odd", "answer, odd", "words", "flips", "upload",
            "upload, packed", "upload, turned", "upload in slots", "upload in odd slots, defined",
            "upload in odd slots", "trees, renewed", "keys, levels", "keys, bits of masks", "keys, carries",
            "keys, carries chosen", "keys, signs", "keys, signs chosen", "keys, last",
        ),
        "no mask": (
            "public key", "packing keys", "response", "response, decrypted", "response, packed",
            "response, packed, decrypted", "response, turned", "response, turned, decrypted", "response in slots",
            "response in slots, decrypted", "response in odd slots", "response in odd slots, decrypted",
        ),
    },
}  # fmt: skip
"""By phase and control, the messages at which it must be caught. Elsewhere it changes nothing that is received."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of message to one party, in the protocol or in a control."""

    phase: str
    message: str
    to: str
    control: str
    """Empty: the protocol itself."""
    runs: int
    bytes: int
    """In one run."""
    surprise: dict[str, float]
    limit: float

    @property
    def right(self) -> bool:
        """The protocol is below the limit everywhere, a control above it somewhere."""
        return (max(self.surprise.values()) >= self.limit) == bool(self.control)


def findings(
    recorded: Sequence[Recorded],
    phase: str,
    control: Control = "",
    *,
    caught: Mapping[str, Mapping[Control, Sequence[str]]] = CAUGHT,
) -> list[Finding]:
    """One for each kind of message and receiver; of a control, only where it must be caught."""
    found = []
    for each in recorded:
        indices: dict[str, list[int]] = {}
        for index, message in enumerate(each.runs[0]):
            indices.setdefault(message.kind, []).append(index)
        for kind, where in indices.items():
            if control and kind not in caught[phase][control]:
                continue
            piles = [pile_up([run[at] for run in each.runs], each.secret, each.own, blocks=each.blocks) for at in where]
            judged = [judge(pile) for pile in piles]
            worst = {name: max(one[name] for one in judged) - math.log10(len(judged)) for name in STATISTICS}
            first = each.runs[0]
            found.append(
                Finding(
                    phase=phase,
                    message=kind,
                    to=PARTY_ROLES[first[where[0]].receiver],
                    control=control,
                    runs=len(each.runs),
                    bytes=sum(first[index].size for index in where),
                    surprise={name: round(max(0.0, value), 1) for name, value in worst.items()},
                    limit=round(LIMIT, 1),
                )
            )
    return found


def audit(runs: int, phases: Sequence[str] = PHASES, tick: Tick = silent) -> list[Finding]:
    """All messages and controls. runs: with a dealer; a pair, which takes longer, has a twentieth of them."""
    if runs < FEWEST:
        raise ConfigurationError(f"{runs} runs are too few to tell chance from a leak: there must be {FEWEST}")
    runs -= runs % 4  # secrets are balanced in every four
    few, controls, done = 4 * max(2, runs // 80), max(FEWEST, runs // 8 * 4), 0
    planned: list[tuple[str, Control, int]] = []
    for phase in phases:
        real, broken = {"dealer": (runs, controls), "writing": (controls, FEWEST)}.get(phase, (few, 8))
        planned += [(phase, "", real), *((phase, control, broken) for control in CAUGHT[phase])]
    total = sum(count + (SET_UPS if phase == "preparing" else 0) for phase, _, count in planned)

    def step(note: str) -> Callable[[], None]:
        def one() -> None:
            nonlocal done
            done += 1
            tick(done, total, note)

        return one

    found: list[Finding] = []
    for phase, control, count in planned:
        told = step(f"{phase}, {control}" if control else phase)
        if phase == "preparing":
            recorded = record_preparation(count, control, tick=told)
        elif phase == "writing":
            recorded = record_writing(count, control, tick=told)
        else:
            recorded = record(phase, count, control, tick=told)
        found += findings(recorded, phase, control)
    order = {(one.phase, one.message, one.to): index for index, one in enumerate(found) if not one.control}
    return sorted(found, key=lambda one: order.get((one.phase, one.message, one.to), len(found)))


def passes(found: Sequence[Finding]) -> bool:
    """Whether the protocol tells nothing and every control was caught where it must be."""
    return all(one.right for one in found)
