"""`comet-lab report`: tables and drawings from whatever records there are, and a page that a browser shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from comet_mpc.errors import ConfigurationError
from comet_research.bench.published import EXPONENTS_APART, GUESS_SPAN, OFF_AFTER_STEPS, SHARE_TELLS
from comet_research.cli.main import app
from comet_research.report.accuracy import form_grids, protocol_grid, step_grid, summary_grid
from comet_research.report.charts import Axis, Bars, Point, Scatter, Series, picture
from comet_research.report.claims import aim_grid, claim_grid
from comet_research.report.costs import model_grid, operation_grid, peer_grids
from comet_research.report.documents import rewritten
from comet_research.report.grid import Grid
from comet_research.report.page import make_page, sections
from comet_research.report.published import cost_grids
from comet_research.report.published_models import accuracy_grids
from comet_research.report.records import Results, read_results
from comet_research.report.trade_off import trade_offs
from support.documents import ROOT
from support.waiting import PATIENCE

RECORDED = ROOT / "research" / "benchmarks" / "results"


def write(directory: Path, name: str, content: Any) -> None:
    path = directory / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def model(tokens: int, rule: str, source: str = "dealer", online: int = 10**8) -> dict[str, Any]:
    cost = {"operation": "activation", "online_bytes": online, "cpu_seconds": [0.1, 0.2]}
    return {
        "model": "bert-base", "layers": 12, "tokens": tokens, "batch": 1, "rule": rule, "source": source,
        "network": None, "online_bytes": online, "rounds": 60, "offline_bytes": 3 * online, "seconds": 1.5,
        "cpu_seconds": [0.5, 0.7], "offline_cpu_seconds": [2.0, 11.0], "peak_rss": [10**8, 2 * 10**8],
        "max_logit_difference": 0.001, "operations": [cost],
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Records as they are today, and with rules that nobody has thought of."""
    for seed, plain, certified in ((1, 80.0, 78.0), (2, 82.0, 81.0)):
        write(tmp_path, f"accuracy/mini-lm-mrpc-seed{seed}-unmodified", {"best": plain})
        write(tmp_path, f"accuracy/mini-lm-mrpc-seed{seed}-certified-3", {"best": certified, "steps": 3})
    write(tmp_path, "accuracy/mini-lm-sst-2-seed1-unmodified", {"best": 90.0})
    write(tmp_path, "accuracy/mini-lm-sst-2-seed1-certified-3", {"best": 89.0, "steps": 3})
    write(tmp_path, "accuracy/mini-lm-sst-2-seed1-certified-quintic", {"best": 89.5})
    write(tmp_path, "accuracy/mini-lm-sst-2-seed1-certified-3-undistilled", {"best": 87.0})
    write(tmp_path, "accuracy/mini-lm-sst-2-seed1-paper-smu-4", {"best": 88.5})
    write(tmp_path, "accuracy/mini-lm-rte-seed1-unmodified", {"best": 60.0})
    for count, score in enumerate((50.0, 60.0, 70.0)):
        name = f"accuracy/mini-lm-sst-2-seed1-certified-3-eval-quintic-{count}"
        write(tmp_path, name, {"scores": {"accuracy": score}})
    write(tmp_path, "other", {"anything": 1})
    differences = {"median": 0.001, "99 %": 0.02, "largest": 0.0321}
    secure = {"task": "SST-2", "examples": 20, "agreement": 0.95, "logit_difference": differences}
    scores = {"scores": {"accuracy": 80.0}, "plain_scores": {"accuracy": 85.0}}
    write(tmp_path, "secure/sst2-demo", secure | scores | {"command": "comet eval MODEL --secure"})
    write(tmp_path, "model/a", [model(32, "quintic"), model(64, "quintic", online=2 * 10**8)])
    write(tmp_path, "model/b", [model(128, "quintic", "pair")])
    return read_results(tmp_path)


