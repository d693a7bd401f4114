"""`adopt` of a decoder: its functions are fitted to texts, and it is compared with the original on others.

    texts       that the model writes itself, or one's own
    fitting     layer by layer (`fitting`)
    learning    from the original's probabilities of next tokens (`learning`)
    comparing   perplexity, and how many next tokens are the same, on texts that were held out
    proving     the ranges, for every input (`streams.folding`); then the checkpoint is written

Texts, fitted layers and what was compared are kept, so a run that was stopped is resumed; a finished one is not run
again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError, ConfigurationError, UnsafeTokenizer
from comet_mpc.files import atomic_write
from comet_mpc.models.stored.reading import read_json
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.streams.folding import LEAST_MEAN
from comet_mpc.models.streams.reading import read_decoder
from comet_mpc.models.tokenizers.files import tokenizer_json
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.writing.costs import TokenCosts, token_costs
from comet_mpc.models.writing.decoder import as_it_travels, table_shapes
from comet_mpc.models.writing.stored import DecoderConfig, load_decoder, save_decoder
from comet_mpc.offline.sources import PAIR
from comet_mpc.progress import Tick, Watcher
from comet_mpc.train.decoders.fitting import Fitted, Fitting
from comet_mpc.train.decoders.learning import ROWS, learn
from comet_mpc.train.decoders.texts import own_texts, written
from comet_mpc.train.reading import find_model
from comet_mpc.units import about

WRITERS = ("llama", "gpt2")
"""`model_type` of what is read."""
_PROGRESS, _TEXTS, _FITTED, _LEARNT, _COMPARING = "fitting.json", "texts", "fitted.pt", "learnt.pt", "comparing.json"
_USUAL_CONTEXT = 256
_USUAL_LENGTH = 200
_COMPARED = 4  # texts at a time
_STEPS_A_LAYER = 250
_LEARNING = 8.0  # what an update takes of a text, in times of reading it
_RESUMABLE = "Rerun the command to resume."


@dataclass(frozen=True, kw_only=True)
class WriterRecipe:
    """fit_tokens  so many tokens are fitted to, about
    updates     of the fitted matrices, by what the original says is next
    held_out    texts that are only compared
    context     positions that it is served with: prompt and text together; 0: 256, or as many as the model has
    length      tokens of a text to fit to; 0: 200, or as many as the context has
    seed        for the texts that it writes
    """

    fit_tokens: int = 60_000
    updates: int = 60
    held_out: int = 100
    context: int = 0
    length: int = 0
    seed: int = 1


class WriterAdoption(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted decoder beside the original, on texts that fitting has not seen."""

    record: str = "writer adoption"
    model: str
    context: int
    own_texts: bool
    estimated_seconds: float
    seconds: float
    """Of writing texts, fitting and comparing, since it was resumed last."""
    cpu_seconds: float
    fitted_tokens: int
    held_out: int
    """Texts."""
    original_perplexity: float
    perplexity: float
    agreement: float
    """Next tokens that are the original's, in per cent."""
    fingerprint: str
    costs: TokenCosts


class _Progress(msgspec.Struct, frozen=True):
    """What a directory's run is, and its result once it is finished."""

    settings: dict[str, Any]
    result: WriterAdoption | None = None

    def save(self, out: Path) -> None:
        with atomic_write(out / _PROGRESS) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


class _Compared(msgspec.Struct):
    """Of the texts so far: the sums of both models' losses, next tokens, and how many are the same."""

    digest: str
    texts: int = 0
    losses: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    same: int = 0
    count: int = 0

    @staticmethod
    def of(kept: Path, digest: str) -> _Compared:
        try:
            found = msgspec.json.decode(kept.read_bytes(), type=_Compared)
        except (OSError, msgspec.MsgspecError):
            return _Compared(digest)  # there is none, or it is damaged
        return found if found.digest == digest else _Compared(digest)


