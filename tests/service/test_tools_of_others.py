"""The tools that people have already, against a real server: openai, LangChain, pandas, scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pandas
import pytest
from langchain_openai import OpenAIEmbeddings
from sklearn.base import clone
from sklearn.metrics import get_scorer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from comet_mpc import Client, PrivateEncoder, classify_frame
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.heads import Head
from comet_mpc.scikit import PrivateClassifier
from support.gateways import Gateway, gateway_process
from support.processes import ServerProcess, server_process
from support.toy_model import TINY, make_checkpoint, some_texts
from support.waiting import PATIENCE

pytestmark = pytest.mark.service

TEXTS = some_texts(3, seed=5)
QUIET = {"ready": 0}
"""Nobody waits for these clients: what they would prepare in the background is not used."""
LAST_DIGIT = 2.0**-7
"""Two runs round a revealed digit up or down; then vectors are scaled to length 1."""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, keys: Path, shared_dealer: int) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("embedder")
    head = Head(kind="embedding", pooling="mean", unit=True)
    checkpoint = make_checkpoint(directory / "model", **TINY, head=head)
    with server_process(keys, checkpoint, shared_dealer, directory / "state", workers=2, limits=QUIET) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, keys: Path, embedder: ServerProcess) -> Iterator[Gateway]:
    with gateway_process(embedder.address, keys, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def classifier(
    tmp_path_factory: pytest.TempPathFactory, keys: Path, tiny_checkpoint: Path, shared_dealer: int
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("classifier")
    with server_process(keys, tiny_checkpoint, shared_dealer, directory / "state", workers=2, limits=QUIET) as server:
        yield server


def asking(gateway: Gateway) -> Any:
    token = gateway.header["authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{gateway.url.rstrip('/')}/v1", api_key=token, timeout=PATIENCE, max_retries=0)


def test_openai_gets_the_embeddings_that_a_client_gets(
    gateway: Gateway, embedder: ServerProcess, keys: Path, tmp_path: Path
) -> None:
    with asking(gateway) as asked, Client(embedder.address, keys=keys, cache=tmp_path) as client:
        (model,) = asked.models.list().data
        found = asked.embeddings.create(model=model.id, input=TEXTS)  # base64, as openai asks for by itself
        plain = asked.embeddings.create(model=model.id, input=TEXTS[0], encoding_format="float")
        expected = client.embed(TEXTS)
        assert model.id == client.connect().fingerprint
    vectors = np.array([one.embedding for one in found.data])
    assert [one.index for one in found.data] == [0, 1, 2]
    assert vectors == pytest.approx(np.array([one.vector for one in expected]), abs=LAST_DIGIT)
    assert plain.data[0].embedding == pytest.approx(expected[0].vector, abs=LAST_DIGIT)
    assert found.usage.total_tokens == sum(one.tokens_used for one in expected)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"input": [[1, 2, 3]]}, "token ids"),
        ({"input": [1, 2, 3]}, "token ids"),
        ({"input": TEXTS[0], "dimensions": 3}, "leave `dimensions` out"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
    ],
)
def test_requests_that_cannot_be_answered_say_why(gateway: Gateway, request_: dict[str, Any], said: str) -> None:
    with asking(gateway) as asked, pytest.raises(openai.APIStatusError, match=said) as refused:
        asked.embeddings.create(model="private", **request_)
    assert refused.value.status_code in (400, 422)


def test_langchain_asks_the_gateway(gateway: Gateway) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{gateway.url.rstrip('/')}/v1",
        api_key=lambda: gateway.header["authorization"].removeprefix("Bearer "),
        model="private",
        check_embedding_ctx_length=False,
    )
    assert np.linalg.norm(embeddings.embed_query(TEXTS[0])) == pytest.approx(1.0)
    assert len(embeddings.embed_documents(TEXTS)) == len(TEXTS)


def test_an_encoder_has_the_manners_of_sentence_transformers(
    embedder: ServerProcess, keys: Path, tmp_path: Path
) -> None:
    with PrivateEncoder(embedder.address, keys=keys, cache=tmp_path) as encoder:
        vectors = encoder.encode(TEXTS, show_progress_bar=True)
        one = encoder.encode(TEXTS[0], normalize_embeddings=True)
        assert vectors.shape == (3, encoder.get_sentence_embedding_dimension())
        assert vectors.dtype == np.float32
        assert encoder.encode([]).shape == (0, encoder.dimension)
        long = encoder.encode_document(TEXTS[0], prompt="the film ", truncate_dim=5, batch_size=64, device="cpu")
        (prompted,) = encoder.client.embed([f"the film {TEXTS[0]}"])
        assert long == pytest.approx(np.array(prompted.vector[:5]), abs=LAST_DIGIT)
        assert long != pytest.approx(vectors[0][:5], abs=LAST_DIGIT)
        assert encoder.encode_query([TEXTS[1]]) == pytest.approx(vectors[1:2], abs=LAST_DIGIT)
        for wrong in ({"convert_to_tensor": True}, {"precision": "int8"}, {"output_value": "token_embeddings"}):
            with pytest.raises(ConfigurationError, match=f"leave {next(iter(wrong))} out"):
                encoder.encode(TEXTS, **wrong)
        with pytest.raises(ConfigurationError, match=r"no argument 'batch_sise'\. Did you mean"):
            encoder.encode(TEXTS, batch_sise=3)
    assert one == pytest.approx(vectors[0], abs=LAST_DIGIT)
    assert np.diag(encoder.similarity(vectors, vectors)) == pytest.approx(1.0)


def test_a_frame_gets_labels_beside_its_texts(classifier: ServerProcess, keys: Path, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": [7, 8, 9], "text": TEXTS}, index=[3, 1, 2])
    with Client(classifier.address, keys=keys, cache=tmp_path) as client:
        found = classify_frame(client, frame)
        expected = client.classify(TEXTS)
        with pytest.raises(ConfigurationError, match=r"no column 'txt'\. Its columns: id, text\. Did you mean"):
            classify_frame(client, frame, "txt")
        with pytest.raises(ConfigurationError, match="column 'id', row 0: expected a text, found int"):
            classify_frame(client, frame, "id")
        assert len(classify_frame(client, frame[:0])) == 0
    assert list(found.columns) == ["id", "text", "label", "probability", "truncated"]
    assert list(found.index) == [3, 1, 2]
    assert list(found["label"]) == [one.label for one in expected]
    assert list(frame.columns) == ["id", "text"]


def test_a_classifier_goes_into_a_pipeline(classifier: ServerProcess, keys: Path, tmp_path: Path) -> None:
    own = PrivateClassifier(classifier.address, keys=keys, cache=tmp_path)
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows["text"]), clone(own))
    frame = pandas.DataFrame({"text": TEXTS})
    with Client(classifier.address, keys=keys, cache=tmp_path) as client:
        expected = [one.label for one in client.classify(TEXTS)]
    pipeline.fit(frame, expected)
    chances = pipeline.predict_proba(frame)
    assert chances.sum(axis=1) == pytest.approx(1.0)
    assert list(pipeline.predict(frame)) == expected
    assert get_scorer("accuracy")(pipeline, frame, np.array(expected)) == 1.0
    assert own.fit().predict(frame[["text"]]).tolist() == expected
    with pytest.raises(ConfigurationError, match="no label dunno"):
        own.fit(TEXTS, ["dunno"])
    with pytest.raises(ConfigurationError, match="put it into a list"):
        own.predict(TEXTS[0])
