"""`comet_mpc.train` as a library: adopt, unify, finetune, calibrate, evaluate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc import train
from comet_mpc.errors import CheckpointError, ConfigurationError, NotFinite, TaskDataError
from comet_mpc.models import certify as certifying
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.offline.sources import PAIR
from comet_mpc.train.batches import observe
from comet_mpc.train.fitting.layers import Fitting
from comet_mpc.train.nearest import Search, form_name
from comet_mpc.train.tuning import Lesson
from support.toy_model import make_checkpoint, toy_tokenizer
from support.training import KINDS, original, write_glue, write_rows
from support.watching import Heard

pytestmark = pytest.mark.train

SHORT = train.Recipe(epochs=1.0, batch=16, dropout=0.0)


@pytest.fixture
def glue(tmp_path: Path) -> train.Data:
    return train.Data(write_glue(tmp_path / "glue"), "SST-2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "source", labels=("0", "1"))


def counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        calls.append(function.__name__)
        return function(*given, **named)

    return call


def test_a_model_is_calibrated_once_and_proved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is `variance_tops`, whoever asks for it; of the estimate it takes one layer."""
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    prepared = train.prepare_adoption(model, data, SHORT, trained=False)
    calls: list[str] = []
    monkeypatch.setattr(certifying, "variance_tops", counted(certifying.variance_tops, calls))
    monkeypatch.setattr("comet_mpc.train.calibration.observe", counted(observe, calls))
    heard = Heard()
    made = prepared.run(tmp_path / "out", heard)
    assert sorted(calls) == ["observe", "variance_tops"]
    assert ["near the original" in heard.lines[0], heard.lines[1].startswith("taking")] == [True, True]
    assert len(heard.lines) == 2
    layers = load_checkpoint(model)[0].encoder.layers
    assert heard.told("proving the ranges: layers")[-1] == (layers, layers)
    done, parts = heard.told("fitting fitted functions")[-1]
    assert done == parts
    served = ServedModel.load(tmp_path / "out")  # proves it again: what is there can be served
    assert made.fingerprint == served.fingerprint
    assert made.costs.online_bytes == served.plan(1, made.costs.tokens, PAIR).online_bytes
    assert (made.rows, made.held_out, made.dev_rows, made.labelled) == (29, 3, 8, True)


