"""The package of a model that writes, from a server that lies: it must not tell the server what a text says.

A client that ends a run for what its text says tells the server so, and one that ends a text by an ordinary token tells
that this token was written. Both would follow from what the server has put into the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save

from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window
from comet_mpc.errors import CheckpointError
from comet_mpc.models.streams.decoder import DecoderShape, input_rows, largest_input, top_of
from comet_mpc.models.writing.decoder import FAMILY, Decoder
from comet_mpc.models.writing.stored import load_decoder
from support.small_writers import GPT2, LLAMA, write_small

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def _changed(package: bytes, change: Change) -> Decoder:
    """What a client makes of it."""
    size = int.from_bytes(package[:8], "little")
    card = json.loads(json.loads(package[8 : 8 + size])["__metadata__"][FAMILY])
    tables = load_tensors(package)
    change(card, tables)
    return Decoder.unpack(save(tables, {FAMILY: json.dumps(card)}))


@pytest.mark.parametrize(("shape", "table"), [(LLAMA, "embeddings"), (GPT2, "positions")], ids=["llama", "gpt2"])
def test_no_token_of_a_package_that_is_taken_ends_a_run(tmp_path: Path, shape: DecoderShape, table: str) -> None:
    package = load_decoder(write_small(tmp_path, shape)).package()
    model = Decoder.unpack(package)
    most = largest_input(top_of(shape, model.rules)) / model.card.factor
    taken = 0
    for size in (0.2 * most, 0.9 * most, 1.01 * most, 60_000.0):

        def change(card: dict[str, Any], tables: dict[str, Any], size: float = size) -> None:
            tables[table][7] = np.where(np.arange(shape.hidden) < shape.hidden // 2, size, -size)

        try:
            found = _changed(package, change)
        except CheckpointError:
            continue
        taken += 1
        rows = found.rows([7, 7], [7, 8])[None]
        input_rows(TwinSession(), rows, Window(0, 2, 16), shape, top_of(shape, model.rules))  # raises if one is large
    assert 1 <= taken < 4


def test_a_token_that_says_something_does_not_end_a_text(tmp_path: Path) -> None:
    package = load_decoder(write_small(tmp_path)).package()
    assert _changed(package, lambda card, tables: card.update(ends=[2])).ends == {2}
    with pytest.raises(CheckpointError, match="not a special token"):
        _changed(package, lambda card, tables: card.update(ends=[2, 265]))
