"""The paper's forms inside the protocol: equal to their plaintext, untrusted out of range, refused as a service."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import CheckpointError, CometError, ConfigurationError
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.tasks import TASKS, Example
from comet_research.cli.main import app
from comet_research.paper import Parties, UncertifiedModel, evaluate_uncertified
from support.toy_model import make_checkpoint, some_texts

S_GELU = ActivationChoice(mu=1 / math.sqrt(2), normalised=False)
SOFTMAX_STAR = AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1.0)
S_SOFTMAX_STAR = AttentionChoice(kind="smu", power=1, cosine=False, mu=0.5)
ATTENTIONS = {"relu": SOFTMAX_STAR, "smu": S_SOFTMAX_STAR}
TEXTS = some_texts(2, words=5)
TWIN = 0.05
PARTIES = 0.1


def seen(layers: int = 2, top: float = 1.0) -> dict[str, tuple[float, ...]]:
    """Quantiles as calibration finds them, wide enough for the toy models; times `top`."""
    found: dict[str, tuple[float, ...]] = {}
    found |= {"embeddings.norm": (0.3, 0.4, 2.0, 4.0, 8.0), "pooler": (1.0, 1.0, 2.0, 5.0, 12.0)}
    for i in range(layers):
        found[f"layers.{i}.activation"] = (0.5, 0.5, 2.0, 12.0, 24.0 * top)
        found[f"layers.{i}.scores"] = (0.0, 0.01, 2.0, 20.0, 26.0)
        found[f"layers.{i}.denominators"] = (0.03, 0.03, 0.3, 1.0, 1.4)
        found |= {f"layers.{i}.{part}_norm": (0.2, 0.3, 2.0, 6.0, 10.0) for part in ("attention", "output")}
    return found


@pytest.fixture(scope="module", params=[(a, b) for a in ("bert", "roberta", "mpnet") for b in ATTENTIONS])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, attention = request.param
    form = (S_GELU, ATTENTIONS[attention])
    return make_checkpoint(tmp_path_factory.mktemp("model"), architecture=architecture, form=form, seen=seen(), steps=4)


@pytest.mark.service
def test_two_parties_the_twin_and_real_arithmetic_agree(directory: Path) -> None:
    with Parties(directory) as parties:
        model = parties.model
        query = model.texts.encode(TEXTS)
        outcome = parties.run(query)
    twin = run_twin(lambda session: model.answer(query)(session, model.fixed))
    assert outcome.trusted, outcome.why
    assert twin is not None
    assert np.abs(twin - model.plain_states(query)[-1]).max() < TWIN
    assert np.abs(outcome.logits - twin).max() < PARTIES


@pytest.mark.train
def test_torch_has_the_same_states_from_the_same_file(directory: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    from comet_mpc.train.model import UnifiedModel

    model = UncertifiedModel.load(directory)
    query = model.texts.encode(TEXTS)
    config, tensors = load_checkpoint(directory)
    for name in model.texts.embeddings:
        tensors[f"embeddings.{name}"] = tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32)
    ids = np.full(query.mask.shape, config.encoder.padding)
    for row, text in zip(ids, TEXTS, strict=True):
        found = model.texts.tokens([text])[0].ids
        row[: len(found)] = found
    # all rules in force, but for embeddings, which the client normalises exactly
    rules = {name: site.rule for name, site in config.sites.items() if name != "embeddings.norm"}
    net: Any = UnifiedModel.from_tensors(config, tensors).eval().use("served", rules)
    with torch.no_grad():
        logits, hidden = net(torch.tensor(ids), torch.tensor(query.mask).long())
    real = model.plain_states(query)
    tokens = query.mask == 1.0
    for i, layer in enumerate(net.layers):
        rows = ((hidden[i + 1] - layer.output_norm.bias) / layer.output_norm.weight).detach().numpy()
        assert np.abs(rows - real[i])[tokens].max() < 1e-3, i
    assert np.abs(logits.numpy() - real[-1]).max() < 1e-3


def test_no_service_takes_such_a_model(directory: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be served.*--form certified"):
        ServedModel.load(directory)


@pytest.mark.service
def test_a_value_beyond_its_range_makes_the_result_untrusted(tmp_path: Path) -> None:
    form = (S_GELU, S_SOFTMAX_STAR)
    with Parties(make_checkpoint(tmp_path, form=form, seen=seen(top=0.02), steps=4)) as parties:
        examples = [Example(text, None, 0) for text in TEXTS]
        report = evaluate_uncertified(parties, examples, TASKS["SST-2"])
    assert "times the bound" in report["first_reason"]
    assert report["untrusted"] == 2
    assert not report["certified"]


@pytest.mark.service
def test_the_flooded_guess_runs_and_says_that_it_leaks(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, form=(S_GELU, S_SOFTMAX_STAR), seen=seen(), steps=4)
    with Parties(tmp_path, "paper") as parties:
        report = evaluate_uncertified(parties, [Example(TEXTS[0], None, 1)], TASKS["SST-2"])
    assert report["private"] is False
    minimax = UncertifiedModel.load(tmp_path)
    assert not minimax.leaks
    assert report["rounds"] > minimax.plan(minimax.texts.encode(TEXTS[:1])).rounds


@pytest.mark.service
def test_the_parties_are_processes_and_end_with_their_user(tmp_path: Path) -> None:
    parties = Parties(make_checkpoint(tmp_path, form=(S_GELU, S_SOFTMAX_STAR), seen=seen(), steps=4))
    with parties:
        workers = [worker.process for worker in parties._crew._workers]
        assert [worker.name for worker in workers] == ["comet dealer", "comet server"]
        assert all(worker.is_alive() and worker.pid != os.getpid() for worker in workers)
        workers[1].kill()
        with pytest.raises(CometError, match="server"):
            parties.run(parties.model.texts.encode(TEXTS))
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"activation": msgspec.structs.replace(S_GELU, kind="gelu")}, "GeLU has no protocol"),
        ({"attention": msgspec.structs.replace(SOFTMAX_STAR, kind="softmax")}, "Softmax has no protocol"),
        ({"pooler": "tanh"}, "tanh has no protocol"),
        ({"sites": {}}, "comet calibrate"),
    ],
)
def test_what_has_no_protocol_is_named(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    make_checkpoint(tmp_path, form=(S_GELU, SOFTMAX_STAR), seen=seen(), steps=4)
    config, tensors = load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, msgspec.structs.replace(config, **change), tensors)
    with pytest.raises((ConfigurationError, CheckpointError), match=what):
        UncertifiedModel.load(tmp_path)


def test_the_certified_form_needs_no_research(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="comet eval --secure"):
        UncertifiedModel.load(make_checkpoint(tmp_path))


@pytest.mark.service
@pytest.mark.parametrize("rule", ["own", "paper"])
def test_the_command_says_that_nothing_is_certified(rule: str, tmp_path: Path) -> None:
    form = (S_GELU, S_SOFTMAX_STAR)
    model = make_checkpoint(tmp_path / "model", form=form, seen=seen(), steps=4, labels=("0", "1"))
    (tmp_path / "SST-2").mkdir()
    rows = (f"{text}\t{label}" for label, text in enumerate(TEXTS))
    (tmp_path / "SST-2" / "dev.tsv").write_text("\n".join(["sentence1\tlabel", *rows]) + "\n")
    words = [str(model), "--task", "SST-2", "--data", str(tmp_path), "--rule", rule, "--json", str(tmp_path / "r.json")]
    shown = CliRunner().invoke(app, ["paper", *words], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "NOT CERTIFIED" in shown.output
    assert ("NOT PRIVATE" in shown.output) == (rule == "paper")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["runs"] == 2
    assert found["certified"] is False
    assert rule == "paper" or found["logit_difference"]["largest"] < PARTIES
