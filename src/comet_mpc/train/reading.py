"""The models and the rows that a function of training is given: by directories, names and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.heads import Kind
from comet_mpc.models.hugging_face import fetch, load_hugging_face
from comet_mpc.models.own_data import own_task, read_examples, task_of
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.models.stored.reading import check_finite
from comet_mpc.models.tasks import Task
from comet_mpc.models.tokenizers.files import servable_tokenizer, tokenizer_json
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Encoded, encode, make_tokenizer
from comet_mpc.train.images import images_task, read_images


class Model(NamedTuple):
    """A model in memory, and the directory that it comes from."""

    directory: Path
    config: CometConfig
    tensors: Tensors

    @property
    def headless(self) -> bool:
        """An encoder that has learnt no task: it has labels, but nothing that gives them."""
        return bool(self.config.encoder.labels) and "classifier.weight" not in self.tensors

    def but(self, **changed: object) -> Model:
        """The same with other values in its configuration."""
        return self._replace(config=msgspec.structs.replace(self.config, **changed))


def read_model(
    source: Path | str, watcher: Watcher, kind: Kind | None = None, *, image_size: int | None = None
) -> Model:
    """A Comet checkpoint, or a Hugging Face one, unmodified, perhaps without a head.

    source  a directory, or a name on the hub
    kind    of the head that is wanted, if not the one that the model was made for
    image_size  in pixels, if not that which a model of images was trained with
    """
    directory = find_model(source, watcher)
    with watcher.stage(f"reading {directory}"):
        content = directory / "config.json"
        if content.exists() and b'"comet"' in content.read_bytes():
            return Model(directory, *load_checkpoint(directory))
        return Model(directory, *load_hugging_face(directory, read_pickled, kind, image_size)[:2])


def tokenizer_of(model: Model, *, certified: bool) -> bytes | None:
    """Its file. None: the model takes images. certified: it is served, so clients must take it"""
    if model.config.encoder.image is not None:
        return None
    if certified:
        return servable_tokenizer(model.directory, model.config.encoder.vocabulary)
    return tokenizer_json(model.directory)


def find_model(source: Path | str, watcher: Watcher) -> Path:
    """The directory of a model, fetched from the hub if need be."""
    if not Path(source).exists():
        watcher.say(f"looking for {source} on the Hugging Face hub")
    return fetch(str(source))


def read_pickled(path: Path) -> Tensors:
    """All tensors of real numbers of an old `pytorch_model.bin`, as float32; torch reads nothing but numbers of it."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        floats = {name: value for name, value in found.items() if value.is_floating_point()}
        tensors: Tensors = {name: np.array(value.float().numpy(), np.float32) for name, value in floats.items()}
    except Exception as error:  # torch has no type of its own for a damaged or dangerous file
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    check_finite(path, tensors)
    return tensors


@dataclass(frozen=True)
class Data:
    """Rows, and which of them to take."""

    path: Path
    """A .csv, .tsv or .txt file, a directory with train.tsv and dev.tsv, or, with `task`, one of GLUE's tasks."""
    task: str | None = None
    """One of GLUE's by its name; None: one's own."""
    limit: int | None = None
    """Take only the first so many rows, of those for training where there are both."""
    spread: bool = False
    """Take them from all over the file instead."""
    length: int = 0
    """Cut texts after so many tokens; 0: as is usual for the model, or for the task."""
    texts: tuple[str, ...] = ()
    """Columns of a file with the texts, one or two, if they have unusual names."""
    answer: str | None = None
    """The column with the labels or scores."""
    plain: bool = False
    """Use no labels, also where there are some."""

    @staticmethod
    def of(given: Data | Path | str) -> Data:
        return given if isinstance(given, Data) else Data(Path(given))

    def task_for(self, config: CometConfig) -> Task:
        """What a model with this configuration is asked for."""
        if config.encoder.image is not None:
            if self.task or self.texts or self.answer or self.length:
                raise ConfigurationError(
                    "images have no columns, no length and no task of GLUE: leave these options out"
                )
            return images_task(self.path, config)
        if self.task or not (self.texts or self.answer or self.plain):
            task = task_of(self.path, config, self.task)
        else:
            answer = "" if self.plain else self.answer
            task = own_task(self.path, config.encoder.labels, config.head.kind, texts=self.texts, answer=answer)
        if not self.plain:
            return task
        return replace(task, plain=True, metric="cosine" if task.kind == "embedding" else task.metric)

    def longest(self, config: CometConfig, task: Task) -> int:
        """Tokens after which texts are cut."""
        return min(self.length or config.length or task.length, config.encoder.longest)

    def rows(self, model: Model, task: Task, split: str, watcher: Watcher) -> Encoded:
        """The rows of a split as tokens."""
        if model.config.encoder.image is not None:
            with watcher.stage(f"reading {self.path}: images") as tick:
                return read_images(model.config, self.path, split, self.limit, tick)
        with watcher.stage(f"reading {self.path} ({split})"):
            examples = read_examples(model.config, self.path, task, split, self.limit, spread=self.spread)
            longest = self.longest(model.config, task)
            rows = encode(make_tokenizer(tokenizer_json(model.directory)), examples, longest, task.kind)
        if rows.truncated:
            watcher.say(f"{split}: {rows.truncated} of {len(rows)} texts were truncated to {longest} tokens")
        return rows

    def both(self, model: Model, task: Task, watcher: Watcher) -> tuple[Encoded, Encoded]:
        """The rows to learn from, and all of those to evaluate with."""
        whole = replace(self, limit=None)
        return self.rows(model, task, "train", watcher), whole.rows(model, task, "dev", watcher)
