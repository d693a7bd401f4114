"""What holds: the paper's claims and this project's own aims, each beside what was measured. Nothing is said by hand.

A row whose records are missing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from comet_mpc.lab.bench.published import EVERY, LINEAR, TABLES, TOTAL_SECONDS
from comet_mpc.lab.bench.published_models import ACCURACY_TABLES, UNMODIFIED, short_stage
from comet_mpc.lab.report.accuracy import trained
from comet_mpc.lab.report.grid import Grid, wrapped
from comet_mpc.lab.report.published import amount
from comet_mpc.lab.report.published_models import Trained, paper_losses, trained_for_tables
from comet_mpc.lab.report.records import Record, Results, sources_of
from comet_mpc.models.checkpoint import USUAL_RULE
from comet_mpc.models.tasks import TASKS
from comet_mpc.units import counted

_NOISE = 1.0
"""Points by which a mean over tasks may differ by chance: dev sets have 277 to 1,500 rows, and seeds are few."""
_NEARLY = 0.8
"""A ratio counts as reached from here on: times are of another machine, and bytes of another engine."""
_FUNCTIONS = ("layer_norm", "activation", "attention")
_SERVED = f"certified-{USUAL_RULE}"
_ONLINE, _ALL, _SECONDS = ("online_bytes",), ("online_bytes", "offline_bytes"), ("seconds",)

Claim = tuple[str, str, str, str, bool | None]
"""What is claimed: in the paper, by its own method here, by ours; and whether it holds (None: to a lesser degree)."""
_HOLDS: Mapping[bool | None, str] = {True: "yes", False: "no", None: "less"}


def claim_grid(results: Results) -> Grid:
    """What the paper claims."""
    grid = Grid("What holds of the paper", ["claim", "paper", "its method here", "ours here", "holds"], left=1)
    models = trained_for_tables(results)
    for *cells, holds in (*_accuracy_claims(models), *_cost_claims(results), *_appendix_claims(results)):
        grid.rows.append([*map(str, cells), _HOLDS[holds]])
    grid.note = wrapped(
        "paper: on BERT-base and RoBERTa-base. Its method here: as printed, which is not private. Ours: the certified "
        f"form. Points are those of the tables below, with their short training; less than {_NOISE:g} is counted as "
        "chance. Ratios are of one engine and machine, times are online. less: it gains, but not as much. Bytes "
        "against look-up tables, MPCFormer and BumbleBee are without a third party, preparation included."
    )
    rows = [run.record for found in models.encoders.get(models.main, {}).values() for run in found]
    grid.sources = sources_of([*rows, *results.of("published"), *results.of("appendix")])
    return grid


# Accuracy --------------------------------------------------------------------------------------------------


def _accuracy_claims(models: Trained) -> Iterator[Claim]:
    told = {row.stage: paper_losses(row) for table in ACCURACY_TABLES.values() for row in table.rows}
    one, two = models.losses("1"), models.losses("2")

    little, most = min(told["paper-smu-softmax"]), math.inf
    for claim, losses, theirs, ours, low, high in (
        ("s-GeLU for GeLU loses little", one, "paper-smu-softmax", "", little, most),
        ("s-GeLU and s-Softmax* together lose nothing", one, "paper-smu-smu", _SERVED, -_NOISE, most),
        ("4 plain steps of Newton lose nothing", two, "through-newton-4", "certified-4", -_NOISE, most),
        ("the guess without steps loses much", two, "through-newton-0", "through-minimax-0", -most, -_NOISE),
    ):
        if theirs in losses:
            holds = low <= losses[theirs].points <= high
            yield claim, _signed(told[theirs]), str(losses[theirs]), str(losses.get(ours, "")), holds
    if gains := [gain.points for gain in models.gains("5", "1")]:
        yield "training α and μ gains", _range(_paper_gains()), _range(gains), "", min(gains) > 0


def _paper_gains() -> list[float]:
    fixed = {row.name: paper_losses(row) for row in ACCURACY_TABLES["1"].rows if row is not UNMODIFIED}
    return [
        one - other
        for row in ACCURACY_TABLES["5"].rows
        if row is not UNMODIFIED
        for one, other in zip(paper_losses(row), fixed[row.name], strict=True)
    ]


def _signed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:+.2f}" for value in values)


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:+.2f} to {found[-1]:+.2f}"


# Costs -----------------------------------------------------------------------------------------------------


def _cost_claims(results: Results) -> Iterator[Claim]:
    activation, whole = ("activation",), (*_FUNCTIONS, LINEAR)
    for claim, table, base, functions, keys in (
        ("fewer online bytes than the exponential guess: activation", "3", "exponential", activation, _ONLINE),
        ("fewer online bytes than the exponential guess: three functions", "3", "exponential", _FUNCTIONS, _ONLINE),
        ("less time than the exponential guess: whole model", "3", "exponential", whole, _SECONDS),
        ("fewer bytes in all than look-up tables: three functions", "4", "table", _FUNCTIONS, _ALL),
        ("less time than look-up tables: whole model", "4", "table", whole, _SECONDS),
    ):
        theirs, ours = (_times(results, table, base, method, functions, keys) for method in ("paper", "ours"))
        if theirs is not None and ours is not None:
            told = list(_paper_times(table, base, functions, keys))
            holds = True if theirs >= _NEARLY * min(told) else None if theirs > 1 else False
            yield claim, ", ".join(map(_ratio, told)), _ratio(theirs), _ratio(ours), holds


def _times(
    results: Results, table: str, base: str, method: str, functions: Collection[str], keys: Iterable[str]
) -> float | None:
    """How many times as much as the method the base takes of that; nothing if one of the functions is missing."""
    measured = [r for r in results.of("published") if (r["table"], r["model"]) == (table, "bert-base")]
    found = [
        [r for r in measured if r["method"] in (name, EVERY) and r["function"] in functions] for name in (base, method)
    ]
    if any({record["function"] for record in each} != set(functions) for each in found):
        return None
    of_base, of_method = (amount(each, *keys) for each in found)
    return float(of_base / of_method)


def _paper_times(table: str, base: str, functions: Collection[str], keys: Iterable[str]) -> Iterator[float]:
    """The same in the paper, model by model. It says of the whole model how long it takes, and no more."""
    for model, methods in TABLES[table].items():
        if LINEAR in functions:
            yield TOTAL_SECONDS[table][model][base] / TOTAL_SECONDS[table][model]["paper"]
        else:
            place = 0 if keys == _SECONDS else 1
            one, other = (sum(methods[name][f][place] for f in functions) for name in (base, "paper"))
            yield one / other


def _ratio(value: float) -> str:
    return f"{value:.{2 if value < 10 else 3}g}×"


# The appendix ----------------------------------------------------------------------------------------------


def _appendix_claims(results: Results) -> Iterator[Claim]:
    stated: dict[str, list[Record]] = {}
    for record in results.of("appendix"):
        stated.setdefault(record["statement"], []).append(record)
    if same := [record["measured"] for record in stated.get("both shares have the same exponent", [])]:
        shown = f"{min(same):.0%} to {max(same):.1%} of pairs"
        yield "both flooded shares have the same exponent", "always", shown, "not used", min(same) == 1
    off = [record["measured"] for statement, found in stated.items() if "off by more" in statement for record in found]
    if off:
        exact = [r["max_relative_error"] for r in results.of("rule") if (r["rule"], r.get("steps")) == ("minimax", 4)]
        ours = f"all, to {exact[0]:.1%}" if exact else ""
        first = f"{1 - off[0]:.0%} of x"  # flooded; the others are not
        yield "flooded, 4 steps give 1/sqrt to 5 %", "enough", first, ours, off[0] == 0
    quads = _in_all(stated, "activation by quad, ", "attention by quad2, ")
    roots = _in_all(stated, "activation by quadratic, 12", "attention by quadratic, 12")
    if quads and roots:
        yield "about as cheap as MPCFormer's quadratics", "0.93×", "", _ratio(quads / roots), quads / roots > 0.93
    peers = {r["system"]: r for r in results.of("peer") if r["task"] == "activation"}
    if {"spu-cheetah", "comet-pair"} <= peers.keys():
        times = peers["spu-cheetah"]["cpu_seconds"] / peers["comet-pair"]["cpu_seconds"]
        yield "less time than BumbleBee's GeLU (here CPU)", "1.5×", "", _ratio(times), times >= 1.5


def _in_all(stated: Mapping[str, Iterable[Record]], *beginnings: str) -> float:
    return sum(
        float(record["measured"])
        for statement, found in stated.items()
        if statement.startswith(beginnings)
        for record in found
        if record["unit"].endswith("in all")
    )


# What this project wants -----------------------------------------------------------------------------------

Aim = tuple[str, str, str, bool]


def aim_grid(results: Results) -> Grid:
    """What Comet has set out to reach."""
    grid = Grid("What Comet set out to reach", ["aim", "wanted", "measured", "reached"], left=1)
    for aim, wanted, measured, reached in (
        *_own_accuracy(results),
        *_own_protocol(results),
        *_own_costs(results),
        *_against_peers(results),
    ):
        grid.rows.append([aim, wanted, measured, "yes" if reached else "no"])
    kinds = ("accuracy", "protocol", "published", "peer")
    grid.sources = sources_of(
        record for kind in kinds for record in results.of(kind) if f"-{short_stage('')}" not in record.name
    )
    return grid


def _own_accuracy(results: Results) -> Iterator[Aim]:
    for encoder in trained(results):
        if encoder.held_out and (lost := encoder.mean_difference(_SERVED, UNMODIFIED.stage)):
            reached = float(lost.split()[0]) >= -_NOISE
            yield f"{encoder.name}, certified: points against unmodified", f"{-_NOISE:g}", lost, reached


def _own_protocol(results: Results) -> Iterator[Aim]:
    found = [
        record
        for record in results.of("protocol")
        if record.name.endswith(f"-{USUAL_RULE}") and record["task"] in TASKS and record["examples"] >= 200
    ]
    if labels := [record["agreement"] for record in found if record.get("agreement") is not None]:
        rows = f"{counted(len(found), 'task')}, {min(record['examples'] for record in found)} rows each"
        yield f"labels as in real arithmetic ({rows})", "99.5 %", f"{min(labels):.1%}", min(labels) >= 0.995
        logits = max(record["logit_difference"]["99 %"] for record in found)
        yield "99 % of logits within", "0.02", f"{logits:.4f}", logits <= 0.02


def _own_costs(results: Results) -> Iterator[Aim]:
    whole = (*_FUNCTIONS, LINEAR)
    for aim, wanted, table, base, functions, keys in (
        ("fewer online bytes than the exponential guess: activation", 5, "3", "exponential", ("activation",), _ONLINE),
        ("less time than the exponential guess: whole model", 3, "3", "exponential", whole, _SECONDS),
        ("fewer bytes in all than look-up tables: three functions", 8, "4", "table", _FUNCTIONS, _ALL),
        ("fewer bytes in all than look-up tables: whole model", 8, "4", "table", whole, _ALL),
        ("less time than look-up tables: whole model", 4, "4", "table", whole, _SECONDS),
    ):
        times = _times(results, table, base, "ours", functions, keys)
        if times is not None:
            yield aim, f"{wanted}×", _ratio(times), times >= wanted


def _against_peers(results: Results) -> Iterator[Aim]:
    """A BERT-base layer, in one run."""
    layers = {record["system"]: record for record in results.of("peer") if record["task"] == "layer"}
    for peer, own, what, wanted, keys in (
        ("crypten", "comet", "online bytes", 12, _ONLINE),
        ("spu-semi2k", "comet", "online bytes", 12, _ONLINE),
        ("spu-cheetah", "comet-pair", "bytes in all", 4, _ALL),
        ("spu-cheetah", "comet-pair", "CPU-seconds in all", 20, ("cpu_seconds",)),
    ):
        if {peer, own} <= layers.keys():
            one, other = (sum(layers[name][key] or 0 for key in keys) for name in (peer, own))
            yield f"fewer {what} than {peer}: a layer", f"{wanted}×", _ratio(one / other), one / other >= wanted
