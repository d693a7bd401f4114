"""Small models and data sets to train with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from comet_mpc.models.checkpoint import CometConfig
from comet_mpc.models.heads import Head, Pooler
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from support.small_models import UNMODIFIED
from support.toy_model import WORDS, make_checkpoint, toy_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "label": {"labels": ("ham", "spam")},
    "score": {"labels": ("mood",)},
    "distilbert": {"architecture": "distilbert", "pooler": "smu", "labels": ("ham", "spam")},
    "tokens": {"head": Head(kind="tokens"), "labels": ("O", "B-X")},
    "embedding": {"head": Head(kind="embedding", pooling="mean", unit=True)},
}
"""Of models: what they answer with."""


def write_glue(directory: Path) -> Path:
    """GLUE with one task, SST-2: a review is positive if it says `good`."""
    generator = np.random.default_rng(0)
    folder = directory / "SST-2"
    folder.mkdir(parents=True)
    plain = [word for word in WORDS if word not in ("good", "bad")]
    for split, count in (("train", 64), ("dev", 32)):
        rows = ["sentence1\tlabel"]
        for label in generator.integers(0, 2, count):
            words = [*generator.choice(plain, 4), "good" if label else "bad"]
            rows.append(f"{' '.join(generator.permutation(words))}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return directory


def original(directory: Path, name: str) -> Path:
    """A model with GeLU, softmax and the usual pooler."""
    config, tensors = load_checkpoint(make_checkpoint(directory, **KINDS[name]))
    activation, attention, _ = UNMODIFIED
    poolers: dict[Pooler, Pooler] = {"algebraic": "tanh", "smu": "relu", "none": "none"}
    plain = CometConfig(
        encoder=config.encoder,
        activation=activation,
        attention=attention,
        pooler=poolers[config.pooler],
        head=config.head,
    )
    kept = {key: value for key, value in tensors.items() if not key.endswith("thresholds")}
    save_checkpoint(directory, plain, kept, tokenizer=toy_tokenizer().to_str().encode())
    return directory


def write_rows(path: Path, kind: str) -> Path:
    """A file with 40 rows for such a model."""
    generator = np.random.default_rng(0)
    answers = {"label": "label", "distilbert": "label", "score": "score", "tokens": "tags", "embedding": ""}[kind]
    lines = [f"text,{answers}" if answers else "text"]
    for number in range(40):
        words = list(generator.choice(WORDS, 5))
        answer = {
            "label": ("ham", "spam")[number % 2], "score": f"{number / 10}", "tags": "O O B-X O O", "": "",
        }[answers]  # fmt: skip
        lines.append(",".join([" ".join(words), *([answer] if answers else [])]))
    path.write_text("\n".join(lines) + "\n")
    return path
