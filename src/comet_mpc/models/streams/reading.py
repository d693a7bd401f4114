"""Decoders as others store them: a directory with config.json and model.safetensors, Llama's or GPT-2's layout.

Every tensor is accounted for: one that is missing, or of another shape, or that nothing here reads, is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.models.streams.decoder import DecoderShape

_LLAMA = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "attention_output",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def read_decoder(directory: Path) -> tuple[DecoderShape, dict[str, Reals]]:
    """The shape and the weights by canonical names (`folding`)."""
    config = _config(directory / "config.json")
    path = directory / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no model.safetensors")
    stored = {name: np.asarray(value, np.float64) for name, value in load_file(path).items()}
    kind = config.get("model_type")
    if kind == "llama":
        return _llama(config, stored)
    if kind == "gpt2":
        return _gpt2(config, stored)
    raise CheckpointError(f"{directory}: a model of type {kind!r} is no decoder that is known: llama, gpt2")


def _config(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read as a model's configuration") from error


def _number(config: dict[str, Any], name: str, default: float | None = None) -> float:
    value = config.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise CheckpointError(f"the configuration's {name} is {value!r}, expected a number")
    return value


def _llama(config: dict[str, Any], stored: dict[str, Reals]) -> tuple[DecoderShape, dict[str, Reals]]:
    _expect(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    d, heads = int(_number(config, "hidden_size")), int(_number(config, "num_attention_heads"))
    rope = config.get("rope_parameters") or {"rope_theta": _number(config, "rope_theta", 10000.0)}
    if config.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise CheckpointError("rotary positions that are scaled are not known")
    shape = DecoderShape(
        int(_number(config, "num_hidden_layers")), d, heads, int(_number(config, "num_key_value_heads", heads)),
        int(_number(config, "head_dim", d // heads)), int(_number(config, "intermediate_size")),
        int(_number(config, "vocab_size")), int(_number(config, "max_position_embeddings")),
        theta=float(rope["rope_theta"]),
    )  # fmt: skip
    names = {"model.embed_tokens.weight": "embeddings", "model.norm.weight": "last_norm.weight"}
    for i in range(shape.layers):
        names |= {f"model.layers.{i}.{old}.weight": f"layers.{i}.{new}.weight" for old, new in _LLAMA.items()}
    if not config.get("tie_word_embeddings", False) or "lm_head.weight" in stored:
        names["lm_head.weight"] = "head"
    stored = {name: value for name, value in stored.items() if not name.endswith("rotary_emb.inv_freq")}
    epsilon = {"epsilon": np.float64(_number(config, "rms_norm_eps", 1e-6))}
    return shape, _checked(shape, _renamed(stored, names)) | epsilon  # type: ignore[return-value]


def _gpt2(config: dict[str, Any], stored: dict[str, Reals]) -> tuple[DecoderShape, dict[str, Reals]]:
    _expect(config, activation_function="gelu_new", scale_attn_by_inverse_layer_idx=False)
    d, heads = int(_number(config, "n_embd")), int(_number(config, "n_head"))
    shape = DecoderShape(
        int(_number(config, "n_layer")), d, heads, heads, d // heads, int(config.get("n_inner") or 4 * d),
        int(_number(config, "vocab_size")), int(_number(config, "n_positions")), theta=0.0, gated=False, centred=True,
    )  # fmt: skip
    stored = {name.removeprefix("transformer."): value for name, value in stored.items()}
    stored = {name: value for name, value in stored.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
    names = {"wte.weight": "embeddings", "wpe.weight": "positions"}
    names |= {f"ln_f.{part}": f"last_norm.{part}" for part in ("weight", "bias")}
    if "lm_head.weight" in stored:
        names["lm_head.weight"] = "head"
    places = {
        "ln_1": "attention_norm", "attn.c_attn": "qkv", "attn.c_proj": "attention_output", "ln_2": "mlp_norm",
        "mlp.c_fc": "gate", "mlp.c_proj": "down",
    }  # fmt: skip
    for i in range(shape.layers):
        for old, new in places.items():
            names |= {f"h.{i}.{old}.{part}": f"layers.{i}.{new}.{part}" for part in ("weight", "bias")}
    tensors = _renamed(stored, names)
    for i in range(shape.layers):  # stored input by output
        for name in ("qkv", "attention_output", "gate", "down"):
            tensors[f"layers.{i}.{name}.weight"] = tensors[f"layers.{i}.{name}.weight"].T
        for part in ("weight", "bias"):
            whole = tensors.pop(f"layers.{i}.qkv.{part}")
            if len(whole) != 3 * d:
                raise CheckpointError(f"h.{i}.attn.c_attn.{part} has {len(whole)} outputs, expected {3 * d}")
            for name, piece in zip(("query", "key", "value"), np.split(whole, 3), strict=True):
                tensors[f"layers.{i}.{name}.{part}"] = piece
    epsilon = {"epsilon": np.float64(_number(config, "layer_norm_epsilon", 1e-5))}
    return shape, _checked(shape, tensors) | epsilon  # type: ignore[return-value]


def _expect(config: dict[str, Any], **expected: Any) -> None:
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise CheckpointError(f"the configuration's {name} is {config[name]!r}, expected {value!r}")


def _renamed(stored: dict[str, Reals], names: dict[str, str]) -> dict[str, Reals]:
    if missing := sorted(names.keys() - stored.keys()):
        raise CheckpointError(f"the checkpoint lacks {', '.join(missing[:3])}")
    if unknown := sorted(stored.keys() - names.keys()):
        raise CheckpointError(f"the checkpoint has tensors that nothing reads: {', '.join(unknown[:3])}")
    return {new: stored[old] for old, new in names.items()}


def _checked(shape: DecoderShape, tensors: dict[str, Reals]) -> dict[str, Reals]:
    """Every weight of the shape that it must have."""
    d, m = shape.hidden, shape.intermediate
    rows, fewer = shape.heads * shape.size, shape.groups * shape.size
    matrices = {
        "query": (rows, d), "key": (fewer, d), "value": (fewer, d), "attention_output": (d, rows), "gate": (m, d),
        "up": (m, d), "down": (d, m), "attention_norm": (d,), "mlp_norm": (d,), "last_norm": (d,),
    }  # fmt: skip
    whole = {"embeddings": (shape.vocabulary, d), "head": (shape.vocabulary, d), "positions": (shape.positions, d)}
    for name, value in tensors.items():
        place = name.split(".")
        expected: tuple[int, ...] = whole.get(name) or matrices[place[-2]]
        if place[-1] == "bias":
            expected = expected[:1]
        if value.shape != expected:
            raise CheckpointError(f"{name} has shape {value.shape}, expected {expected}")
        if not np.all(np.isfinite(value)):
            raise CheckpointError(f"{name} has numbers that are not finite")
    return tensors