def test_tables_of_scores_have_every_number(results: Results) -> None:
    text = "\n".join(grid.markdown() for grid in (*form_grids(results), step_grid(results), protocol_grid(results)))
    for line in (
        "| form | MRPC | SST-2 | mean difference |",
        "| unmodified | 81.00±1.41 | 90.00 |  |",
        "| certified-3 | 79.50±2.12 | 89.00 |  |",
        "| less unmodified | -1.50±0.71 | -1.00 | -1.25 (2 of 5) |",
        "| certified-quintic |  | 89.50 |  |",
        "| less certified-3-undistilled |  | +2.00 | +2.00 (1 of 5) |",
        "| less unmodified | -1.50 | -1.50 (1 of 5) |",
        "| mini-lm certified-3 | SST-2 | quintic | 50.00 | 60.00 | 70.00 |",
        "| sst2-demo | SST-2 | 20 | 80.00 | 85.00 | 95.0% | 0.0010 | 0.0200 | 0.0321 |",
    ):
        assert line in text


def trained(score: float, rule: str = "minimax", **more: Any) -> dict[str, Any]:
    """A record of the recipe in which rows held out chose the epoch."""
    held = {"held_out": {"rows": 10, "seed": 0}, "rows": 90, "batch": 32, "rule": rule, "steps": 3}
    return {"best": 1.0, "scores": {"accuracy": score}, **held, **more}


def test_scores_of_two_recipes_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, "accuracy/mini-mrpc-seed1-unmodified", trained(80.0))
    write(tmp_path, "accuracy/mini-mrpc-seed1-certified-quadratic", trained(79.0, "quadratic"))
    write(tmp_path, "accuracy/mini-mrpc-seed1-certified-3", {"best": 85.0, "steps": 3})  # dev.tsv chose the epoch
    write(tmp_path, "accuracy/mini-mrpc-seed1-certified-linear", trained(70.0, "linear", rows=45))
    text = "\n".join(grid.markdown() for grid in form_grids(read_results(tmp_path)))
    assert "| certified-quadratic | 79.00 |  |\n| less unmodified | -1.00 | -1.00 (1 of 5) |" in text
    assert "| certified-linear | 70.00 |  |\n| less unmodified |  |  |" in text
    assert "85.00" not in text
    assert "mini, dev.tsv chose the epoch | certified-3 |  | 85.00 |" in summary_grid(read_results(tmp_path)).markdown()


def test_accuracy_is_drawn_against_bytes_with_other_systems_on_the_same_axes(tmp_path: Path) -> None:
    write(tmp_path, "accuracy/mini-mrpc-seed1-unmodified", trained(80.0))
    taught = {"teacher_scores": {"accuracy": 80.0}}
    write(tmp_path, "accuracy/mini-mrpc-seed1-certified-quadratic", trained(79.0, "quadratic", **taught))
    write(tmp_path, "accuracy/mini-mrpc-seed1-through-newton-3", trained(78.0, "newton", **taught))
    write(tmp_path, "accuracy/mini-mrpc-seed1-short-certified-quadratic", trained(70.0, "quadratic", **taught))
    plan = {"model": "bert-base", "digest": "", "operations": [], "source": "pair", "tokens": 128, "rule": "quadratic"}
    write(tmp_path, "plan/a", plan | {"steps": None, "online_bytes": 12 * 10**6, "offline_bytes": 12 * 10**7})
    peer = {"record": "peer", "task": "layer", "tokens": 128, "right": True, "offline_bytes": None}
    write(tmp_path, "peers/layer", [peer | {"system": "crypten", "online_bytes": 10**9}])
    online, everything = trade_offs(read_results(tmp_path))
    for drawing, size in ((online, 1e6), (everything, 11e6)):
        found = {series.name: [(p.x, p.y, p.label) for p in series.points] for series in drawing.series}
        assert found == {"MRPC": [(size, -1.0, "quadratic")], "other systems, measured": [(1e9, 0.0, "crypten")]}


