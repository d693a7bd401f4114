"""The model and the data that a command of training or evaluation names, and how its result is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from comet_mpc.cli.tables import origin, write_json
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import CometConfig, load_checkpoint
from comet_mpc.models.heads import Kind
from comet_mpc.models.hugging_face import fetch, load_hugging_face, need, tokenizer_json
from comet_mpc.models.own_data import own_task, read_split
from comet_mpc.models.tasks import Example, Task, find_task, with_labels
from comet_mpc.progress import doing


def with_torch() -> Any:
    """The package of training. Importing torch takes seconds by itself."""
    with doing("loading PyTorch"):
        return need("comet_mpc.train")


def fetched(source: str) -> Path:
    """The directory of a model that is named by its directory, or by its name on the hub."""
    if not Path(source).exists():
        typer.echo(f"looking for {source} on the Hugging Face hub", err=True)
    return fetch(source)


def load_any(directory: Path, kind: Kind | None = None) -> tuple[CometConfig, dict[str, Any]]:
    """A Comet checkpoint, or a Hugging Face one, unmodified, perhaps without a head. kind: of the head that is wanted,
    if not the one that the model was made for."""
    content = directory / "config.json"
    if content.exists() and b'"comet"' in content.read_bytes():
        return load_checkpoint(directory)
    config, tensors, _ = load_hugging_face(directory, lambda path: need("comet_mpc.train").read_pickled(path), kind)
    return config, tensors


def read_task(name: str | None, data: Path, config: CometConfig) -> Task:
    """The task of that name, or one's own with the model's labels. Embeddings take any pairs and texts."""
    if not name:
        return own_task(data, config.encoder.labels, config.head.kind)
    task = find_task(name)
    if config.head.kind == "tokens":
        raise ConfigurationError(f"the model labels tokens, {task.name} labels texts")
    if config.head.kind == "embedding":
        task = replace(task, kind="embedding", labels=())
        return task if task.pairs else replace(task, plain=True, metric="cosine")
    return task


def read_examples(
    config: CometConfig, data: Path, task: Task, split: str, limit: int | None, *, spread: bool = False
) -> list[Example]:
    """The rows of a file, with the model's labels."""
    rows = read_split(data, task, split, limit, spread=spread)
    return with_labels(rows, task, config.encoder.labels) if task.kind == "label" and not task.plain else rows


def read_rows(
    model: Path, config: CometConfig, data: Path, task: Task, split: str, limit: int | None = None, length: int = 0,
    *, spread: bool = False,
) -> Any:  # fmt: skip
    """The rows of a file as tokens, for torch. Says how many texts were too long."""
    examples = read_examples(config, data, task, split, limit, spread=spread)
    training = need("comet_mpc.train")
    longest = min(length or config.length or task.length, config.encoder.longest)
    rows = training.encode(training.make_tokenizer(tokenizer_json(model)), examples, longest, task.kind)
    if rows.truncated:
        typer.echo(f"{split}: {rows.truncated} of {len(rows)} texts were truncated to {longest} tokens", err=True)
    return rows


def in_words(scores: dict[str, float]) -> str:
    """Metrics as people read them."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def record(path: Path | None, result: dict[str, Any], program: str = "comet") -> None:
    """Writes a result, with the command and the versions that it depends on."""
    write_json(path, result | origin(program))
