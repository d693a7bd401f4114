"""Private predictions by the bundled model between processes on this machine, connected by TLS."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.engine.costs import Network
from comet_mpc.errors import ConfigurationError
from comet_mpc.local.service import local_service
from comet_mpc.models.served import ServedModel
from comet_mpc.models.writing.model import WritingModel
from comet_mpc.models.writing.packages import answering
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.source import Progress, Source
from comet_mpc.offline.sources import PAIR
from comet_mpc.service.client import Client
from comet_mpc.service.clients.seen import Glimpse, Seen, glimpse

SENTENCES = (
    "a warm, funny and engaging film",
    "the plot is dull and the acting is worse",
    "one of the best and most moving films of the year",
)


class TextResult(msgspec.Struct, frozen=True, kw_only=True):
    """One text. Bytes are both parties' together, frame headers included."""

    text: str
    source: str
    label: str
    probability: float
    plain_label: str
    plain_probability: float
    logit_difference: float
    bucket: int
    online_bytes: int
    planned_online_bytes: int
    client_sent: int
    server_sent: int
    rounds: int
    planned_rounds: int
    offline_bytes: int
    online_seconds: float
    offline_seconds: float
    """The mean of all texts of this size: they are prepared in a row, and keys are sent with the first."""
    setup_bytes: int
    """Once per client and model, the same for all texts."""
    setup_seconds: float
    text_itself: Glimpse
    server_saw: Glimpse
    """All that the client sent to the server in the rounds of the program."""


def demo_model(directory: Path | None = None, network: Network = USUAL_NETWORK) -> ServedModel:
    """The bundled model, or another Comet checkpoint, for clients over such a network."""
    if directory is not None:
        return ServedModel.load(directory, network=network)
    with as_file(files("comet_mpc") / "data" / "demo_model") as bundled:
        return ServedModel.load(bundled, network=network)


@contextlib.contextmanager
def demo_writer(model: WritingModel, source: Source, progress: Progress | None = None) -> Iterator[Client]:
    """A client of a model that writes, whose server is another process on this machine."""
    with (
        local_service(model, source) as (address, keys, directory),
        Client(address, keys=keys, cache=directory / "cache", ready=0, progress=progress) as client,
    ):
        yield client


def _prepare(client: Client, bucket: int, count: int) -> float:
    """Seconds for each of `count` texts of one size."""
    start = time.monotonic()
    client.prepare(count, bucket=bucket)
    return (time.monotonic() - start) / count


def run_demo(
    model: ServedModel, texts: Sequence[str], source: Source = PAIR, progress: Progress | None = None
) -> list[TextResult]:
    """Classifies the texts one by one, privately and in the clear. Randomness for all of them is prepared before."""
    if model.config.head.kind != "label":
        raise ConfigurationError(
            f"the demo shows labels, this model gives {model.config.head.kind}: use `comet serve` and `comet query`"
        )
    results, seen = [], Seen()
    with (
        local_service(model, source, batch=1) as (address, keys, directory),
        Client(
            address,
            keys=keys,
            cache=directory / "cache",
            batch=1,
            ready=0,
            source=source.name,
            progress=progress,
            watch=seen.run,
        ) as client,
    ):
        public = answering(client.connect())
        buckets = [public.bucket_of(text, number=number) for number, text in enumerate(texts, start=1)]
        sizes = Counter(buckets)
        offline_seconds = {bucket: _prepare(client, bucket, count) for bucket, count in sizes.items()}
        for text, bucket in zip(texts, buckets, strict=True):
            client.prepare(bucket=bucket)  # what can be done in memory
            (prediction,) = client.classify([text])
            plain = model.plain_logits(model.encode([text]))[0]
            odds = np.exp(plain - plain.max())
            plan = public.plan(1, bucket, source)
            results.append(
                TextResult(
                    text=text,
                    source=prediction.cost.source,
                    label=prediction.label,
                    probability=prediction.probability,
                    plain_label=model.config.encoder.labels[int(plain.argmax())],
                    plain_probability=float(odds.max() / odds.sum()),
                    logit_difference=float(np.max(np.abs(plain - np.array(prediction.logits)))),
                    bucket=bucket,
                    online_bytes=prediction.cost.online_bytes,
                    planned_online_bytes=plan.online_bytes,
                    client_sent=plan.sent(0),
                    server_sent=plan.sent(1),
                    rounds=prediction.cost.rounds,
                    planned_rounds=plan.rounds,
                    offline_bytes=prediction.cost.offline_bytes,
                    online_seconds=prediction.cost.online_seconds,
                    offline_seconds=offline_seconds[bucket],
                    setup_bytes=prediction.cost.setup_bytes,
                    setup_seconds=prediction.cost.setup_seconds,
                    text_itself=glimpse(text.encode()),
                    server_saw=seen.runs[-1].glimpse(),
                )
            )
    return results