def test_a_mean_over_tasks_is_of_those_that_were_trained_through_the_most_rules(tmp_path: Path) -> None:
    for task, rules in {"mrpc": ("linear", "quadratic"), "rte": ("linear", "quadratic"), "sst-2": ("linear",)}.items():
        write(tmp_path, f"accuracy/mini-{task}-seed1-unmodified", trained(80.0))
        for rule in rules:
            lost = {"linear": 3.0, "quadratic": 1.0}[rule] + (task == "rte")
            record = trained(80.0 - lost, rule, teacher_scores={"accuracy": 80.0})
            write(tmp_path, f"accuracy/mini-{task}-seed1-short-certified-{rule}", record)
    for rule in ("linear", "quadratic"):
        plan = {"model": "bert-base", "digest": "", "operations": [], "source": "pair", "tokens": 128, "rule": rule}
        write(tmp_path, f"plan/{rule}", plan | {"steps": None, "online_bytes": 12 * 10**6, "offline_bytes": 0})
    unlike = trained(60.0, "linear", teacher_scores={"accuracy": 80.0})  # the other rule has no such seed
    write(tmp_path, "accuracy/mini-mrpc-seed2-short-certified-linear", unlike)
    online, _ = trade_offs(read_results(tmp_path))
    found = {series.name: {p.label: p.y for p in series.points} for series in online.series if series.points}
    assert found == {"mean over MRPC, RTE": {"linear": -3.5, "quadratic": -1.5}}


