#!/usr/bin/env python3
"""Makes the bundled demonstration model: sentiment (SST-2), certified form, small enough for the repository.

    scripts/train_demo_model.py MINILM_DIR GLUE_DIR WORK_DIR [--out DIR] [--layers 2] [--rule quadratic] …

1. Fine-tunes MiniLM, unmodified, on the first 30,000 rows of SST-2 (--teacher-rows): the teacher.
2. The teacher's logits for all training rows.
3. A small student in the certified form, its word vectors the principal components of the teacher's, trained through
   the protocol's own steps on labels and the teacher's logits.
   With --start DIR there is no such teacher: the student begins as that checkpoint and learns from its answers.
4. Word vectors to int8, the rest to float16; certified from those very weights and calibrated; evaluated as served.

Every stage leaves its result in WORK_DIR and is skipped when that is there; training resumes where it broke off. With
few rows (--rows, --teacher-rows, --dev-rows) and epochs it is a trial of minutes, into a WORK_DIR and --out of its own.
Needs the extra [train]. MINILM_DIR is a Hugging Face checkpoint of MiniLM-L6-H384 (all-MiniLM-L6-v2).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.files import atomic_write
from comet_mpc.functions.root_rule import DEGREES
from comet_mpc.models.certify import calibrated, check_ranges
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, tensor_shapes
from comet_mpc.models.fold import in_form
from comet_mpc.models.hugging_face import load_hugging_face
from comet_mpc.models.own_data import read_split
from comet_mpc.models.stored.checkpoints import checkpoint_digest, load_checkpoint, save_checkpoint, save_config
from comet_mpc.models.tasks import find_task
from comet_mpc.models.tokenizers.files import tokenizer_json
from comet_mpc.progress import Shown, bar
from comet_mpc.train.batches import (
    Encoded,
    encode,
    first_rows,
    hold_out,
    make_tokenizer,
    observe,
    predict,
    quantiles,
)
from comet_mpc.train.loop import Course, Recipe, train_rows
from comet_mpc.train.model import Mode, UnifiedModel

TASK = find_task("SST-2")
MODES: tuple[Mode, ...] = ("exact", "steps", "served")


def teacher(arguments: argparse.Namespace, dev: Encoded, train: Encoded) -> Path:
    out: Path = arguments.work / "teacher"
    config, tensors, _ = load_hugging_face(arguments.minilm)
    config, tensors = in_form(
        config, tensors, activation=config.activation, attention=config.attention, pooler="tanh", labels=TASK.labels
    )
    recipe = Recipe(epochs=arguments.teacher_epochs, rate=1e-4, seed=arguments.seed, evaluations=2)
    rows, words = first_rows(train, arguments.teacher_rows), tokenizer_json(arguments.minilm)
    train_rows(config, tensors, TASK, rows, dev, out, recipe, tokenizer=words, watcher=Shown())
    return out


def load_model(where: Path) -> UnifiedModel:
    return UnifiedModel.from_tensors(*load_checkpoint(where)).use("exact")


def teacher_logits(arguments: argparse.Namespace, where: Path, train: Encoded) -> np.ndarray:
    path = arguments.work / "teacher_logits.npy"
    if not path.exists():
        with bar("teacher's logits") as tick:
            logits = predict(load_model(where), train, tick=tick)
        with atomic_write(path) as file:
            np.save(file, logits.astype(np.float32))
    found: np.ndarray = np.load(path)
    if len(found) != len(train):
        raise ConfigurationError(f"{path} has {len(found)} rows, {len(train)} are wanted: remove the file")
    return found


def student(arguments: argparse.Namespace, where: Path) -> tuple[CometConfig, dict[str, np.ndarray]]:
    """A small encoder: word vectors are the teacher's in the basis of their largest principal components."""
    config, large = load_checkpoint(where)
    if arguments.start is not None:
        return msgspec.structs.replace(config, rule=arguments.rule, steps=arguments.steps, sites={}, scores={}), large
    d = arguments.hidden
    encoder = msgspec.structs.replace(
        config.encoder,
        hidden=d,
        layers=arguments.layers,
        heads=arguments.heads,
        intermediate=arguments.intermediate,
        positions=128,
        types=1,
    )
    config = msgspec.structs.replace(
        config,
        encoder=encoder,
        activation=ActivationChoice(),
        attention=AttentionChoice(),
        pooler="algebraic",
        rule=arguments.rule,
        steps=arguments.steps,
        task=TASK.name,
        length=TASK.length,
    )
    words = large["embeddings.words"]
    centred = words - words.mean(axis=0)
    _, basis = np.linalg.eigh(centred.T @ centred)
    basis = basis[:, ::-1][:, :d]
    generator = np.random.default_rng(arguments.seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if name == "embeddings.words":
            tensors[name] = centred @ basis
            scale = tensors[name].std()
            tensors[name] /= scale
        elif name in ("embeddings.positions", "embeddings.types"):
            tensors[name] = (large[name][: shape[0]] @ basis) / scale
        elif name.endswith("norm.weight"):
            tensors[name] = np.ones(shape)
        elif name.endswith(".weight"):
            tensors[name] = generator.standard_normal(shape) / np.sqrt(shape[1])
        else:
            tensors[name] = np.zeros(shape)
    return config, {name: np.asarray(value, np.float32) for name, value in tensors.items()}


def score(model: UnifiedModel, data: Encoded) -> dict[str, float]:
    return TASK.score(predict(model, data), data.labels)


def trained(arguments: argparse.Namespace, where: Path, train: Encoded) -> tuple[Path, Course]:
    """The student's checkpoint in WORK_DIR, and how its training went."""
    train, judge = hold_out(train, min(1000, len(train) // 10))
    config, tensors = student(arguments, where)
    recipe = Recipe(
        epochs=arguments.epochs, batch=64, rate=arguments.rate, seed=arguments.seed, dropout=arguments.dropout,
        logit_weight=2.0, temperature=2.0, embedding_rate=arguments.embedding_rate,
        token_dropout=arguments.token_dropout, shape_rate=1.0,
    )  # fmt: skip
    folder: Path = arguments.work / arguments.name
    return folder, train_rows(config, tensors, TASK, train, judge, folder, recipe, watcher=Shown())


def packed(folder: Path, out: Path, words: bytes, train: Encoded, dev: Encoded) -> dict[str, Any]:
    """Rounds the student, certifies and calibrates what it is then, and writes it with its scores to `out`."""
    config, tensors = load_checkpoint(folder)
    config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, labels=TASK.words))
    save_checkpoint(out, config, tensors, tokenizer=words, half=True, int8=("embeddings.words",))
    config, tensors = load_checkpoint(out)  # what it is after rounding
    seen = observe(UnifiedModel.from_tensors(config, tensors).use("exact"), first_rows(train, 1000))
    save_config(out, calibrated(config, tensors, quantiles(seen)))
    config, tensors = load_checkpoint(out)
    check_ranges(config, tensors)
    model = UnifiedModel.from_tensors(config, tensors)
    scores = {mode: score(model.use(mode), dev) for mode in MODES}
    config = msgspec.structs.replace(config, scores=scores["served"])
    save_config(out, config)
    return {
        "model": "demo", "task": TASK.name, "scores": scores,
        "bytes": sum(path.stat().st_size for path in out.iterdir()),
        "encoder": msgspec.to_builtins(config.encoder), "rule": config.rule, "minimax_steps": config.steps,
        "checkpoint": checkpoint_digest(config, tensors, words),
    }  # fmt: skip


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minilm", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("work", type=Path)
    bundled = Path(__file__).parent.parent / "src" / "comet_mpc" / "data" / "demo_model"
    parser.add_argument("--out", type=Path, default=bundled)
    parser.add_argument("--json", type=Path)
    for name, value in (("layers", 2), ("hidden", 128), ("heads", 2), ("intermediate", 256), ("steps", 3), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--start", type=Path, help="a checkpoint to begin as, instead of stages 1 and 3")
    parser.add_argument("--rule", default="quadratic", choices=("minimax", *DEGREES), help="of activations and scores")
    parser.add_argument("--rows", type=int, help="take only so many training rows")
    parser.add_argument("--dev-rows", type=int, help="take only so many rows of the dev set")
    parser.add_argument("--teacher-rows", type=int, default=30_000)
    parser.add_argument("--teacher-epochs", type=float, default=2)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--embedding-rate", type=float, default=0.1)
    parser.add_argument("--token-dropout", type=float, default=0.1)
    parser.add_argument("--name", default="student", help="folder of this student in WORK_DIR")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    words = tokenizer_json(arguments.minilm)
    tokenizer = make_tokenizer(words)
    train, dev = (
        encode(tokenizer, read_split(arguments.glue, TASK, split, rows), TASK.length)
        for split, rows in (("train", arguments.rows), ("dev", arguments.dev_rows))
    )
    where = teacher(arguments, dev, train) if arguments.start is None else arguments.start
    train = replace(train, wanted=teacher_logits(arguments, where, train))
    folder, found = trained(arguments, where, train)
    result = packed(folder, arguments.out, words, train, dev)
    print(
        f"{arguments.out.name}: {result['bytes'] / 1e6:.2f} MB, "
        f"served {result['scores']['served']['accuracy']:.2f} % on SST-2 dev"
    )
    result |= {
        "seconds": found.seconds, "history": found.history, "teacher": score(load_model(where), dev),
        "teacher_rows": arguments.teacher_rows, "rows": len(train), "seed": arguments.seed,
        "command": " ".join(["scripts/train_demo_model.py", *("DIR" if "/" in a else a for a in sys.argv[1:])]),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("torch", "numpy", "tokenizers")}},
    }  # fmt: skip
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"train_demo_model: {error}")