def test_an_adoption_that_is_run_again_does_nothing_more(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    made, heard = train.adopt(model, data, tmp_path / "out", SHORT), Heard()
    before = (tmp_path / "out" / "config.json").read_bytes()
    again = train.adopt(model, data, tmp_path / "out", SHORT, watcher=heard)
    assert "nothing to do" in heard.lines[-1]
    assert (again.adopted, again.fingerprint, again.updates) == (made.adopted, made.fingerprint, made.updates)
    assert (tmp_path / "out" / "config.json").read_bytes() == before


def test_a_rule_that_is_named_is_the_one_that_is_fitted(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "embedding"), write_rows(tmp_path / "mine.csv", "embedding")

    def tried(**named: Any) -> list[tuple[str, int]]:
        starts = train.prepare_adoption(model, data, SHORT, **named).search.starts
        return [(form_name(start), start.config.steps) for start in starts]

    assert tried()[0][0] == "fitted"
    assert tried(rule="quadratic") == [("quadratic", 3)]
    assert tried(steps=4) == [("minimax", 4)]


def test_a_model_is_trained_only_if_it_is_not_near_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    made = train.adopt(model, data, tmp_path / "never", SHORT, trained=False)
    assert (made.updates, made.training_seconds) == (0, 0.0)
    assert made.fitted_tokens > 100
    monkeypatch.setattr("comet_mpc.train.adoption.TRAIN_BELOW", made.nearness)
    assert train.adopt(model, data, tmp_path / "near", SHORT).updates == 0
    monkeypatch.setattr("comet_mpc.train.adoption.TRAIN_BELOW", made.nearness + 1e-6)
    assert train.adopt(model, data, tmp_path / "far", SHORT).updates == 2
    ServedModel.load(tmp_path / "never")


def test_training_that_does_not_bring_a_model_nearer_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    fitted = train.adopt(model, data, tmp_path / "fitted", SHORT, rule="near", trained=False)
    for after, updates in ((89.0, 0), (91.0, 2)):
        found = iter((90.0, after))
        monkeypatch.setattr(Search, "nearness", lambda *given, found=found: next(found))
        heard, out = Heard(), tmp_path / f"{after:g}"
        made = train.adopt(model, data, out, SHORT, rule="near", watcher=heard)
        assert (made.updates, made.nearness) == (updates, 90.0)
        assert (made.fingerprint == fitted.fingerprint) == (updates == 0)
        assert f"trained: {after:.2f} % near the original, 90.00 % before" in heard.lines
        assert ("taking the fitted model: it is nearer" in heard.lines) == (updates == 0)
        ServedModel.load(out)


def test_training_that_fails_leaves_the_fitted_model_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")

    def fail(*given: object) -> None:
        raise NotFinite("the loss is nan")

    monkeypatch.setattr(Lesson, "learn", fail)
    monkeypatch.setattr("comet_mpc.train.adoption.TRAIN_BELOW", 101.0)
    heard = Heard()
    assert train.adopt(model, data, tmp_path / "out", SHORT, watcher=heard).updates == 0
    assert "taking the fitted model: training failed: the loss is nan" in heard.lines
    ServedModel.load(tmp_path / "out")
    with pytest.raises(NotFinite):
        train.adopt(model, data, tmp_path / "asked", SHORT, trained=True)


def test_training_that_nobody_asked_for_has_the_original_as_its_only_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have labels; what is wanted is a model near the original, right or wrong."""
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    monkeypatch.setattr("comet_mpc.train.adoption.TRAIN_BELOW", 101.0)
    lessons: list[tuple[float, bool]] = []
    learn = Lesson.learn

    def noted(self: Lesson, start: Any, out: Path, recipe: train.Recipe, *rest: Any) -> Any:
        assert self.judged is not None
        original_says = self.judge.labels.tolist() == self.judged.argmax(axis=1).tolist()
        lessons.append((recipe.task_weight, original_says))
        return learn(self, start, out, recipe, *rest)

    monkeypatch.setattr(Lesson, "learn", noted)
    prepared = train.prepare_adoption(model, data, SHORT)
    lesson = prepared.lesson
    assert lesson.judged is not None
    wrong = 1.0 - lesson.judged.argmax(axis=1).astype(np.float32)
    prepared = replace(prepared, lesson=replace(lesson, judge=replace(lesson.judge, labels=wrong)))
    prepared.run(tmp_path / "needed")
    replace(prepared, trained=True).run(tmp_path / "asked")
    assert lessons == [(0.0, True), (1.0, False)]


def test_the_estimate_counts_training_where_there_may_be_some(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    never, perhaps, asked = (train.prepare_adoption(model, data, SHORT, trained=each) for each in (False, None, True))
    assert (never.learning, never.seconds) == (0.0, sum(never.each))
    assert "to train" not in never.summary
    for each in (perhaps, asked):
        assert each.learning > 0.0
        assert each.seconds == sum(each.each) + each.learning
        assert " more to train" in each.summary
    assert "more to train if none are 98 % near" in perhaps.summary
    assert "near" not in asked.summary.split(" more to train")[1].split(".")[0]


def test_a_fit_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    whole = train.adopt(model, data, tmp_path / "whole", SHORT, trained=False)
    stopped = train.prepare_adoption(model, data, SHORT, trained=False)
    layers: list[int] = []
    fit_layer = Fitting._fit_layer

    def broken(self: Fitting, index: int, step: Any) -> None:
        layers.append(index)
        if len(layers) == 2:
            raise KeyboardInterrupt
        fit_layer(self, index, step)

    monkeypatch.setattr(Fitting, "_fit_layer", broken)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(tmp_path / "out")
    made = stopped.run(tmp_path / "out")
    assert layers == [0, 1, 1]  # the first layer is not fitted again
    assert made.fingerprint == whole.fingerprint
    assert not list((tmp_path / "out").glob("fit-*"))
    with pytest.raises(ConfigurationError, match="other settings"):
        train.adopt(model, data, tmp_path / "out", SHORT, trained=True)


def test_too_few_rows_say_how_many_are_needed(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    rows = data.read_text().splitlines()
    data.write_text("\n".join(rows[:11]) + "\n")
    with pytest.raises(TaskDataError, match=r"too few rows to fit: \d row.* about \d+ such rows are needed"):
        train.prepare_adoption(model, train.Data(data, limit=3), SHORT)


def test_better_names_for_labels(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    train.adopt(model, data, tmp_path / "out", SHORT, labels=("SPAM", "HAM"))
    assert load_checkpoint(tmp_path / "out")[0].encoder.labels == ("SPAM", "HAM")
    with pytest.raises(ConfigurationError, match="3 names for a model with 2 labels"):
        train.adopt(model, data, tmp_path / "other", labels=("a", "b", "c"))


def test_a_model_that_is_adopted_already_is_refused(tmp_path: Path) -> None:
    model, data = make_checkpoint(tmp_path / "model", **KINDS["label"]), write_rows(tmp_path / "mine.csv", "label")
    with pytest.raises(ConfigurationError, match="does not have GeLU"):
        train.adopt(model, data, tmp_path / "out")


def test_neurons_are_finer_in_a_model_whose_answers_feel_their_rounding(glue: train.Data, tmp_path: Path) -> None:
    bits = {}
    for loud in (1.0, 1000.0):
        directory = make_checkpoint(tmp_path / f"loud-{loud:g}", labels=("0", "1"), rule="quadratic", row_steps=0)
        config, tensors = load_checkpoint(directory)
        tensors["classifier.weight"] *= loud
        save_checkpoint(directory, config, tensors, tokenizer=toy_tokenizer().to_str().encode())
        heard = Heard()
        found = train.calibrate(directory, glue, watcher=heard)
        config, tensors = load_checkpoint(directory)
        assert config == found.config
        check_ranges(config, tensors)
        rules = config.sites["activation"].root, config.sites["scores"].root
        assert rules[0] is not None
        assert rules[1] is not None
        assert rules[1].fraction_t == 13
        bits[loud] = rules[0].fraction_t
        assert ("neurons get 15 fraction bits" in "\n".join(heard.lines)) == (bits[loud] == 15)
        assert all(len(site.seen) == 5 for site in config.sites.values())
        assert found.below("scores") == 0.0
    assert bits == {1.0: 13, 1000.0: 15}


def test_a_checkpoint_whose_training_was_stopped_is_calibrated_by_hand(
    glue: train.Data, source: Path, tmp_path: Path
) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("epoch 1"):
            raise KeyboardInterrupt

    recipe = train.Recipe(epochs=2.0)
    train.unify(source, tmp_path / "unified")
    with pytest.raises(KeyboardInterrupt):
        train.finetune(tmp_path / "unified", glue, tmp_path / "out", recipe, watcher=Heard(interrupt))
    with pytest.raises(CheckpointError, match="not in the certified form"):
        ServedModel.load(tmp_path / "out")
    train.calibrate(tmp_path / "out", glue)
    assert ServedModel.load(tmp_path / "out").config.certified


@pytest.mark.parametrize("activation", ["gelu", "smu"])
@pytest.mark.parametrize("attention", ["softmax", "relu", "smu"])
def test_every_combination_of_the_paper(
    glue: train.Data, source: Path, tmp_path: Path, activation: Any, attention: Any
) -> None:
    form = train.Form("paper", activation=activation, attention=attention, attention_mu=0.1)
    made = train.unify(source, tmp_path / "out", form)
    assert (made.config.activation.kind, made.config.attention.kind) == (activation, attention)
    recipe = train.Recipe(epochs=1.0, mode="exact")
    tuned = train.finetune(tmp_path / "out", glue, tmp_path / "tuned", recipe)
    assert (tuned.mode, tuned.updates) == ("exact", 2)
    if "smu" in (activation, attention):
        found = train.calibrate(tmp_path / "out", glue)
        assert not any(site.certified_high for site in found.config.sites.values())


def test_a_teacher_alone_is_enough_and_nobody_is_too_little(glue: train.Data, source: Path, tmp_path: Path) -> None:
    train.unify(source, tmp_path / "plain", train.Form("unmodified"))
    made = train.unify(tmp_path / "plain", tmp_path / "unified", task="SST-2")
    assert (made.config.task, made.untrained) == ("SST-2", ())
    recipe = train.Recipe(epochs=1.0, task_weight=0.0, fit_tokens=64)
    data = train.Data(glue.path, "SST-2", limit=40, spread=True)
    with pytest.raises(ConfigurationError, match="nothing to learn from"):
        train.finetune(tmp_path / "unified", data, tmp_path / "tuned", recipe)
    found = train.finetune(tmp_path / "unified", data, tmp_path / "tuned", recipe, teacher=tmp_path / "plain")
    assert (found.label_weight, found.fit_tokens, found.distilled) == (0.0, 64, True)
    assert (found.rows, found.held_out.rows, found.spread) == (36, 4, True)
    assert found.teacher_scores is not None


def test_only_rows_from_all_over_the_file_reach_its_end(glue: train.Data, source: Path, tmp_path: Path) -> None:
    rows = glue.path / "SST-2" / "train.tsv"
    rows.write_text(rows.read_text().removesuffix("\n").rpartition("\n")[0] + "\tone column too many\nfilm good\t1\n")
    train.unify(source, tmp_path / "plain", train.Form("unmodified"))
    first, spread = (train.Data(glue.path, "SST-2", limit=40, spread=spread) for spread in (False, True))
    assert train.finetune(tmp_path / "plain", first, tmp_path / "tuned", SHORT).rows == 36
    with pytest.raises(TaskDataError, match="row 64: 3 columns"):
        train.finetune(tmp_path / "plain", spread, tmp_path / "tuned", SHORT)


def test_steps_are_tried_where_a_model_has_them(glue: train.Data, source: Path, tmp_path: Path) -> None:
    train.unify(source, tmp_path / "plain", train.Form("unmodified"))
    train.unify(source, tmp_path / "unified", train.Form(steps=3))
    found = train.evaluate(tmp_path / "unified", glue, rule="newton", steps=2)
    assert (found.rule, found.steps, found.rows) == ("newton", 2, 32)
    assert 0.0 <= found.scores["accuracy"] <= 100.0
    with pytest.raises(ConfigurationError, match="takes no steps"):
        train.evaluate(tmp_path / "unified", glue, mode="exact", steps=2)
    with pytest.raises(ConfigurationError, match="unmodified"):
        train.evaluate(tmp_path / "plain", glue, rule="newton")
    with pytest.raises(ConfigurationError, match="nothing to calibrate"):
        train.calibrate(tmp_path / "plain", glue)


def test_labels_that_do_not_fit_are_refused(glue: train.Data, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", labels=("spam", "ham"))
    with pytest.raises(ConfigurationError, match="spam, ham"):
        train.evaluate(model, glue)


def test_learnt_alpha_and_mu_cannot_be_certified(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be certified"):
        train.Form(trainable=True)
    with pytest.raises(ConfigurationError, match="tanh has no protocol"):
        train.Form(pooler="tanh")
    assert train.unify(source, tmp_path / "out", train.Form("paper", trainable=True)).config.activation.trainable


def test_a_text_that_is_too_long_is_cut_and_said(glue: train.Data, tmp_path: Path) -> None:
    model, heard = make_checkpoint(tmp_path / "model", labels=("0", "1"), positions=6), Heard()
    train.evaluate(model, glue, watcher=heard)
    assert heard.lines == ["dev: 32 of 32 texts were truncated to 6 tokens"]