def costs(
    function: str, method: str, size: int, seconds: float, told: float | None, table: str = "3", keys: int = 0,
    offline_seconds: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """A function of a whole model, as `comet-lab bench paper` records it."""
    paper = {"paper_seconds": told, "paper_bytes": None if told is None else told * 1e9}
    amounts = {"online_bytes": size, "offline_bytes": 2 * size, "key_bytes": keys, "rounds": 3, "seconds": seconds}
    amounts |= {"offline_seconds": offline_seconds, "tokens": 128}
    named = {"table": table, "model": "bert-base", "function": function, "method": method, "private": True}
    return {"record": "published", "max_abs_error": 1e-3, "why": "so", **named, **amounts, **paper}


def test_a_papers_table_of_costs_says_how_many_times_ours_and_counts_the_whole_model(tmp_path: Path) -> None:
    records = [
        costs("activation", "exponential", 8 * 10**9, 6.0, 34.1, offline_seconds=4.0),
        costs("activation", "ours", 10**9, 2.0, None, offline_seconds=3.0),
        costs("linear", "every", 10**9, 1.0, None, offline_seconds=5.0),
        costs("layer", "exponential", 9 * 10**9, 7.0, None, offline_seconds=8.0) | {"paper_seconds": 74.8},
        costs("layer", "ours", 2 * 10**9, 3.0, None, offline_seconds=7.0),
    ]
    write(tmp_path, "paper/3", records)
    (grid,) = cost_grids(read_results(tmp_path))
    text = grid.markdown()
    for line in (
        "| activation | exponential | 34.10 | 8.00 | 16.0 GB | 3 | 34.1 | 6.0 | 4.0 | 8, 8, 3, 2 | 1.0e-03 |",
        "| activation | ours |  | 1.00 | 2.00 GB | 3 |  | 2.0 | 3.0 |  | 1.0e-03 |",
        "| linear | every |  | 1.00 | 2.00 GB | 3 |  | 1.0 | 5.0 |  | 1.0e-03 |",
        "| whole model | exponential |  | 9.00 | 18.0 GB | 3 | 74.8 | 7.0 | 8.0 | 4.5, 4.5, 2.3, 1.5 |  |",
        "| whole model | ours |  | 2.00 | 4.00 GB | 3 |  | 3.0 | 7.0 |  |  |",
    ):
        assert line in text, text


def test_keys_of_a_connection_are_counted_once_for_several_functions(tmp_path: Path) -> None:
    records = [
        costs("layer_norm", "table", 10**8, 1.0, None, "4", keys=3 * 10**8) | {"key_seconds": 0.5},
        costs("activation", "table", 10**9, 6.0, None, "4", keys=10**9, offline_seconds=2.0) | {"key_seconds": 1.0},
    ]
    write(tmp_path, "paper/4", records)
    (grid,) = cost_grids(read_results(tmp_path))
    offline = {line[0]: (line[4], line[8]) for line in grid.rows}
    assert offline["activation"] == ("3.00 GB", "3.0")
    assert offline["all three"] == ("3.20 GB", "3.0")  # not 3.5: one connection has one set of keys


def lines(directory: Path, grid: Callable[[Results], Grid]) -> dict[str, list[str]]:
    return {line[0]: line[1:] for line in grid(read_results(directory)).rows}


@pytest.mark.parametrize(("times", "holds"), [(2.8, "yes"), (2.7, "less"), (1.2, "less"), (1.05, "no")])
def test_a_claim_of_costs_holds_if_the_papers_own_method_reaches_it_here(
    times: float, holds: str, tmp_path: Path
) -> None:
    claim = "fewer online bytes than the exponential guess: activation"  # the paper: 3.4 and 3.9, of which 80 % do
    ours = [costs("activation", "exponential", 7000, 1.0, None), costs("activation", "ours", 1000, 1.0, None)]
    theirs = costs("activation", "paper", round(7000 / times), 1.0, None)
    shorter = {**costs("activation", "exponential", 10**9, 1.0, None), "tokens": 64}
    write(tmp_path, "paper/3", [*ours, theirs, shorter])
    assert lines(tmp_path, claim_grid) == {claim: ["3.4×, 3.9×", f"{7000 / round(7000 / times):.2g}×", "7×", holds]}
    assert lines(tmp_path, aim_grid) == {claim: ["5×", "7×", "yes"]}


def test_time_in_all_counts_preparation_and_a_whole_model_is_of_layers_in_one_piece(tmp_path: Path) -> None:
    records = [
        costs(function, method, 10, more * seconds, None, "4", offline_seconds=more * prepared)
        for method, seconds, prepared in (("table", 25.0, 6.0), ("paper", 7.0, 24.0), ("ours", 4.0, 12.0))
        for function, more in (("layer", 1.0), ("layer_norm", 2.0), ("activation", 3.0), ("attention", 4.0))
    ]
    write(tmp_path, "paper/4", [*records, costs("linear", "every", 10, 1.0, None, "4", offline_seconds=0.0)])
    found, aims = lines(tmp_path, claim_grid), lines(tmp_path, aim_grid)
    assert found["less time online than look-up tables: whole model"] == ["3.5×, 3.1×", "3.6×", "6.2×", "yes"]
    assert found["less time in all than look-up tables: whole model"] == ["3.5×, 3.1×", "1×", "1.9×", "no"]
    assert aims["less time online than look-up tables: whole model"] == ["4×", "6.2×", "yes"]
    assert aims["less time in all than look-up tables: whole model"] == ["4×", "1.9×", "no"]


def test_a_claim_of_scores_holds_unless_chance_decides(tmp_path: Path) -> None:
    """Seeds differ by 1.0 on either side: a standard deviation of 0.71, so two standard errors of two runs are 1.0."""
    claim, gain = "s-GeLU and s-Softmax* together lose little", "with trained α and μ they gain 1 point or more"
    for lost, shown, holds in ((-0.5, "+0.50", "yes"), (0.5, "-0.50", "unclear"), (2.5, "-2.50", "no")):
        for seed, more in ((1, 0.5), (2, -0.5)):
            for stage in ("", "-trainable"):
                record = trained(80.0 - lost + more, teacher_scores={"accuracy": 80.0})
                write(tmp_path, f"accuracy/mini-mrpc-seed{seed}-short-paper-smu-smu{stage}", record)
        found = lines(tmp_path, claim_grid)
        assert found[claim] == ["-0.11, +0.00", f"{shown} ± 1.0 (1 task)", "", holds]
        assert found[gain][0] == "+0.81, +1.82"
        assert found[gain][-1] == ("unclear" if lost == -0.5 else "no")
    (tmp_path / "accuracy" / "mini-mrpc-seed2-short-paper-smu-smu.json").unlink()
    (tmp_path / "accuracy" / "mini-mrpc-seed2-short-paper-smu-smu-trainable.json").unlink()
    assert lines(tmp_path, claim_grid)[claim] == [
        "-0.11, +0.00",
        "-2.00 (1 task)",
        "",
        "unclear",
    ]  # one seed says little


def test_claims_of_the_appendix(tmp_path: Path) -> None:
    def stated(statement: str, measured: float, unit: str = "", setting: str = "flooded, x") -> dict[str, Any]:
        same = {"record": "appendix", "paper": "so", "why": "so"}
        return same | {"statement": statement, "setting": setting, "measured": measured, "unit": unit}

    calls = {"activation by quad": 30.0, "attention by quad2": 40.0}
    calls |= {"activation by quadratic": 20.0, "attention by quadratic": 15.0}
    records = [
        stated(EXPONENTS_APART, 1.0),
        stated(SHARE_TELLS, 0.25),
        stated(SHARE_TELLS, 0.0001),
        stated(GUESS_SPAN, 20.0, setting="not flooded, x"),
        stated(GUESS_SPAN, 1.001),
        stated(OFF_AFTER_STEPS, 0.3),
        *(stated(f"{name}, 12 calls", size, "MB in all") for name, size in calls.items()),
    ]
    write(tmp_path, "paper/appendix", records)
    functions = [costs(name, "paper", 35 * 10**6, 1.0, None, "4") for name in ("activation", "attention")]
    write(tmp_path, "paper/4", functions)
    assert lines(tmp_path, claim_grid) == {
        "exponents of both flooded shares are about equal": ["up to 5 apart", "up to 1 apart", "", "yes"],
        "a flooded share tells nothing but its sign": [
            "nothing", "0.01% to 25% tell 2 from 1", "uniform", "no",
        ],
        "the guess of flooded shares follows 1/sqrt(x)": ["follows", "1.00× where that spans 10×", "", "no"],
        "4 steps from it are right (here: to 5 %)": ["right", "70% of x in [0.1, 10]", "", "no"],
        "as cheap as MPCFormer's quadratics: bytes in all": ["0.93× (time)", "0.33×", "2×", "no"],
    }  # fmt: skip


def test_an_aim_is_reached_or_not(tmp_path: Path) -> None:
    differences = {"median": 0.001, "99 %": 0.019, "largest": 0.0321}
    secure = {"task": "RTE", "examples": 200, "agreement": 0.99, "logit_difference": differences}
    write(tmp_path, "secure/mini-rte-quadratic", secure)
    write(tmp_path, "secure/mini-few-quadratic", secure | {"examples": 20, "agreement": 0.5})
    write(tmp_path, "secure/mini-sts-b-quadratic", secure | {"task": "STS-B", "agreement": None})
    for seed, certified in ((1, 79.5), (2, 78.0)):
        write(tmp_path, f"accuracy/mini-mrpc-seed{seed}-unmodified", trained(80.0))
        write(tmp_path, f"accuracy/mini-mrpc-seed{seed}-certified-quadratic", trained(certified, "quadratic"))
    peer = {"record": "peer", "task": "layer", "tokens": 128, "right": True, "offline_bytes": None}
    sizes = (("crypten", 349), ("comet", 10), ("spu-semi2k", 500))
    layers = [peer | {"system": name, "online_bytes": size, "right": name != "spu-semi2k"} for name, size in sizes]
    shorter = peer | {"system": "crypten", "online_bytes": 5, "tokens": 32}
    write(tmp_path, "peers/layer", [*layers, shorter])
    assert lines(tmp_path, aim_grid) == {
        "mini, certified: points against unmodified": ["-1", "-1.25±1.06 (1 task)", "no"],
        "labels as in real arithmetic (1 model, 200 rows each)": ["99.5 %", "99.0%", "no"],
        "99 % of logits within (2 models, 200 rows each)": ["0.02", "0.0190", "yes"],
        "fewer online bytes than crypten: a layer": ["35×", "34.9×", "no"],
    }


def test_aims_of_whole_encoders_are_those_of_fitted_functions_on_their_network(tmp_path: Path) -> None:
    usual = {
        "model": "bert-base", "layers": 12, "tokens": 128, "batch": 1, "steps": 3, "rule": "fitted", "source": "pair",
        "network": None, "online_bytes": 245_000_001, "offline_bytes": 720_000_000, "rounds": 390, "seconds": 30.0,
        "offline_seconds": 45.5, "cpu_seconds": [5.0, 5.0], "offline_cpu_seconds": [20.0, 41.0],
        "peak_rss": [900_000_000, 1_100_000_000], "max_logit_difference": 0.0,
    }  # fmt: skip
    write(tmp_path, "model/bert-base-128-fitted-pair", usual)
    write(tmp_path, "model/bert-base-128-fitted-pair-200mbit-10ms", usual | {"network": "200mbit/10ms"})
    write(tmp_path, "model/bert-base-128-quadratic-pair", usual | {"rule": "quadratic", "rounds": 500})
    write(tmp_path, "model/bert-base-64-fitted-pair", usual | {"tokens": 64, "rounds": 1})
    name = "bert-base, 128 tokens, pair"
    assert lines(tmp_path, aim_grid) == {
        f"{name}: rounds": ["430", "390", "yes"],
        f"{name}: online": ["245 MB", "245 MB", "no"],
        f"{name}: offline": ["720 MB", "720 MB", "yes"],
        f"{name}: CPU of both parties, offline included": ["70.0 s", "71.0 s", "no"],
        f"{name}: memory of the client": ["900 MB", "900 MB", "yes"],
        f"{name}: memory of the server": ["1.00 GB", "1.10 GB", "no"],
        f"{name} over 200mbit/10ms: from order to answer": ["75.0 s", "75.5 s", "no"],
    }


def test_twelve_layers_of_another_system_are_its_first_and_eleven_times_what_a_second_adds(tmp_path: Path) -> None:
    peer = {"record": "peer", "tokens": 128, "right": True, "system": "spu-cheetah"}
    one = peer | {"task": "layer", "online_bytes": 110, "offline_bytes": None}
    two = peer | {"task": "two_layers", "online_bytes": 200, "offline_bytes": None}
    write(tmp_path, "peers/layer", [one, two])
    whole = {
        "model": "bert-base", "layers": 12, "tokens": 128, "batch": 1, "steps": 3, "rule": "fitted", "source": "pair",
        "network": None, "online_bytes": 20, "offline_bytes": 35, "rounds": 390, "seconds": 30.0,
        "offline_seconds": 45.5, "cpu_seconds": [5.0, 5.0], "offline_cpu_seconds": [20.0, 41.0],
        "peak_rss": [1, 1], "max_logit_difference": 0.0,
    }  # fmt: skip
    write(tmp_path, "model/bert-base-128-fitted-pair", whole)
    write(tmp_path, "model/bert-base-128-fitted-pair-slow", whole | {"network": "1mbit/1ms", "online_bytes": 1})
    found = lines(tmp_path, aim_grid)
    assert found["fewer bytes in all than spu-cheetah: bert-base, twelve layers"] == ["20×", "20×", "yes"]
    assert not any("a layer" in name for name in found)


def test_other_systems_are_compared_with_the_one_of_ours_that_trusts_as_many(tmp_path: Path) -> None:
    def peer(system: str, third: str, size: int, seconds: float, **more: Any) -> dict[str, Any]:
        cost = {"online_bytes": size, "offline_bytes": None, "seconds": seconds, "cpu_seconds": 2 * seconds}
        same = {"record": "peer", "task": "layer", "tokens": 8, "rounds": 3, "peak_rss": size, "max_abs_error": 0.1}
        return same | cost | {"system": system, "third_party": third, "right": True} | more

    own = {"offline_bytes": 10, "offline_seconds": 3.0}
    records = [
        peer("comet", "a dealer", 10, 1.0, **own),
        peer("comet-pair", "none", 20, 2.0, **own),
        peer("crypten", "yes", 100, 8.0),
        peer("spu-cheetah", "none", 600, 10.0, right=False),
    ]
    write(tmp_path, "peers/layer", records)
    first, *_ = peer_grids(read_results(tmp_path))
    assert first.rows == [
        ["layer, 8", "crypten", "10", "5", "2", "8", "10", "right"],
        ["layer, 8", "spu-cheetah", "30", "20", "2", "5", "30", "WRONG"],
    ]


def test_a_papers_table_shows_one_recipe_and_differences_from_the_teacher(tmp_path: Path) -> None:
    write(tmp_path, "accuracy/mini-mrpc-seed1-unmodified", trained(80.0))
    write(tmp_path, "accuracy/mini-mrpc-seed1-certified-linear", trained(79.5, teacher_scores={"accuracy": 80.0}))
    write(
        tmp_path, "accuracy/mini-mrpc-seed2-short-certified-quadratic", trained(79.0, teacher_scores={"accuracy": 81})
    )
    write(tmp_path, "accuracy/base-rte-seed1-certified-quadratic", trained(70.0, teacher_scores={"accuracy": 70.5}))
    first, second, _ = (grid.markdown() for grid in accuracy_grids(read_results(tmp_path)))
    for text in (first, second):
        assert "| GeLU + Softmax (unmodified) | mini | - | 80.00 | - | - | - |  |" in text
        assert "| mini | - | 79.00 | - | - | - | -2.00 (1 of 5) |" in text
        assert "| base, full training | 70.00 | - | - | - | - | -0.50 (1 of 5) |" in text
        assert text.count("| base") == 1
    assert "79.50" not in second


def test_rows_of_a_papers_table_are_compared_over_the_same_tasks_and_seeds(tmp_path: Path) -> None:
    taught = {"teacher_scores": {"accuracy": 80.0}}
    write(tmp_path, "accuracy/mini-mrpc-seed1-unmodified", trained(80.0))
    write(tmp_path, "accuracy/mini-mrpc-seed1-short-certified-2", trained(79.0, "minimax", **taught))
    write(tmp_path, "accuracy/mini-mrpc-seed1-short-certified-quadratic", trained(78.0, "quadratic", **taught))
    write(tmp_path, "accuracy/mini-mrpc-seed2-short-certified-quadratic", trained(60.0, "quadratic", **taught))
    write(tmp_path, "accuracy/mini-rte-seed1-short-certified-quadratic", trained(50.0, "quadratic", **taught))
    first, second, _ = (grid.markdown() for grid in accuracy_grids(read_results(tmp_path)))
    assert "| minimax, 2 steps | mini | - | 79.00 | - | - | - | -1.00 (1 of 5) |" in second
    assert "| quadratic polynomial | mini | 50.00 | 69.00±12.73 | - | - | - | -2.00 (1 of 5) |" in second
    assert "| certified, quadratic root | mini | 50.00 | 69.00±12.73 | - | - | - | -20.50 (2 of 5) |" in first


def test_the_papers_tables_have_a_dash_and_a_command_for_what_nobody_has_run(tmp_path: Path) -> None:
    write(tmp_path, "accuracy/mini-mrpc-seed1-unmodified", trained(80.0))
    first, second, _ = accuracy_grids(read_results(tmp_path))
    assert "| GeLU + Softmax (unmodified) | mini | - | 80.00 | - | - | - |  |" in first.markdown()
    assert (
        "| plain Newton, 3 steps | paper, BERT-base | 70.80 | 86.90 | 88.60 | 92.20 | 56.40 | -1.01 |"
        in second.markdown()
    )
    assert "| plain Newton, 3 steps | mini | - | - | - | - | - | - |" in second.markdown()
    assert "python research/benchmarks/accuracy.py table 2" in second.note.replace("\n", " ")


def test_a_rule_that_is_new_is_shown_by_its_name(results: Results) -> None:
    assert "| bert-base, 12 | 64 | quintic | 200 MB | 60 | 600 MB |" in model_grid(results, "dealer").markdown()
    page = make_page(results)
    assert "bert-base/12, 128, quintic, pair" in page
    assert results.strange == ["other.json"]
    assert "Not shown: other.json" in page


def test_the_page_names_the_command_of_a_file(results: Results) -> None:
    assert "comet eval MODEL --secure" in make_page(results)


def test_a_result_without_what_it_needs_is_named(tmp_path: Path) -> None:
    write(tmp_path, "ops", [{"operation": "linear", "method": "x", "online_bytes": 1}])
    with pytest.raises(ConfigurationError, match=r"ops\.json: a result without 'shape'"):
        operation_grid(read_results(tmp_path))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"broken\.json is not JSON"):
        read_results(tmp_path)


