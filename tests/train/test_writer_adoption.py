"""Adoption of a decoder: from a model as others store it to one that is served, near the original, and resumable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typer.testing import CliRunner  # noqa: E402

from comet_mpc.cli.main import app  # noqa: E402
from comet_mpc.errors import CheckpointError, ConfigurationError, TaskDataError, UnsafeTokenizer  # noqa: E402
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule  # noqa: E402
from comet_mpc.models.streams.folding import LEAST_MEAN  # noqa: E402
from comet_mpc.models.tokenizers.texts import TextTokenizer  # noqa: E402
from comet_mpc.models.writing.stored import load_decoder, read_stored  # noqa: E402
from comet_mpc.models.writing.twin import written_by_twin  # noqa: E402
from comet_mpc.progress import Tick, Watcher  # noqa: E402
from comet_mpc.train import WriterRecipe, adopt_writer, prepare_writer  # noqa: E402
from comet_mpc.train.decoders.adoption import _tokenizer  # noqa: E402
from comet_mpc.train.decoders.fitting import Fitting  # noqa: E402
from support.toy_writer import letters  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.slow]

RECIPE = WriterRecipe(fit_tokens=320, held_out=4, context=24, length=16)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama's layout, with random weights."""
    directory = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=270, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
        intermediate_size=32, max_position_embeddings=48, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text(letters().text)
    return directory


@pytest.fixture(scope="module")
def adopted(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adopted")
    made = adopt_writer(original, out, RECIPE)
    (out / "made.json").write_text(json.dumps({"agreement": made.agreement, "more": made.perplexity}))
    assert made.agreement > 80.0
    assert made.perplexity < 1.2 * made.original_perplexity
    assert made.costs.token_bytes > 0
    assert made.fingerprint == load_decoder(out).fingerprint
    assert made.fitted_tokens == 320
    return out


def test_an_adopted_decoder_writes_nearly_what_the_original_writes(adopted: Path, original: Path) -> None:
    config, _ = read_stored(adopted)
    assert (config.decoder.positions, config.tied, config.ends) == (24, True, (1, 2))
    assert config.scores.keys() == {"original_perplexity", "perplexity", "agreement"}
    found = [*written_by_twin(load_decoder(adopted), [1, 262, 263, 264], 8)]
    model = transformers.AutoModelForCausalLM.from_pretrained(original).float()
    text = [1, 262, 263, 264]
    with torch.no_grad():
        logits = model(torch.tensor([text + found])).logits[0, len(text) - 1 : -1]
    ranks = [int((row > row[token]).sum()) for row, token in zip(logits, found, strict=True)]
    assert np.mean([rank == 0 for rank in ranks]) >= 0.5
    assert max(ranks) < 20


def test_a_finished_directory_is_not_taken_by_another_run(adopted: Path, original: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="other settings"):
        adopt_writer(original, adopted, WriterRecipe(fit_tokens=160, held_out=4, context=24, length=16))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="something else"):
        adopt_writer(original, tmp_path, RECIPE)


def test_own_texts_are_fitted_to(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join("abc def ghij" * 3 for _ in range(12)))
    made = adopt_writer(original, tmp_path / "out", RECIPE, data=path)
    assert made.own_texts
    with pytest.raises(TaskDataError, match="no column"):
        adopt_writer(original, tmp_path / "other", RECIPE, data=path, texts=["story"])
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(TaskDataError, match="a single row of 16"):
        adopt_writer(original, tmp_path / "short", RECIPE, data=tmp_path / "short.txt")


class _Stopping(Watcher):
    """Stops a run in the middle of a stage, as Ctrl-C does; notes how far each stage was when it began."""

    def __init__(self, stage: str = "", after: int = 0) -> None:
        self.began, self.said = dict[str, int](), list[str]()
        self._stage, self._after = stage, after

    def say(self, line: str) -> None:
        self.said.append(line)

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[Tick]:
        def tick(done: int, total: int, note: str = "") -> None:
            self.began.setdefault(what.split()[0].rstrip(":"), done)
            if self._stage and what.startswith(self._stage) and done >= self._after:
                raise KeyboardInterrupt

        yield tick


