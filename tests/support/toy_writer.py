"""A model that writes, small enough for every test: one layer that looks back, tokens of letters, random weights.

A row is the state before, of a table; the states of all positions that count are weighted by squares of products, as
attention does. It is a real program of many positions (`engine.windows`) that two parties run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from tokenizers import Tokenizer, models, normalizers

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import CLIENT, Reals, decode
from comet_mpc.engine.windows import Window, with_past
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.writing.model import DROPPED, Step, WritingModel, told
from comet_mpc.models.writing.packages import register_writer
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.cheapest import USUAL_NETWORK

FAMILY = "toy writer"
HIDDEN = 8
X, _ = variables("x y")
_MATRIX = Weight("matrix", (HIDDEN, HIDDEN), 12, 4.0)


def letters() -> TextTokenizer:
    """As Llama's: a beginning of the text, and a token for every byte where there is none for a letter."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghij"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return TextTokenizer.load(tokenizer.to_str().encode(), "here")


class ToyWriter(WritingModel):
    """weights: of the server; a client has their public parts."""

    drops = True
    vocabulary = 270
    state_bound = 64.0
    answer_bits = 8

    def __init__(
        self,
        seed: int = 0,
        *,
        longest: int = 48,
        package: bytes | None = None,
        network: Network = USUAL_NETWORK,
        ends: frozenset[int] = frozenset({2}),
    ) -> None:
        self.tokenizer, self.network = letters(), network
        if package is None:
            generator = np.random.default_rng(seed)
            table = generator.uniform(-1.0, 1.0, (self.vocabulary, HIDDEN)).astype(np.float16)
            table[0:259] *= 0.1  # it writes letters
            matrix = generator.uniform(-0.35, 0.35, (HIDDEN, HIDDEN))
            self._matrix = Weight.encode("matrix", matrix, 12, 4.0)
            card = {"longest": longest, "ends": sorted(ends)}
            package = save_tensors({"table": table}, {FAMILY: msgspec.json.encode(card).decode()})
        else:
            self._matrix = _MATRIX
        size = int.from_bytes(package[:8], "little")
        card = msgspec.json.decode(msgspec.json.decode(package[8 : 8 + size])["__metadata__"][FAMILY])
        self._package, self.longest, self.ends = package, card["longest"], frozenset(card["ends"])
        self._table = load_tensors(package)["table"].astype(np.float64)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._package).hexdigest()

    def package(self) -> bytes:
        return self._package

    def planned_from(self) -> bytes:
        return self.fingerprint.encode()

    def weights(self) -> dict[str, Weight]:
        return {"matrix": self._matrix}

    def state_shape(self, window: Window) -> tuple[int, ...]:
        return told(window), HIDDEN

    def logits(self, states: Reals) -> Reals:
        """A letter is followed by what is next to it in the table, so that texts go on."""
        table = self._table.copy()
        table[259:] = np.roll(table[259:], 3, axis=0)
        return np.asarray(states @ table.T)

    def step(self, window: Window, places: Sequence[int], ids: Sequence[int] | None = None) -> Step:
        own, shape = range(window.first, window.stop), (1, window.size, HIDDEN)
        counts = np.array([[s <= row and places[s] != DROPPED for s in range(window.stop)] for row in own])
        values = None if ids is None else self._rows(ids, [places[row] for row in own]).reshape(shape)

        def run(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
            rows = session.private(CLIENT, shape, 10, 2.0, values)
            made = session.linear(session.give(rows.narrow(48)), weights["matrix"], bound=8.0)
            opened = session.open(session.truncate(made, 12, 64))
            keys = with_past(session, "keys", opened, window, axis=1)
            scores = session.matmul(opened, keys, transposed=True, bound=64.0)
            squares = session.evaluate(X**2, {"x": session.truncate_open(scores, 14, 40)}, bound=2.0**12)
            if squares.values is not None:
                squares = squares.with_values(squares.values * counts.astype(np.uint64))
            small = session.open(session.truncate(squares, 4, 48))
            values_so_far = with_past(session, "values", session.open(rows.narrow(48)), window, axis=1)
            context = session.matmul(small, values_so_far, causal=window.first, bound=2.0**16)
            states = session.truncate(context, context.fraction - 8, 40)[0, -told(window) :].times_power(-10)
            words = session.reveal(states.times_power(10).bounded(2.0**16), CLIENT)
            return None if words is None else np.tanh(decode(words, 8, 40))

        return run

    def _rows(self, ids: Sequence[int], places: Sequence[int]) -> Reals:
        turns = 1.0 + 0.1 * np.sin(np.asarray(places))
        return np.asarray(np.clip(self._table[[*ids]] * turns[:, None], -1.9, 1.9))

    def written(self, prompt: str, count: int) -> list[int]:
        """Greedy, by the plaintext twin, one token at a time."""
        return [*written_by_twin(self, prompt, count)]


def _unpack(package: bytes, *, network: Network, tokenizer: TextTokenizer | None) -> ToyWriter:
    return ToyWriter(package=package, network=network)


register_writer(FAMILY, _unpack)