def test_nothing_to_show(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "there are no results" in done.output
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")]).exit_code == 1


def test_on_a_terminal_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    done = CliRunner().invoke(app, ["report", str(results.directory), "--show"], catch_exceptions=False)
    assert "…" not in done.output
    assert "79.50±2.12" in done.output


def test_the_command_writes_a_page_and_the_documents(tmp_path: Path, results: Results) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("before\n\n<!-- results: protocol -->\nold\n<!-- end of results -->\n\nafter\n")
    page = tmp_path / "page.html"
    arguments = ["report", str(results.directory), "--page", str(page), "--docs", str(docs)]
    assert "page.md" in CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert "up to date" in CliRunner().invoke(app, arguments, catch_exceptions=False).output
    text = (docs / "page.md").read_text()
    assert "old" not in text
    assert "| sst2-demo |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert page.read_text().startswith("<!doctype html>")


def test_a_block_of_nothing_known_is_an_error(results: Results) -> None:
    with pytest.raises(ConfigurationError, match=r"no results 'nonsense'"):
        rewritten("<!-- results: nonsense -->\n<!-- end of results -->\n", results)


def test_a_drawing_has_every_point_that_is_on_it() -> None:
    points = [Point(1.0, 0.1), Point(10.0, 0.01), Point(100.0, float("inf")), Point(1000.0, 0.5)]
    svg, _ = Scatter("t", Axis("x", log=True), Axis("y", log=True), [Series("s", points)]).drawn()
    assert svg.count("<circle") == 3
    assert svg.count("<polyline") == 1
    svg, _ = Bars("t", Axis("x"), [("one", {"a": 1.0, "b": 2.0}), ("two", {"a": 3.0})]).drawn()
    assert svg.count("<rect") == 3
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height', svg)]
    assert widths[0] + widths[1] == pytest.approx(widths[2], abs=0.2)


def test_a_picture_is_an_svg_file_with_title_and_legend_inside() -> None:
    names = ["a rather long name of a series", "another one that is as long", "a & b"]
    bars = Bars("bytes < all", Axis("x"), [("one", dict.fromkeys(names, 1.0))])
    root = ElementTree.fromstring(picture(bars))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    texts = {text.text: text for text in root.iter(f"{space}text")}
    assert {"bytes < all", *names} <= texts.keys()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    groups = {group[-1].text: group.attrib["transform"] for group in root.iter(f"{space}g") if len(group) == 2}
    places = [tuple(map(float, re.findall(r"[\d.]+", groups[name]))) for name in names]
    assert places[0][1] < places[1][1] == places[2][1]  # two lines
    assert all(x < width and y + 12 < height for x, y in places)


class _Tags(HTMLParser):
    """Counts elements, and notices what is not closed and what would be loaded."""

    VOID = frozenset({"meta", "link", "br", "circle", "rect", "path", "line", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.loads += [value for name, value in attributes if name in ("src", "href") and value and value[0] != "#"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_of_what_is_recorded_is_whole_and_loads_nothing() -> None:
    results = read_results(RECORDED)
    page = make_page(results)
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loads == ["data:,"]
    assert "script" not in tags.count
    parts = [part for _, _, shown in sections(results) for part in shown]
    drawings = [part for part in parts if isinstance(part, Scatter | Bars)]
    assert tags.count["figure"] == len(drawings) > 10
    assert tags.count["table"] == len(parts) - len(drawings) + 1


_PROBE = """<!doctype html><iframe id="page" src="report.html" width="{width}" height="2000"></iframe>
<pre id="out"></pre><script>
document.getElementById("page").onload = event => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const drawn = [...page.querySelectorAll("figure > svg")].filter(svg => svg.getBoundingClientRect().height > 50);
  const wide = [...page.querySelectorAll("table, td, th, figure")].filter(
    each => each.getBoundingClientRect().right > root.clientWidth + 1);
  document.getElementById("out").textContent = "FOUND" + JSON.stringify({{
    drawn: drawn.length, wide: wide.length, scroll: root.scrollWidth - root.clientWidth,
    marks: page.querySelectorAll(".dot, .bar, .line").length}}) + "END";
}};
</script>"""


@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_the_page(width: int, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    results = read_results(RECORDED)
    (tmp_path / "report.html").write_text(make_page(results), "utf-8")
    (tmp_path / "probe.html").write_text(_PROBE.format(width=width))
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,2200", "--virtual-time-budget=5000",
    ]  # fmt: skip
    done = subprocess.run(
        [browser, *options, "--dump-dom", (tmp_path / "probe.html").as_uri()],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    said = re.search(r"FOUND(.*?)END", done.stdout)
    assert said is not None, done.stderr[-2000:]
    seen = json.loads(said[1])
    drawings = [p for _, _, shown in sections(results) for p in shown if isinstance(p, Scatter | Bars)]
    assert seen["drawn"] == len(drawings)
    assert seen["marks"] > 100
    assert seen["wide"] == 0
    assert seen["scroll"] == 0
    assert ":CONSOLE" not in done.stderr
