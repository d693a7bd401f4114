"""BERT, RoBERTa and MPNet as Hugging Face stores them: from a directory, or by name from the hub and its cache.

Encoders and sequence classifiers are read, every key and shape accounted for. Weights are safetensors, in one file or
several, or an older `pytorch_model.bin`, which the caller brings a reader for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.checkpoint import (
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    Encoder,
    Tensors,
    account_for,
    read_json,
    read_tensors,
    read_tokenizer,
    tensor_shapes,
)

__all__ = ["fetch", "load_hugging_face", "need", "tokenizer_json"]

ReadPickled = Callable[[Path], Tensors]

_PREFIX = {"bert": "bert.", "roberta": "roberta.", "mpnet": "mpnet."}
_PRETRAINING = {"bert": "cls.", "roberta": "lm_head.", "mpnet": "lm_head."}
"""Heads that guess masked words: no part of a classifier."""
_EMBEDDINGS = {
    "embeddings.words": "embeddings.word_embeddings.weight",
    "embeddings.positions": "embeddings.position_embeddings.weight",
    "embeddings.types": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
    "relative_positions": "encoder.relative_attention_bias.weight",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}
_LAYER_MPNET = _LAYER | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "attention_output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
_WEIGHTS, _SHARDS, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_OTHERS = ("config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")


def need(name: str) -> Any:
    """A package of the extra [train], imported when it is needed: it may be absent."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("comet_mpc"):
            raise
        raise ConfigurationError(
            f"this command needs {error.name}, which is not installed: pip install 'comet-mpc[train]'"
        ) from error


def fetch(name: str) -> Path:
    """A local directory, or the files of a model on the hub: from its cache, else downloaded."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or name.count("/") > 1:
        raise CheckpointError(f"{name} is not a directory with a checkpoint")
    hub = need("huggingface_hub")
    try:
        found = Path(hub.snapshot_download(name, allow_patterns=[*_OTHERS, _WEIGHTS]))
        for patterns in ([_SHARDS, "model-*.safetensors"], [_PICKLED]):  # not each format that there is
            if not any((found / each).exists() for each in (_WEIGHTS, _SHARDS)):
                found = Path(hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # many kinds: no such model, not allowed, no network, nothing in the cache
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{name} is not a directory, and it could not be loaded from the Hugging Face hub or its cache "
            f"({type(error).__name__}: {reason}): check the name and the network, or give a directory"
        ) from error
    return found


def tokenizer_json(directory: Path) -> bytes:
    """The tokenizer as one file, made from older files where there is none."""
    path = directory / "tokenizer.json"
    if path.exists():
        return read_tokenizer(directory)
    if not any((directory / name).exists() for name in ("vocab.txt", "vocab.json")):
        raise CheckpointError(f"{directory} has no tokenizer: neither tokenizer.json nor vocab.txt nor vocab.json")
    try:
        made = need("transformers").AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        return bytes(made.backend_tokenizer.to_str().encode())
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory}: its files do not make a tokenizer: {error}") from error


def _weights(directory: Path, read_pickled: ReadPickled | None) -> Tensors:
    if (directory / _WEIGHTS).exists():
        return read_tensors(directory / _WEIGHTS)
    if (directory / _SHARDS).exists():
        names = read_json(directory / _SHARDS).get("weight_map", {}).values()
        return {name: value for part in sorted(set(names)) for name, value in read_tensors(directory / part).items()}
    if (directory / _PICKLED).exists():
        if read_pickled is None:
            raise CheckpointError(f"{directory} has its weights in {_PICKLED} only: convert them to {_WEIGHTS}")
        return read_pickled(directory / _PICKLED)
    raise CheckpointError(f"{directory} has no weights: neither {_WEIGHTS} nor {_PICKLED}")


def _foreign_name(name: str, architecture: str) -> str:
    """Our name of a tensor -> Hugging Face's, without the prefix of a model with a head."""
    if name in _EMBEDDINGS:
        return _EMBEDDINGS[name]
    first, *rest = name.split(".")
    if first == "layers":
        parts = _LAYER_MPNET if architecture == "mpnet" else _LAYER
        return f"encoder.layer.{rest[0]}.{parts[rest[1]]}.{rest[2]}"
    if architecture == "bert":
        return {"pooler": "pooler.dense.", "classifier": "classifier."}[first] + rest[0]
    return {"pooler": "classifier.dense.", "classifier": "classifier.out_proj."}[first] + rest[0]


def _bare(tensors: Tensors, architecture: str) -> Tensors:
    """Names as a bare encoder has them, without what has no part in classification.

    That is a head for pre-training, and RoBERTa's and MPNet's own pooler. Old files call LayerNorm's parameters gamma
    and beta.
    """
    bare = {}
    for name, value in tensors.items():
        short = name.removeprefix(_PREFIX[architecture])
        if name.startswith(_PRETRAINING[architecture]) or (architecture != "bert" and short.startswith("pooler.")):
            continue
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            short = short.removesuffix(old) + new if short.endswith(old) else short
        bare[short] = value
    return bare


