"""`unify`: a model in another form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import CometConfig, Tensors, checkpoint_digest, save_checkpoint
from comet_mpc.models.forms import Form
from comet_mpc.models.heads import Kind, usual_head
from comet_mpc.models.hugging_face import servable_tokenizer, tokenizer_json
from comet_mpc.models.tasks import find_task
from comet_mpc.progress import Watcher
from comet_mpc.train.estimate import proof_seconds
from comet_mpc.train.reading import Model, read_model
from comet_mpc.units import about


@dataclass(frozen=True)
class Unified:
    """A model in another form, as it was written."""

    config: CometConfig
    untrained: tuple[str, ...]
    """Parts of the head that are new, with random weights."""
    digest: str
    """Of the checkpoint."""


def unify(
    model: Path | str,
    out: Path | str,
    form: Form | None = None,
    *,
    task: str | None = None,
    labels: Sequence[str] = (),
    head: Kind | None = None,
    seed: int = 0,
    watcher: Watcher | None = None,
) -> Unified:
    """Turns a Hugging Face model, or a Comet model, into a Comet checkpoint in `out`, by default in the certified form.

    Its weights stay; its non-linear functions become those of the form. In the certified form the tops of all ranges
    are proved from the weights, for every text. Train it afterwards (`finetune`).

    model   a directory, or a name on the hub
    task    make a new head for the labels of this task of GLUE
    labels  make a new head for these labels
    head    what to make of a text, if not what the model was made for
    seed    for the random weights of a new head
    """
    form, watcher = form or Form(), watcher or Watcher()
    if task and labels:
        raise ConfigurationError("give --task or --labels, not both")
    if head == "embedding" and (task or labels):
        raise ConfigurationError("an embedding has no labels: leave out --task and --labels")
    given = find_task(task).labels if task else tuple(labels)
    found = _with_head(model, head, "label" if task else None, bool(given), watcher)
    config, tensors = found.config, found.tensors
    wanted = config.head if head in (None, config.head.kind) else usual_head(head or "label")
    names = () if wanted.kind == "embedding" else given or config.encoder.labels
    if not names and wanted.kind != "embedding":
        raise ConfigurationError("a head for labels needs their names: give --labels A,B,…")
    certified = form.name == "certified"
    tokenizer = (
        servable_tokenizer(found.directory, config.encoder.vocabulary) if certified else tokenizer_json(found.directory)
    )
    config, made = form.applied(config, tensors, labels=names, head=wanted, seed=seed)
    config = msgspec.structs.replace(config, task=find_task(task).name if task else config.task)
    if certified:
        config = _proved(config, made, watcher)
    save_checkpoint(Path(out), config, made, tokenizer=tokenizer)
    parts = [part for part in ("pooler", "classifier") if f"{part}.weight" in made]
    new = tuple(part for part in parts if not _kept(f"{part}.weight", tensors, made))
    return Unified(config, new, checkpoint_digest(config, made, tokenizer))


def _with_head(source: Path | str, head: Kind | None, usual: Kind | None, labelled: bool, watcher: Watcher) -> Model:
    """The model, read as what is wanted of it: one that was made for embeddings may get labels."""
    found = read_model(source, watcher, head or usual)
    if labelled and found.config.head.kind == "embedding":
        found = read_model(source, watcher, head or "label").but(head=usual_head(head or "label"))
    return found


def _proved(config: CometConfig, tensors: Tensors, watcher: Watcher) -> CometConfig:
    """With certified ranges. Says first how long that takes."""
    with watcher.stage("proving the ranges: layers") as tick:
        watcher.say(f"proving the ranges: this takes {about(proof_seconds(config, tensors))}")
        return certify(config, tensors, told=tick)


def _kept(name: str, before: Tensors, after: Tensors) -> bool:
    return name in before and np.array_equal(before[name], after[name])
