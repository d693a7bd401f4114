"""Decoders of other people: every tensor is accounted for, and what is served is proved and near what was read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from comet_mpc.engine.share import Reals
from comet_mpc.engine.share import decode as decode_words
from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.layer_norm import plain_centred, shrink_factor
from comet_mpc.models.streams.decoder import DecoderShape, decode, encode_weights, input_rows, plain_states, top_of
from comet_mpc.models.streams.folding import FittedLayer, Folding, Seen, head_tops
from comet_mpc.models.streams.reading import read_decoder

D, HEADS, GROUPS, SIZE, INNER, WORDS = 24, 2, 1, 12, 32, 40
LLAMA = {
    "model_type": "llama", "hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "num_hidden_layers": 2, "intermediate_size": INNER, "vocab_size": WORDS, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": D, "n_head": HEADS, "n_layer": 2, "n_inner": INNER, "vocab_size": WORDS,
    "n_positions": 16, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
}  # fmt: skip


def _random(sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    made = {name: generator.standard_normal(size) / np.sqrt(size[-1]) for name, size in sizes.items()}
    for name in made:
        if "norm" in name or ".ln_" in name or name.startswith("ln_f"):
            made[name] = (0.0 if name.endswith("bias") else 1.0) + 0.05 * made[name]
    return {name: value.astype(np.float32) for name, value in made.items()}


def llama_tensors() -> dict[str, np.ndarray]:
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WORDS, D), "model.norm.weight": (D,)}
    for i in range(2):
        place = f"model.layers.{i}."
        sizes |= {
            f"{place}self_attn.{n}_proj.weight": (r, D) for n, r in (("q", D), ("k", SIZE), ("v", SIZE), ("o", D))
        }
        sizes |= {f"{place}mlp.{n}_proj.weight": (INNER, D) for n in ("gate", "up")}
        sizes |= {f"{place}mlp.down_proj.weight": (D, INNER)}
        sizes |= {f"{place}{n}_layernorm.weight": (D,) for n in ("input", "post_attention")}
    return _random(sizes)


def gpt2_tensors() -> dict[str, np.ndarray]:
    sizes: dict[str, tuple[int, ...]] = {
        "wte.weight": (WORDS, D),
        "wpe.weight": (16, D),
        "ln_f.weight": (D,),
        "ln_f.bias": (D,),
    }
    shapes = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, INNER), "mlp.c_proj": (INNER, D)}
    for i in range(2):
        for name, size in shapes.items():
            sizes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[1:]}
        sizes |= {f"h.{i}.{n}.{part}": (D,) for n in ("ln_1", "ln_2") for part in ("weight", "bias")}
    return _random(sizes)


def write(directory: Path, config: dict[str, object], tensors: dict[str, np.ndarray]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def _by_hand(shape: DecoderShape, tensors: dict[str, Reals]) -> list[FittedLayer]:
    """Quadratics and scores as least squares might find them."""
    found = []
    for i in range(shape.layers):
        gamma, beta = tensors[f"layers.{i}.attention_norm.weight"], tensors.get(f"layers.{i}.attention_norm.bias")
        scales = []
        for name in ("query", "key"):
            matrix = tensors[f"layers.{i}.{name}.weight"]
            off = tensors.get(f"layers.{i}.{name}.bias", np.zeros(len(matrix)))
            scales.append(head_tops(matrix, gamma, shape.size, off if beta is None else off + matrix @ beta) / 0.98)
        neurons = np.tile([0.02, 0.5, 0.12], (shape.intermediate, 1))
        scores = np.array([[0.05] * shape.heads, [0.01] * shape.heads])
        found.append(FittedLayer(neurons, scores, (scales[0], scales[1])))
    return found


@pytest.mark.parametrize(("config", "made"), [(LLAMA, llama_tensors()), (GPT2, gpt2_tensors())], ids=["llama", "gpt2"])
def test_what_is_read_is_served_within_its_proof(
    tmp_path: Path, config: dict[str, object], made: dict[str, np.ndarray]
) -> None:
    """The twin checks every bound on every value; and it is near the same model in real arithmetic."""
    shape, tensors = read_decoder(write(tmp_path / "model", config, made))
    folding = Folding(shape, tensors, _by_hand(shape, tensors), Seen((2.0**-6,) * (2 * shape.layers + 1)))
    ids = np.array([3, 1, 4, 1, 5])
    rows = tensors["embeddings"][ids]
    rows = plain_centred(rows + tensors["positions"][: len(ids)]) if shape.centred else rows
    rows = folding.factor * rows
    encoded = encode_weights(shape, folding.weights)
    window, top = Window(0, len(ids), len(ids)), top_of(shape, folding.rules)
    session = TwinSession()
    share = decode(session, input_rows(session, rows[None], window, shape, top), window, shape, folding.rules, encoded)
    found = decode_words(share.flat(), share.fraction, share.width).reshape(len(ids), shape.hidden)
    real = {name: np.asarray(weight.fixed() * 2.0**-weight.fraction) for name, weight in encoded.items()}
    states = plain_states(rows, shape, folding.rules, real)
    np.testing.assert_allclose(found, states[-1], atol=0.2)
    assert max(np.linalg.norm(x, axis=-1).max() for x in states[:-1]) < top  # the proof holds


def _apply(tensors: dict[str, Reals], i: int, name: str, x: Reals) -> Reals:
    bias = tensors.get(f"layers.{i}.{name}.bias")
    product = x @ tensors[f"layers.{i}.{name}.weight"].T
    return np.asarray(product if bias is None else product + bias)


@pytest.mark.parametrize(("config", "made"), [(LLAMA, llama_tensors()), (GPT2, gpt2_tensors())], ids=["llama", "gpt2"])
def test_folding_changes_the_weights_and_not_the_model(
    tmp_path: Path, config: dict[str, object], made: dict[str, np.ndarray]
) -> None:
    """The feed-forward part of the first layer, as the checkpoint says it, with its quadratics."""
    shape, tensors = read_decoder(write(tmp_path / "model", config, made))
    fitted = _by_hand(shape, tensors)
    folding = Folding(shape, tensors, fitted, Seen((2.0**-6,) * (2 * shape.layers + 1)))
    n = np.random.default_rng(5).standard_normal((4, shape.hidden))
    n = plain_centred(n) if shape.centred else n
    gamma, beta = tensors["layers.0.mlp_norm.weight"], tensors.get("layers.0.mlp_norm.bias", np.zeros(shape.hidden))
    x = gamma * n + beta
    gate = _apply(tensors, 0, "gate", x)
    active = fitted[0].neurons @ np.array([1.0, 0.0, 0.0]) + gate * (0.5 + gate * 0.12)
    expected = _apply(tensors, 0, "down", active * (_apply(tensors, 0, "up", x) if shape.gated else 1.0))
    expected = folding.factor * (plain_centred(expected) if shape.centred else expected)
    w, m = {name.removeprefix("layer.0."): value for name, value in folding.weights.items()}, shape.intermediate
    up = n @ w["up.weight"].T
    squares = (up[:, :m] + w["up.bias"]) ** 2 * (up[:, m:] if shape.gated else 1.0)
    found = squares @ w["down.weight"].T + (n @ w["beside.weight"].T if shape.gated else w["down.bias"])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert folding.factor > shrink_factor(shape.hidden)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = llama_tensors()
    changes: list[tuple[dict[str, np.ndarray], dict[str, object], str]] = [
        (made | {"model.layers.0.extra": np.zeros(3, np.float32)}, LLAMA, "extra"),
        ({name: made[name] for name in list(made)[1:]}, LLAMA, "lacks"),
        (made | {"model.norm.weight": np.zeros(5, np.float32)}, LLAMA, "shape"),
        (made | {"model.norm.weight": np.full(D, np.nan, np.float32)}, LLAMA, "finite"),
        (made, LLAMA | {"hidden_act": "gelu"}, "hidden_act"),
        (made, LLAMA | {"model_type": "mamba"}, "mamba"),
        (made, LLAMA | {"hidden_size": "many"}, "hidden_size"),
        (made, LLAMA | {"tie_word_embeddings": False}, "lm_head"),
    ]
    for tensors, config, message in changes:
        with pytest.raises(CheckpointError, match=message):
            read_decoder(write(tmp_path / "model", config, tensors))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_decoder(tmp_path / "nothing")


def test_scales_that_prove_nothing_are_refused(tmp_path: Path) -> None:
    """A row of queries that may be longer than 1 could leave its ring."""
    shape, tensors = read_decoder(write(tmp_path / "model", LLAMA, llama_tensors()))
    layers = _by_hand(shape, tensors)
    layers[1] = FittedLayer(layers[1].neurons, layers[1].scores, (0.5 * layers[1].scales[0], layers[1].scales[1]))
    with pytest.raises(CheckpointError, match="layer 1: a query"):
        Folding(shape, tensors, layers, Seen((2.0**-6,) * 5))


@pytest.mark.parametrize("number", [0.13, -0.13, np.nan])
@pytest.mark.parametrize("which", [0, 1])
def test_numbers_of_heads_that_prove_nothing_are_refused(tmp_path: Path, which: int, number: float) -> None:
    """Before anything is served: |u| and |v| are proved for small b and c."""
    shape, tensors = read_decoder(write(tmp_path / "model", LLAMA, llama_tensors()))
    layers = _by_hand(shape, tensors)
    layers[1].scores[which, -1] = number
    with pytest.raises(CheckpointError, match="layer 1: a head's numbers"):
        Folding(shape, tensors, layers, Seen((2.0**-6,) * 5))
