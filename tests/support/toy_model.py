"""A tiny certified checkpoint, made on the fly: random weights at realistic scales, and a tokenizer of a few words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from comet_mpc.engine.twin import run_twin
from comet_mpc.functions.rule import PRECISION
from comet_mpc.models.certify import calibrated, certify
from comet_mpc.models.checkpoint import (
    FITTED,
    NEAR,
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    Encoder,
    tensor_shapes,
)
from comet_mpc.models.fitted.first import first_functions
from comet_mpc.models.heads import Head, Pooler
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import save_checkpoint

__all__ = ["TINY", "WORDS", "make_checkpoint", "some_texts", "toy_tokenizer", "twin_logits"]

WORDS = (
    *("the", "a", "film", "plot", "actor", "is", "was", "not", "very", "good", "bad"),
    *("dull", "bright", "slow", "warm", "cold", "long", "short", "and", "but", "or", "with"),
)
TINY: dict[str, Any] = {
    "layers": 1,
    "hidden": 8,
    "heads": 1,
    "intermediate": 8,
    "positions": 16,
    "steps": 2,
    "row_steps": 6,
}
"""Options of `make_checkpoint` for the smallest model, where what it computes does not matter."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_PADDING = {"bert": 0, "distilbert": 0, "roberta": 1, "mpnet": 1}


def toy_tokenizer(architecture: str = "bert") -> Tokenizer:
    special = list(_SPECIAL)
    special.insert(_PADDING[architecture], special.pop(0))
    vocabulary = {word: place for place, word in enumerate((*special, *WORDS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return tokenizer


def make_checkpoint(
    directory: Path,
    *,
    architecture: str = "bert",
    layers: int = 2,
    hidden: int = 32,
    heads: int = 2,
    intermediate: int = 64,
    positions: int = 64,
    labels: tuple[str, ...] = ("negative", "positive"),
    head: Head | None = None,
    pooler: Pooler | None = None,
    rule: str = "minimax",
    precision: int = PRECISION,
    steps: int = 3,
    row_steps: int = 7,
    seed: int = 0,
    form: tuple[ActivationChoice, AttentionChoice] | None = None,
    seen: Mapping[str, tuple[float, ...]] | None = None,
) -> Path:
    """Writes a checkpoint that `ServedModel.load` takes; with a `form` that is not certified, and what calibration saw
    of it, one for research."""
    head = head or Head()
    fitted = {
        FITTED: (ActivationChoice(kind=FITTED), AttentionChoice(kind=FITTED, power=4)),
        NEAR: (ActivationChoice(kind=FITTED, degree=4), AttentionChoice(kind=FITTED, power=8)),
    }
    choices = form or fitted.get(rule, (ActivationChoice(), AttentionChoice()))
    config = CometConfig(
        encoder=Encoder(
            architecture=architecture,  # type: ignore[arg-type]
            vocabulary=len(_SPECIAL) + len(WORDS),
            positions=positions,
            types=0 if architecture in ("distilbert", "mpnet") else 2,
            hidden=hidden,
            layers=layers,
            heads=heads,
            intermediate=intermediate,
            epsilon=1e-12,
            padding=_PADDING[architecture],
            buckets=32 if architecture == "mpnet" else 0,
            labels=() if head.kind == "embedding" else labels,
        ),
        activation=choices[0],
        attention=choices[1],
        head=head,
        pooler=pooler or ("algebraic" if head.kind == "label" else "none"),
        rule="minimax" if rule in fitted else rule,
        steps=steps,
        row_steps=row_steps,
    )
    generator = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            value = 1.0 + 0.1 * generator.standard_normal(shape)
        elif name.endswith(("bias", "thresholds")):
            value = 0.02 * generator.standard_normal(shape)
        elif name.startswith("embeddings"):
            value = generator.standard_normal(shape)
        elif name == "relative_positions":
            value = 0.6 * generator.standard_normal(shape)  # some beyond what a threshold may be
        else:
            value = generator.standard_normal(shape) / np.sqrt(shape[-1])
        tensors[name] = np.asarray(value, np.float32)
    for i in range(layers):
        tensors |= {name: value.astype(np.float32) for name, value in first_functions(config, tensors, i).items()}
    config = certify(config, tensors, None, precision) if form is None else calibrated(config, tensors, seen or {})
    save_checkpoint(directory, config, tensors, tokenizer=toy_tokenizer(architecture).to_str().encode())
    return directory


def some_texts(count: int, words: int = 6, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, words)) for _ in range(count)]


def twin_logits(model: ServedModel | PublicModel, query: Query) -> npt.NDArray[np.float64]:
    """What the protocol computes, by its fixed-point twin."""
    program = model.answer(query.batch, query.bucket, query)
    logits = run_twin(lambda session: program(session, model.weights()))
    assert logits is not None
    return logits