def test_a_run_that_was_stopped_anywhere_is_resumed_there(original: Path, tmp_path: Path) -> None:
    """Whatever was done is not done again, and the result is that of a run that nobody stopped."""
    recipe = replace(RECIPE, held_out=8)
    for stage, after in (("writing", 14), ("fitting", 1), ("learning", 15), ("comparing", 4)):
        with pytest.raises(KeyboardInterrupt):
            adopt_writer(original, tmp_path, recipe, watcher=_Stopping(stage, after))
    watcher = _Stopping()
    made = adopt_writer(original, tmp_path, recipe, watcher=watcher)
    assert watcher.began == {"writing": 28, "fitting": 2, "learning": 60, "comparing": 4}
    whole = adopt_writer(original, tmp_path / "whole", recipe)
    assert made.fingerprint == whole.fingerprint
    assert (made.perplexity, made.agreement) == (whole.perplexity, whole.agreement)
    kept = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert kept == {"config.json", "fitting.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize("name", ["fitted.pt", "comparing.json"])
def test_what_was_damaged_meanwhile_is_done_again(original: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        adopt_writer(original, tmp_path, RECIPE, watcher=_Stopping("comparing", 4))
    (tmp_path / name).write_bytes(b"half of it")
    watcher = _Stopping()
    adopt_writer(original, tmp_path, RECIPE, watcher=watcher)
    assert watcher.began["fitting"] == (0 if name == "fitted.pt" else 2)
    assert watcher.began["comparing"] == (4 if name == "fitted.pt" else 0)


def test_a_finished_run_is_not_run_again(adopted: Path, original: Path) -> None:
    watcher = _Stopping()
    again = adopt_writer(original, adopted, RECIPE, watcher=watcher)
    assert any("finished: nothing to do" in line for line in watcher.said)
    assert not watcher.began
    assert again.fingerprint == load_decoder(adopted).fingerprint


def test_what_was_written_before_a_stop_is_not_written_again(original: Path, tmp_path: Path) -> None:
    prepared = prepare_writer(original, RECIPE)
    (tmp_path / "texts").mkdir()
    kept = np.full((24, 16), 263, np.int32)
    np.save(tmp_path / "texts" / "texts-1-0-24x16.npy", kept)
    prepared._take(tmp_path)
    fitting = Fitting(prepared.shape, prepared.tensors, CausalForm(mean_rule(LEAST_MEAN), denominator_rule(24)))
    fit, judge = prepared._texts(tmp_path, fitting, Watcher())
    assert bool((torch.cat([judge, fit]) == 263).all())


def test_a_tokenizer_that_leaves_bytes_out_gets_a_token_for_them(tmp_path: Path) -> None:
    """As SmolLM2's: its vocabulary lacks some bytes, and it names no token for what it does not know."""
    special, letters_of = ["<|endoftext|>", "<|im_start|>"], [*"abcdefgh", "Ġ"]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate([*special, *letters_of])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsafeTokenizer):
        TextTokenizer.load((tmp_path / "tokenizer.json").read_bytes(), tmp_path)
    made = TextTokenizer.load(_tokenizer(tmp_path, 11, 1), tmp_path)
    assert made.encode("ab z", 16).ids.tolist() == [2, 3, 10, 1]
    with pytest.raises(UnsafeTokenizer):  # a letter must not stand for what is unknown
        _tokenizer(tmp_path, 11, 5)


def test_the_command_says_what_is_wrong_and_how_long_it_takes(original: Path, tmp_path: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["adopt", str(original), str(tmp_path / "out"), "--estimate", "--length", "16"])
    assert shown.exit_code == 0, shown.output
    assert "texts that it writes itself" in shown.output
    for wrong in (["--labels", "a,b"], ["--plain"], ["--epochs", "2"]):
        refused = run.invoke(app, ["adopt", str(original), str(tmp_path / "out"), *wrong])
        assert refused.exit_code == 1
        assert f"leave out {wrong[0]}" in refused.stderr
    with pytest.raises(ConfigurationError, match="this model has 48"):
        prepare_writer(original, WriterRecipe(context=64))
    config = json.loads((original / "config.json").read_text())
    for change, message in (
        ({"bos_token_id": None, "eos_token_id": None}, "names neither"),
        ({"bos_token_id": 999}, "not in the vocabulary"),
    ):
        other = tmp_path / str(message)
        other.mkdir()
        (other / "config.json").write_text(json.dumps(config | change))
        for name in ("model.safetensors", "tokenizer.json"):
            (other / name).write_bytes((original / name).read_bytes())
        with pytest.raises(CheckpointError, match=message):
            prepare_writer(other, RECIPE)
