"""BERT, DistilBERT, RoBERTa and MPNet as Hugging Face stores them: from a directory, or by name from the hub. ViT and
DINOv2 are in `vision`.

Encoders, classifiers of texts and of tokens, and sentence-transformers' embeddings are read, every key and shape
accounted for. Weights are safetensors, in one file or several, or an older `pytorch_model.bin`, which the caller brings
a reader for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from comet_mpc.errors import CheckpointError, needs_extra
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, Encoder, Tensors, tensor_shapes
from comet_mpc.models.heads import Head, Kind, Pooler, usual_head
from comet_mpc.models.stored.reading import account_for, read_json, read_tensors
from comet_mpc.models.vision.hugging_face import VISION, load_vision

ReadPickled = Callable[[Path], Tensors]

_PRETRAINING = {"bert": "cls.", "distilbert": "vocab_", "roberta": "lm_head.", "mpnet": "lm_head."}
"""By architecture: heads that guess masked words, no part of a classifier."""
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
_LAYERS = {
    "bert": ("encoder.layer", _LAYER),
    "roberta": ("encoder.layer", _LAYER),
    "mpnet": (
        "encoder.layer",
        _LAYER
        | {
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention_output": "attention.attn.o",
            "attention_norm": "attention.LayerNorm",
        },
    ),
    "distilbert": (
        "transformer.layer",
        {
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "attention_output": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
            "output_norm": "output_layer_norm",
        },
    ),
}
_SIZES = {
    "hidden": ("hidden_size", "dim"),
    "layers": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "intermediate": ("intermediate_size", "hidden_dim"),
}
"""Names in config.json, and DistilBERT's."""


class _Layout(NamedTuple):
    """How a head is stored: the names of its two layers, and what is between them."""

    pooler: str
    classifier: str
    between: Pooler


_ON_POOLER = _Layout("pooler.dense", "classifier", "tanh")
_OWN_DENSE = _Layout("classifier.dense", "classifier.out_proj", "tanh")
_BEFORE = _Layout("pre_classifier", "classifier", "relu")
_BARE = _Layout("", "classifier", "none")
_USUAL = {"bert": _ON_POOLER, "distilbert": _BEFORE, "roberta": _OWN_DENSE, "mpnet": _OWN_DENSE}
_TOKENS = "ForTokenClassification"
_WEIGHTS, _SHARDS, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_OTHERS = (
    *("config.json", "preprocessor_config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json"),
    *("modules.json", "sentence_bert_config.json", "*_Pooling/config.json"),
)


def fetch(name: str) -> Path:
    """A local directory, or the files of a model on the hub: from its cache, else downloaded."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute() or name.count("/") > 1:
        raise CheckpointError(f"{name} is not a directory with a checkpoint")
    with needs_extra("train"):
        import huggingface_hub as hub
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


def _shards(directory: Path) -> list[Path]:
    """The files that the index names. They are beside it: an index comes from anybody, and must not read elsewhere.

    The hub's cache has links in `snapshots/<revision>` to the same model's `blobs`.
    """
    places = read_json(directory / _SHARDS).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{directory / _SHARDS}: expected a `weight_map` of names of files")
    home = directory.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    shards = []
    for name in sorted(set(places.values())):
        try:
            found = (directory / name).resolve()
            beside = found.parent in homes and not found.is_symlink()
        except (OSError, ValueError, RuntimeError):  # a name that cannot be one; before Python 3.13, links in a circle
            beside = False
        if not beside or Path(name).name != name:
            raise CheckpointError(
                f"{directory / _SHARDS} names {name!r}, which is not a file in its own directory: "
                "put all shards beside the index and name them without a path"
            )
        shards.append(directory / name)
    return shards


def _weights(directory: Path, read_pickled: ReadPickled | None) -> Tensors:
    if (directory / _WEIGHTS).exists():
        return read_tensors(directory / _WEIGHTS)
    if (directory / _SHARDS).exists():
        return {name: value for shard in _shards(directory) for name, value in read_tensors(shard).items()}
    if (directory / _PICKLED).exists():
        if read_pickled is None:
            raise CheckpointError(f"{directory} has its weights in {_PICKLED} only: convert them to {_WEIGHTS}")
        return read_pickled(directory / _PICKLED)
    raise CheckpointError(f"{directory} has no weights: neither {_WEIGHTS} nor {_PICKLED}")


def _foreign_name(name: str, architecture: str, layout: _Layout) -> str:
    """Our name of a tensor -> Hugging Face's, without the prefix of a model with a head."""
    if name in _EMBEDDINGS:
        return _EMBEDDINGS[name]
    first, *rest = name.split(".")
    if first == "layers":
        where, parts = _LAYERS[architecture]
        return f"{where}.{rest[0]}.{parts[rest[1]]}.{rest[2]}"
    return f"{layout.pooler if first == 'pooler' else layout.classifier}.{rest[0]}"


