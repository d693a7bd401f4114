"""Every kind of message that a deployment sends is one that the audit looks at.

Both are watched in the same way, where messages are made: the requests of a run, what a dealer's corrections are of,
and the steps of a preparation. What the deployment has and the audit has not would be a message that nobody judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.engine import Session, Weight, ops
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.share import Share
from comet_mpc.engine.windows import Window
from comet_mpc.local.audit.online import record
from comet_mpc.local.audit.preparation import record_preparation
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.served import ServedModel
from comet_mpc.models.streams.decoder import decode, encode_weights, input_rows, top_of
from comet_mpc.models.transformer import SHAPES
from comet_mpc.offline import registry
from comet_mpc.offline.ot import base, extension
from comet_mpc.offline.pair.matrices import matrix_products, packing_of
from comet_mpc.offline.rlwe import slots
from comet_mpc.offline.rlwe.odd_slots import OddJob
from comet_mpc.offline.rlwe.products import Homomorphic, MatrixJob
from comet_mpc.offline.rlwe.tiling import Tiling
from comet_mpc.offline.sources import PAIR, find_source
from comet_mpc.testing import run_windows
from support.small_decoders import GATED, small_rows, small_rules, small_weights
from support.toy_model import some_texts
from support.two_parties import run_two_parties

pytestmark = pytest.mark.slow

Kinds = set[str]
REQUESTS = {kind.__name__ for kind in ops.OPERATIONS if issubclass(kind, ops.Request)}


def of_request(_: object, request: ops.Request[object], *__: object) -> Kinds:
    ring = request.ring if isinstance(request, ops.TruncateOpen) else request.share.ring
    sent = any(request.wire_bytes())
    return {f"{type(request).__name__}{', odd' if ring.modulus else ''}"} if sent else set()


def of_correction(_: object, __: object, ___: int, correlation: Correlation, ____: int) -> Kinds:
    return {f"correction of {type(correlation).__name__}"}


def of_tiling(tiling: Tiling) -> Kinds:
    """Upload and response of a product. Packed ones are turned or not, in parts or not: each response is one."""
    response = "turned" if tiling.turns else "packed" if tiling.levels else "plain"
    return {f"upload of {'defined' if tiling.defines else 'chosen'} words", f"{response} response"}


PLACES: list[tuple[object, str, Callable[..., Kinds]]] = [
    (PartySession, "_leg", of_request),
    *((kind, "values", of_correction) for kind in sorted(set(map(type, registry.DEALER.values())), key=repr)),
    (MatrixJob, "answer", lambda job, *_: of_tiling(job.tiling)),
    (OddJob, "answer", lambda job, *_: {"upload in odd slots", "response in odd slots"}),
    (slots.SlotJob, "answer", lambda *_: {"upload in slots", "response in slots"}),
    (Homomorphic, "__init__", lambda *_, **__: {"public key"}),
    (Homomorphic, "set_up_packing", lambda *_: {"packing keys"}),
    (base.ReceiverSetup, "finish", lambda *_: {"base transfers"}),
    (extension.TransferSender, "extend", lambda *_, **__: {"extension"}),
    (extension, "_sent_products", lambda *given: {f"products of bits{', odd' if given[-1] else ''}"}),
    (extension._BitsTimesWords, "answer", lambda *_: {"bits times words"}),
]
"""Where messages are made, and of which kinds they are."""


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kinds]:
    """The kinds of all messages meanwhile."""
    seen: Kinds = set()

    def watching(original: Callable[..., Any], kinds: Callable[..., Kinds]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            seen.update(kinds(*given, **named))
            return original(*given, **named)

        return call

    with monkeypatch.context() as patch:
        for home, name, kinds in PLACES:
            patch.setattr(home, name, watching(getattr(home, name), kinds))
        yield seen


@pytest.fixture(scope="module")
def audited() -> dict[str, Kinds]:
    """By source: those of a run and of its preparation."""
    with pytest.MonkeyPatch.context() as patch:
        with watched(patch) as preparing:
            record_preparation(4, set_ups=1)
        with watched(patch) as dealer:
            record("dealer", 4)
        with watched(patch) as pair:
            record("pair", 4)
    online = {kind for kind in pair if kind.partition(",")[0] in REQUESTS}  # its preparation is judged by itself
    return {"dealer": dealer, "pair": online | preparing, "preparing": preparing}


@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("private", [False, True])
def test_every_kind_of_message_of_a_model_is_audited(
    source: str, private: bool, tiny_checkpoint: Path, audited: dict[str, Kinds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's whole program, prepared and run by two parties as a service does, with either kind of embeddings."""
    model = ServedModel.load(tiny_checkpoint, private_embeddings=private)
    query = model.encode(some_texts(1))
    ways = model.plan(1, query.bucket, find_source(source)).ways
    with watched(monkeypatch) as sent:
        run_two_parties(model.answer(1, query.bucket, query), model.weights(), source=source, ways=ways)  # type: ignore[arg-type]
    assert len(sent) > 5
    assert sent <= audited[source], f"not audited: {sorted(sent - audited[source])}"


def test_every_kind_of_product_of_a_large_model_is_audited(audited: dict[str, Kinds]) -> None:
    """Of BERT-base at 128 tokens, by its plan: its layers are packed, turned and define their masks."""
    program = plan_shape(SHAPES["bert-base"], 128, 1, 1, "minimax", PAIR).correlations
    assert packing_of(program)
    sent = {kind for products in matrix_products(program) for kind in of_tiling(products.tiling)} | {"packing keys"}
    assert {"turned response", "upload of defined words"} <= sent
    assert sent <= audited["preparing"], f"not audited: {sorted(sent - audited['preparing'])}"


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_every_kind_of_message_of_a_text_that_is_written_is_audited(
    source: Any, audited: dict[str, Kinds], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(session: Session, weights: Mapping[str, Weight], window: Window) -> Share:
        rows = small_rows(GATED, 3)[:, window.first : window.stop]
        rules = small_rules(GATED)
        given = input_rows(session, rows, window, GATED, top_of(GATED, rules))
        return decode(session, given, window, GATED, rules, weights)

    with watched(monkeypatch) as sent:
        run_windows(write, (2, 1), 3, encode_weights(GATED, small_weights(GATED)), source=source)
    assert len(sent) > 5
    assert sent <= audited[source], f"not audited: {sorted(sent - audited[source])}"


def test_a_kind_that_is_left_out_would_be_noticed(audited: dict[str, Kinds]) -> None:
    """The control: each kind was seen where it is made, and a preparation without packing lacks what it should."""
    assert {"packed response", "turned response", "plain response", "packing keys"} <= audited["preparing"]
    assert "packed response" not in audited["dealer"]
    assert {"correction of MatrixProduct", "correction of WeightProduct"} <= audited["dealer"]