def _labels(path: Path, foreign: Mapping[str, Any], outputs: int | None) -> tuple[str, ...]:
    """Names of the classes; `outputs` of them, if the checkpoint has a head."""
    names = foreign.get("id2label")
    if not names or outputs is None:
        return tuple(str(i) for i in range(outputs or 2))
    try:
        labels = tuple(str(names[str(i)]) for i in range(len(names)))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: id2label does not number its labels from 0") from error
    if len(labels) != outputs:
        raise CheckpointError(f"{path}: id2label has {len(labels)} labels, the classifier has {outputs} outputs")
    twice = [name for name, count in Counter(labels).items() if count > 1]
    if twice:
        raise CheckpointError(f"{path}: id2label has the label {twice[0]!r} twice")
    return labels


def _check_kind(path: Path, foreign: Mapping[str, Any]) -> None:
    """Refuses what would be read without an error and mean something else."""
    architecture = foreign.get("model_type")
    if architecture not in _PREFIX:
        raise CheckpointError(f"{path}: model_type is {architecture!r}, expected one of {', '.join(_PREFIX)}")
    for name, expected in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if foreign.get(name, expected) != expected:
            raise CheckpointError(f"{path}: {name} is {foreign[name]!r}, expected {expected!r}")
    if foreign.get("is_decoder"):
        raise CheckpointError(f"{path}: the model is a decoder, expected an encoder")
    heads = ("Model", "ForSequenceClassification", "ForMaskedLM", "ForPreTraining")
    for kind in foreign.get("architectures") or ():
        if not str(kind).endswith(heads):
            raise CheckpointError(f"{path}: the model is a {kind}, expected an encoder or a sequence classifier")
    if foreign.get("problem_type") == "multi_label_classification":
        raise CheckpointError(f"{path}: the classifier gives several labels at once, expected one label per text")


def _encoder(path: Path, foreign: Mapping[str, Any], labels: tuple[str, ...]) -> Encoder:
    architecture = foreign["model_type"]
    padding = foreign.get("pad_token_id")
    try:
        sizes = {
            "architecture": architecture,
            "vocabulary": foreign["vocab_size"],
            "positions": foreign["max_position_embeddings"],
            "types": 0 if architecture == "mpnet" else foreign["type_vocab_size"],
            "hidden": foreign["hidden_size"],
            "layers": foreign["num_hidden_layers"],
            "heads": foreign["num_attention_heads"],
            "intermediate": foreign["intermediate_size"],
            "epsilon": foreign["layer_norm_eps"],
            "padding": padding if padding is not None else 0 if architecture == "bert" else 1,
            "buckets": foreign.get("relative_attention_num_buckets", 32) if architecture == "mpnet" else 0,
            "labels": labels,
        }
        return msgspec.convert(sizes, Encoder)
    except KeyError as error:
        raise CheckpointError(f"{path}: {error} is missing") from error
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}") from error


def load_hugging_face(
    directory: Path, read_pickled: ReadPickled | None = None
) -> tuple[CometConfig, Tensors, tuple[str, ...]]:
    """An encoder or a sequence classifier in its unmodified form; and the names of the head's tensors that it lacks.

    Those must be made anew and trained. read_pickled: for old files of weights (`train.read_pickled`).
    """
    directory = Path(directory)
    path = directory / "config.json"
    foreign = read_json(path)
    _check_kind(path, foreign)
    architecture = foreign["model_type"]
    bare = _bare(_weights(directory, read_pickled), architecture)
    head = bare.get(_foreign_name("classifier.weight", architecture))
    encoder = _encoder(path, foreign, _labels(path, foreign, None if head is None else len(head)))
    config = CometConfig(
        encoder=encoder,
        activation=ActivationChoice(kind="gelu", normalised=False),
        attention=AttentionChoice(kind="softmax", power=1, cosine=False),
        pooler="tanh",
    )
    foreign_names = {name: _foreign_name(name, architecture) for name in tensor_shapes(config)}
    absent = tuple(
        name
        for part in ("pooler", "classifier")
        for name in (f"{part}.weight", f"{part}.bias")
        if not any(foreign_names[f"{part}.{each}"] in bare for each in ("weight", "bias"))  # half a layer is an error
    )
    expected = {foreign_names[name]: shape for name, shape in tensor_shapes(config).items() if name not in absent}
    account_for({name: value.shape for name, value in bare.items()}, expected, directory)
    return config, {name: bare[there] for name, there in foreign_names.items() if name not in absent}, absent
