"""The checkpoint of a decoder that writes, and how a server loads it. No torch.

config.json has a section `comet` as every Comet checkpoint (`stored.checkpoints`), with `decoder` in it. In
model.safetensors are the original weights by canonical names (`streams.folding`), and what was fitted to each layer:

    layers.i.neurons        (intermediate, 3)
    layers.i.scores         (2, heads)
    layers.i.scales.query   (heads,), layers.i.scales.key  (groups,)

Every tensor is accounted for. The ranges are proved again, from the weights, whenever it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from comet_mpc.engine.costs import Network
from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError, CometError, ConfigurationError
from comet_mpc.files import atomic_write
from comet_mpc.models.checkpoint import Tensors
from comet_mpc.models.stored.checkpoints import (
    TENSORS,
    TOKENIZER,
    load_tensors,
    read_tokenizer,
    save_section,
    tensors_digest,
)
from comet_mpc.models.stored.reading import account_for, read_json
from comet_mpc.models.streams.decoder import DecoderShape, encode_weights
from comet_mpc.models.streams.folding import FittedLayer, Folding, Seen, with_hidden_bits
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.writing.decoder import Card, Decoder, as_it_travels, rules_as_stored, table_shapes
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.threads import small_matrices

KIND = "comet-decoder"
"""`model_type` of config.json."""


class DecoderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section `comet` of config.json."""

    format: Literal[1] = 1
    decoder: DecoderShape
    """Its positions are the context that it is served with."""
    tied: bool
    """Whether the table of embeddings is the head's as well."""
    epsilon: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
    ends: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    seen: tuple[Annotated[float, msgspec.Meta(gt=0.0)], ...]
    """Of every norm: the least mean square of a row that fitting has seen."""
    scores: dict[str, float] = {}
    """On texts that were held out."""


def stored_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint."""
    s = config.decoder
    if len(config.seen) != 2 * s.layers + 1:
        raise CheckpointError(f"{len(config.seen)} norms were seen, and there are {2 * s.layers + 1}")
    rows, fewer = s.heads * s.size, s.groups * s.size
    matrices = {
        "query": (rows, s.hidden), "key": (fewer, s.hidden), "value": (fewer, s.hidden),
        "attention_output": (s.hidden, rows), "gate": (s.intermediate, s.hidden), "down": (s.hidden, s.intermediate),
    }  # fmt: skip
    if s.gated:
        matrices["up"] = (s.intermediate, s.hidden)
    fitted = {
        "neurons": (s.intermediate, 3), "scores": (2, s.heads), "scales.query": (s.heads,), "scales.key": (s.groups,)
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = table_shapes(s, tied=config.tied)
    for i in range(s.layers):
        prefix = f"layers.{i}."
        for name, size in matrices.items():
            shapes[f"{prefix}{name}.weight"] = size
            if s.centred:
                shapes[f"{prefix}{name}.bias"] = size[:1]
        for name in ("attention_norm", "mlp_norm"):
            shapes[f"{prefix}{name}.weight"] = (s.hidden,)
            if s.centred:
                shapes[f"{prefix}{name}.bias"] = (s.hidden,)
        shapes |= {prefix + name: size for name, size in fitted.items()}
    return shapes


def is_decoder(directory: Path) -> bool:
    """Whether a checkpoint is one of a model that writes. Raises if there is none at all."""
    section = read_json(Path(directory) / "config.json").get("comet")
    return isinstance(section, dict) and "decoder" in section


def save_decoder(
    directory: Path,
    config: DecoderConfig,
    tensors: Mapping[str, Any],
    layers: list[FittedLayer],
    *,
    tokenizer: bytes,
) -> None:
    """Writes a checkpoint, config.json last.

    tensors: of the original by canonical names, its epsilon left out
    """
    found = {name: value for name, value in tensors.items() if name != "epsilon"}
    for index, own in enumerate(layers):
        found |= {
            f"layers.{index}.neurons": own.neurons, f"layers.{index}.scores": own.scores,
            f"layers.{index}.scales.query": own.scales[0], f"layers.{index}.scales.key": own.scales[1],
        }  # fmt: skip
    expected = stored_shapes(config)
    account_for({name: np.shape(value) for name, value in found.items()}, expected, directory)
    stored = {name: np.ascontiguousarray(found[name], np.float32) for name in expected}
    for name, value in stored.items():
        if not np.all(np.isfinite(value)):
            raise CheckpointError(f"{name} has values that are not finite: nothing was saved")
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / TOKENIZER) as file:
        file.write(tokenizer)
    with atomic_write(directory / TENSORS) as file:
        file.write(save(stored))
    save_section(directory, KIND, msgspec.to_builtins(config))


def read_stored(directory: Path) -> tuple[DecoderConfig, Tensors]:
    """The configuration and all tensors, each accounted for."""
    path = Path(directory) / "config.json"
    content = read_json(path)
    try:
        config = msgspec.convert(content["comet"], DecoderConfig)
    except (KeyError, msgspec.ValidationError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: section `comet`: {error}") from error
    return config, load_tensors(directory, content, stored_shapes(config))


def fitted_layers(config: DecoderConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> list[FittedLayer]:
    """What was fitted, as it is stored."""

    def get(index: int, name: str) -> Reals:
        return np.asarray(tensors[f"layers.{index}.{name}"], np.float64)

    return [
        FittedLayer(get(i, "neurons"), get(i, "scores"), (get(i, "scales.query"), get(i, "scales.key")))
        for i in range(config.decoder.layers)
    ]


@small_matrices()
def fold_decoder(config: DecoderConfig, tensors: Mapping[str, npt.NDArray[Any]]) -> Folding:
    """What is served, its ranges proved. Public tables have the digits that clients get."""
    tables = table_shapes(config.decoder, tied=config.tied)
    real: dict[str, Any] = {
        name: np.asarray(as_it_travels(name, value) if name in tables else value, np.float64)
        for name, value in tensors.items()
    }
    real["epsilon"] = np.float64(config.epsilon)
    return Folding(config.decoder, real, fitted_layers(config, tensors), Seen(config.seen))


def load_decoder(
    directory: Path,
    *,
    private_embeddings: bool = False,
    answer_bits: int | None = None,
    network: Network = USUAL_NETWORK,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Decoder:
    """A checkpoint as a server has it. The arguments are those of `ServedModel.load`.

    answer_bits: fraction bits of the hidden states that clients are told; None: as many as sampling needs
    """
    told(0, 1)
    config, tensors = read_stored(directory)
    if private_embeddings:
        why = (
            "its embedding table is its head as well, with which clients make logits"
            if config.tied
            else "its clients embed tokens by themselves: a private table of a model that writes is not built"
        )
        raise ConfigurationError(f"{directory} writes, and {why}. Leave out --private-embeddings")
    tokenizer = TextTokenizer.load(read_tokenizer(directory), Path(directory) / TOKENIZER)
    try:
        folding = fold_decoder(config, tensors)
    except CometError as error:
        raise CheckpointError(f"{directory}: nothing is proved of it: {error}") from error
    rules = folding.rules if answer_bits is None else with_hidden_bits(folding.rules, answer_bits)
    card = Card(
        stated=tensors_digest(tensors), shape=config.decoder, rules=rules_as_stored(rules), factor=folding.factor,
        ends=config.ends, tied=config.tied, tokenizer=tokenizer.text,
    )  # fmt: skip
    tables = {name: as_it_travels(name, tensors[name]) for name in table_shapes(config.decoder, tied=config.tied)}
    told(1, 1)
    return Decoder(
        card, tables, weights=encode_weights(config.decoder, folding.weights), tokenizer=tokenizer, network=network
    )