def _bare(tensors: Tensors, architecture: str) -> Tensors:
    """Names as a bare encoder has them, without a head for pre-training. Old files call LayerNorm's parameters gamma
    and beta."""
    bare = {}
    for name, value in tensors.items():
        short = name.removeprefix(f"{architecture}.")
        if name.startswith(_PRETRAINING[architecture]):
            continue
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            short = short.removesuffix(old) + new if short.endswith(old) else short
        bare[short] = value
    return bare


def _layout(bare: Tensors, architecture: str, kind: Kind) -> _Layout:
    """By what the file has; an encoder without a classifier gets one as is usual for it."""

    def there(part: str) -> bool:
        return any(f"{part}.{each}" in bare for each in ("weight", "bias"))

    if kind != "label":
        return _BARE
    if not there("classifier") and not there("classifier.out_proj"):
        return _USUAL[architecture]
    for layout in (_OWN_DENSE, _BEFORE):
        if there(layout.pooler):
            return layout
    return _ON_POOLER if architecture == "bert" and there("pooler.dense") else _BARE


def _sentence_head(directory: Path) -> tuple[Head, int] | None:
    """What sentence-transformers says of an encoder: how its states become an embedding, and the longest text."""
    path = directory / "modules.json"
    if not path.exists():
        return None
    try:
        modules = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise CheckpointError(
            f"{path}: the modules are {', '.join(kinds)}, expected Transformer, Pooling and perhaps Normalize"
        )
    where = directory / str(modules[1].get("path", "")) / "config.json"
    pooling = read_json(where)
    modes = sorted(name for name, value in pooling.items() if name.startswith("pooling_mode") and value)
    found = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}.get(" ".join(modes))
    if found is None:
        raise CheckpointError(f"{where}: {', '.join(modes) or 'no pooling mode'}, expected the mean or the first token")
    sizes = directory / "sentence_bert_config.json"
    longest = read_json(sizes).get("max_seq_length") if sizes.exists() else None
    head = Head(kind="embedding", pooling=found, unit="Normalize" in kinds)  # type: ignore[arg-type]
    return head, longest if isinstance(longest, int) and longest > 0 else 0


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
    if architecture not in _LAYERS:
        known = ", ".join((*_LAYERS, *VISION))
        raise CheckpointError(f"{path}: model_type is {architecture!r}, expected one of {known}")
    activation = "activation" if architecture == "distilbert" else "hidden_act"
    for name, expected in ((activation, "gelu"), ("position_embedding_type", "absolute")):
        if foreign.get(name, expected) != expected:
            raise CheckpointError(f"{path}: {name} is {foreign[name]!r}, expected {expected!r}")
    if foreign.get("is_decoder"):
        raise CheckpointError(f"{path}: the model is a decoder, expected an encoder")
    heads = ("Model", "ForSequenceClassification", _TOKENS, "ForMaskedLM", "ForPreTraining")
    for kind in foreign.get("architectures") or ():
        if not str(kind).endswith(heads):
            raise CheckpointError(
                f"{path}: the model is a {kind}, expected an encoder, or a classifier of texts or tokens"
            )
    if foreign.get("problem_type") == "multi_label_classification":
        raise CheckpointError(f"{path}: the classifier gives several labels at once, expected one label per text")