@dataclass(frozen=True)
class PreparedWriter:
    """An adoption before any work. seconds: about how long it takes here."""

    directory: Path
    shape: DecoderShape
    tensors: dict[str, Any]
    tokenizer: bytes
    begin: int
    ends: tuple[int, ...]
    data: tuple[Path, tuple[str, ...]] | None
    recipe: WriterRecipe
    seconds: float

    @property
    def rows(self) -> int:
        return max(1, round(self.recipe.fit_tokens / self.recipe.length))

    @property
    def summary(self) -> str:
        source = "texts that it writes itself" if self.data is None else f"texts of {self.data[0]}"
        return (
            f"{self.rows} {source}, of {self.recipe.length} tokens, to fit to, and {self.recipe.held_out} others to "
            f"compare with the original: this takes {about(self.seconds)} on this machine. {_RESUMABLE}"
        )

    def run(self, out: Path, watcher: Watcher | None = None) -> WriterAdoption:
        """Fits in `out`, or goes on there."""
        watcher, began, cpu = watcher or Watcher(), time.monotonic(), time.process_time()
        progress = self._take(out)
        if progress.result is not None:
            watcher.say(f"{out} holds this run, finished: nothing to do")
            return progress.result
        form = CausalForm(mean_rule(LEAST_MEAN), denominator_rule(self.shape.positions))
        fitting = Fitting(self.shape, self.tensors, form)
        fit, judge = self._texts(out, fitting, watcher)
        with watcher.stage("fitting: layers") as tick:
            fitted = fitting.run(fit, lambda layers: tick(layers, self.shape.layers), out / _FITTED)
        with watcher.stage("learning from the original: updates") as tick:
            fitted = learn(fitting, fitted, fit, self.recipe.updates, tick, out / _LEARNT)
        with watcher.stage("comparing with the original: texts") as tick:
            scores = compared(fitting, fitted, judge, tick, out / _COMPARING)
        with watcher.stage("proving the ranges, and planning what a token costs"):
            self._save(out, fitting.tensors, fitted, scores)
            model = load_decoder(out)
            costs = token_costs(model, PAIR)
        made = WriterAdoption(
            model=self.directory.name, context=self.shape.positions, own_texts=self.data is not None,
            estimated_seconds=self.seconds, seconds=time.monotonic() - began,
            cpu_seconds=time.process_time() - cpu, fitted_tokens=fit.numel(), held_out=len(judge),
            fingerprint=model.fingerprint, costs=costs, original_perplexity=scores["original_perplexity"],
            perplexity=scores["perplexity"], agreement=scores["agreement"],
        )  # fmt: skip
        msgspec.structs.replace(progress, result=made).save(out)
        shutil.rmtree(out / _TEXTS, ignore_errors=True)
        for name in (_FITTED, _LEARNT, _COMPARING):
            (out / name).unlink(missing_ok=True)
        return made

    def _take(self, out: Path) -> _Progress:
        """Takes possession of the directory, or finds its own run in it."""
        settings = {"model": str(self.directory.resolve()), "recipe": asdict(self.recipe), "data": str(self.data)}
        own, path = _Progress(settings), out / _PROGRESS
        if not path.exists():
            if (out / "config.json").exists():
                raise ConfigurationError(f"{out} holds a checkpoint of something else: choose another directory")
            own.save(out)
            return own
        found = msgspec.json.decode(path.read_bytes(), type=_Progress)
        if found.settings != settings:
            raise ConfigurationError(f"{out} belongs to a run with other settings: choose another directory")
        return found

    def _texts(self, out: Path, fitting: Fitting, watcher: Watcher) -> tuple[torch.Tensor, torch.Tensor]:
        """To fit to, and to compare."""
        recipe, count = self.recipe, self.rows + self.recipe.held_out
        if self.data is None:
            with watcher.stage("writing texts to fit to: texts") as tick:
                ids = written(
                    fitting.original, out / _TEXTS, count, recipe.length, begin=self.begin, seed=recipe.seed, tick=tick
                )
        else:
            tokenizer = TextTokenizer.load(self.tokenizer, self.directory)
            with watcher.stage(f"reading {self.data[0]}"):
                ids = own_texts(*self.data, tokenizer, recipe.length, count * recipe.length)
        if len(ids) < 2:
            raise ConfigurationError("one text is to be fitted to, and another one to be compared, at least")
        held = min(recipe.held_out, max(1, len(ids) // 2))
        return ids[held:], ids[:held]

    def _save(self, out: Path, tensors: dict[str, Reals], fitted: Fitted, scores: dict[str, float]) -> None:
        tied = "head" not in self.tensors
        config = DecoderConfig(
            decoder=self.shape, tied=tied, epsilon=float(self.tensors["epsilon"]), ends=self.ends,
            seen=fitted.seen.least, scores=scores,
        )  # fmt: skip
        save_decoder(out, config, tensors, fitted.layers, tokenizer=self.tokenizer)


@torch.no_grad()
def compared(fitting: Fitting, fitted: Fitted, ids: torch.Tensor, tick: Tick, kept: Path) -> dict[str, float]:
    """Perplexity of both, and the agreement of next tokens, over all positions of all texts.

    kept: a file for what was compared so far
    """
    head = torch.tensor(np.asarray(fitting.tensors.get("head", fitting.tensors["embeddings"]), np.float32))
    done = _Compared.of(kept, _digest(ids, *fitting.student.tensors.values()))
    tick(done.texts, len(ids))
    while done.texts < len(ids):
        rows, picks = ids[done.texts : done.texts + _COMPARED], []
        for place, layers in enumerate((None, fitted.layers)):
            logits = fitting.states(rows, layers)[:, :-1] @ head.T
            done.losses[place] += float(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
            )
            picks.append(logits.argmax(-1))
        done.same, done.count = done.same + int((picks[0] == picks[1]).sum()), done.count + picks[0].numel()
        done.texts += len(rows)
        with atomic_write(kept) as file:
            file.write(msgspec.json.encode(done))
        tick(done.texts, len(ids))
    original, adopted = (float(np.exp(loss / done.count)) for loss in done.losses)
    return {"original_perplexity": original, "perplexity": adopted, "agreement": 100.0 * done.same / done.count}


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def writes(directory: Path) -> bool:
    """Whether a model's directory has a decoder."""
    return read_json(directory / "config.json").get("model_type") in WRITERS


def prepare_writer(
    directory: Path,
    recipe: WriterRecipe | None = None,
    *,
    data: Path | None = None,
    texts: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> PreparedWriter:
    """All of an adoption before its work, with an estimate of how long that takes.

    data, texts: own texts to fit to, and the column with them; None: the model writes them itself
    """
    watcher, recipe = watcher or Watcher(), recipe or WriterRecipe()
    with watcher.stage(f"reading {directory}"):
        shape, tensors = read_decoder(directory)
        context = recipe.context or min(_USUAL_CONTEXT, shape.positions)
        if not 2 <= context <= shape.positions:
            raise ConfigurationError(f"a context of {context} tokens: this model has {shape.positions}")
        recipe = replace(recipe, context=context, length=min(recipe.length or _USUAL_LENGTH, context))
        shape = replace(shape, positions=context)
        served = _as_served(shape, tensors)
        begin, ends = _marks(directory, shape.vocabulary)
        tokenizer = _tokenizer(directory, shape.vocabulary, begin)
    given = None if data is None else (data, tuple(texts))
    found = PreparedWriter(directory, shape, served, tokenizer, begin, ends, given, recipe, 0.0)
    with watcher.stage("measuring how fast this machine is"):
        return replace(found, seconds=_seconds(found))


def adopt_writer(
    model: Path | str,
    out: Path | str,
    recipe: WriterRecipe | None = None,
    *,
    data: Path | None = None,
    texts: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> WriterAdoption:
    """Converts a decoder for private serving, into `out`. Call it again with the same arguments to resume.

    model        a directory with a Hugging Face model of Llama's or GPT-2's layout, or its name on the hub
    data, texts  own texts to fit to, and the column with them; None: the model writes them itself
    """
    watcher = watcher or Watcher()
    prepared = prepare_writer(find_model(model, watcher), recipe, data=data, texts=texts, watcher=watcher)
    watcher.say(prepared.summary)
    return prepared.run(Path(out), watcher)


def _as_served(shape: DecoderShape, tensors: dict[str, Any]) -> dict[str, Any]:
    """Public tables with the digits that clients get, and no more positions than are served."""
    found: dict[str, Any] = dict(tensors)
    if "head" in found and np.array_equal(found["head"], found["embeddings"]):
        del found["head"]
    if "positions" in found:
        found["positions"] = found["positions"][: shape.positions]
    for name in table_shapes(shape, tied="head" not in found):
        found[name] = as_it_travels(name, found[name]).astype(np.float64)
    return found


def _marks(directory: Path, vocabulary: int) -> tuple[int, tuple[int, ...]]:
    """The token that begins a text, and those that end one: a beginning in the middle is an end as well."""
    config = read_json(directory / "config.json")
    ends = config.get("eos_token_id")
    found = [*ends] if isinstance(ends, list) else [] if ends is None else [ends]
    begin = config.get("bos_token_id")
    if begin is not None:
        found.append(begin)
    marks = sorted({*found})
    if not marks:
        raise CheckpointError(f"{directory}: config.json names neither bos_token_id nor eos_token_id")
    if any(not isinstance(mark, int) or not 0 <= mark < vocabulary for mark in marks):
        raise CheckpointError(f"{directory}: config.json names a token that is not in the vocabulary of {vocabulary}")
    return marks[0] if begin is None else begin, tuple(marks)


def _tokenizer(directory: Path, vocabulary: int, begin: int) -> bytes:
    """Its own, if clients take it. One that leaves out bytes that it does not know gets a token for them."""
    stored = tokenizer_json(directory)
    try:
        tokenizer = TextTokenizer.load(stored, directory)
    except UnsafeTokenizer:
        content = json.loads(stored)
        special = {one["id"]: one["content"] for one in content.get("added_tokens", ()) if one.get("special")}
        if content["model"].get("unk_token") is not None or begin not in special:
            raise
        content["model"]["unk_token"] = special[begin]
        stored = json.dumps(content).encode()
        tokenizer = TextTokenizer.load(stored, directory)
    tokenizer.check_fits(vocabulary)
    _ = tokenizer.spelling  # refuses one that only reads
    return stored


def _seconds(prepared: PreparedWriter) -> float:
    """Of writing, fitting and comparing, from one text and one step of each."""
    recipe, shape = prepared.recipe, prepared.shape
    form = CausalForm(mean_rule(LEAST_MEAN), denominator_rule(shape.positions))
    fitting, ids = Fitting(shape, prepared.tensors, form), torch.zeros(1, recipe.length, dtype=torch.long)
    begin = time.monotonic()
    fitting.states(ids, None)
    text = time.monotonic() - begin
    z = torch.rand(10, shape.heads, recipe.length, recipe.length) * 0.1
    factors = [torch.full((shape.heads, 1, 1), 0.05, requires_grad=True) for _ in range(2)]
    begin = time.monotonic()
    fitting.weights(z, factors[0], factors[1]).sum().backward()
    step = time.monotonic() - begin
    rows, held = prepared.rows, recipe.held_out
    write = 0.0 if prepared.data is not None else (rows + held) * 2.0 * text
    learning = recipe.updates * ROWS * _LEARNING * text
    return write + 3.0 * rows * text + 3.0 * held * text + shape.layers * _STEPS_A_LAYER * 1.2 * step + learning