def _encoder(path: Path, foreign: Mapping[str, Any], labels: tuple[str, ...]) -> Encoder:
    architecture = foreign["model_type"]
    padding = foreign.get("pad_token_id")
    distilled = architecture == "distilbert"
    try:
        sizes = {
            "architecture": architecture,
            "vocabulary": foreign["vocab_size"],
            "positions": foreign["max_position_embeddings"],
            "types": 0 if distilled or architecture == "mpnet" else foreign["type_vocab_size"],
            **{name: foreign[theirs[distilled]] for name, theirs in _SIZES.items()},
            "epsilon": 1e-12 if distilled else foreign["layer_norm_eps"],
            "padding": padding if padding is not None else 0 if architecture in ("bert", "distilbert") else 1,
            "buckets": foreign.get("relative_attention_num_buckets", 32) if architecture == "mpnet" else 0,
            "labels": labels,
        }
        return msgspec.convert(sizes, Encoder)
    except KeyError as error:
        raise CheckpointError(f"{path}: {error} is missing") from error
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _head(directory: Path, foreign: Mapping[str, Any], bare: Tensors, kind: Kind | None) -> tuple[Head, int]:
    """What the model was made for, unless the caller wants something else of it; and the longest text, 0: not said."""
    for name in foreign.get("architectures") or ():
        if str(name).endswith(_TOKENS) and kind is None:
            return Head(kind="tokens"), 0
    known = _sentence_head(directory) if kind in (None, "embedding") else None
    if known is not None and not any(name.startswith("classifier.") for name in bare):
        return known
    return usual_head(kind or "label"), 0


def load_hugging_face(
    directory: Path,
    read_pickled: ReadPickled | None = None,
    kind: Kind | None = None,
    image_size: int | None = None,
) -> tuple[CometConfig, Tensors, tuple[str, ...]]:
    """A model in its unmodified form; and the names of the head's tensors that it lacks.

    Those must be made anew and trained. read_pickled: for old files of weights (`train.read_pickled`). kind: of the
    head (`heads.Head`), if not what the model was made for; what only another head needs is then left out. image_size:
    in pixels, if not that which a model of images was trained with.
    """
    directory = Path(directory)
    path = directory / "config.json"
    foreign = read_json(path)
    if foreign.get("model_type") in VISION:
        return *load_vision(directory, foreign, _weights(directory, read_pickled), kind, image_size), ()
    if image_size is not None:
        raise CheckpointError(f"{path}: the model takes texts: leave out the size of images")
    _check_kind(path, foreign)
    architecture = foreign["model_type"]
    bare = _bare(_weights(directory, read_pickled), architecture)
    head, longest = _head(directory, foreign, bare, kind)
    layout = _layout(bare, architecture, head.kind)
    outputs = bare.get(f"{layout.classifier}.weight")
    labels = _labels(path, foreign, None if outputs is None else len(outputs)) if head.kind != "embedding" else ()
    config = CometConfig(
        encoder=_encoder(path, foreign, labels),
        activation=ActivationChoice(kind="gelu", normalised=False),
        attention=AttentionChoice(kind="softmax", power=1, cosine=False),
        pooler=layout.between,
        head=head,
        length=longest,
    )
    names = {name: _foreign_name(name, architecture, layout) for name in tensor_shapes(config)}
    absent = tuple(
        name
        for name in names
        if name.startswith(("pooler.", "classifier."))
        and not any(
            f"{names[name].rsplit('.', 1)[0]}.{each}" in bare for each in ("weight", "bias")
        )  # half is an error
    )
    unused = set()  # an encoder's own pooler where the head does not go through it
    if layout is not _ON_POOLER:
        unused |= {name for name in bare if name.startswith("pooler.")}
    if kind is not None and head.kind == "embedding":
        unused |= {name for name in bare if name.startswith(("classifier.", "pre_classifier."))}
    expected = {names[name]: shape for name, shape in tensor_shapes(config).items() if name not in absent}
    account_for({name: value.shape for name, value in bare.items() if name not in unused}, expected, directory)
    return config, {name: bare[there] for name, there in names.items() if name not in absent}, absent
