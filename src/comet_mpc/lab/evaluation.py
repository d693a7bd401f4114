"""A dev set evaluated inside the protocol, next to the plaintext model.

The parties are real processes over TLS on this machine, unless a client of a running service is passed. That shows
correctness and cost; it is not a deployment: all roles have one operator here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from comet_mpc.engine.party import SourceName
from comet_mpc.errors import ConfigurationError, PeerError
from comet_mpc.lab.twin_evaluation import compared, texts_of
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example, Task
from comet_mpc.net.identity import TlsIdentity, make_test_set
from comet_mpc.offline.dealer.server import run_dealer
from comet_mpc.offline.sources import DealerSource, PairSource
from comet_mpc.service.client import Client
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.prediction import Prediction
from comet_mpc.service.server import Server

__all__ = ["evaluate_securely", "local_service"]

_START_SECONDS = 60.0


def evaluate_securely(
    model: ServedModel,
    examples: Sequence[Example],
    *,
    limit: int | None = None,
    task: Task | None = None,
    client: Client | None = None,
    source: SourceName = "dealer",
    batch: int = 4,
    group: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Runs the examples (the first `limit` of them) privately and in the clear, and compares.

    model     for the plaintext answers, and, without a client, to be served
    task      for its metrics besides accuracy, in both worlds
    source    of randomness, without a client
    progress  is told (done, of all)

    Returns what `twin_eval.compared` does, `truncated`, and bytes, rounds and seconds in all.
    """
    chosen = list(examples[:limit])
    if not chosen:
        raise ConfigurationError("there are no examples to evaluate")
    texts = texts_of(chosen)
    start = time.monotonic()
    predictions: list[Prediction] = []
    with contextlib.ExitStack() as stack:
        if client is None:
            address, keys, directory = stack.enter_context(local_service(model, source, batch=batch))
            ready = 0 if source == "pair" else None  # in the background it would only compete with the queries
            cache = directory / "cache"
            client = stack.enter_context(Client(address, keys=keys, cache=cache, batch=batch, ready=ready))
        for place in range(0, len(texts), group):
            predictions += client.classify(texts[place : place + group])
            if progress is not None:
                progress(len(predictions), len(texts))
    seconds = time.monotonic() - start
    plain = np.concatenate([model.plain_logits(model.encode([text])) for text in texts])
    secure = np.array([prediction.logits for prediction in predictions])
    runs = {id(prediction.cost): prediction.cost for prediction in predictions}.values()
    return compared(secure, plain, chosen, task) | {
        "source": predictions[0].cost.source,
        "truncated": sum(prediction.truncated for prediction in predictions),
        "runs": len(runs),
        "online_bytes": sum(run.online_bytes for run in runs),
        "offline_bytes": sum(run.offline_bytes for run in runs),
        "rounds": sum(run.rounds for run in runs),
        "online_seconds": sum(run.online_seconds for run in runs),
        "offline_seconds": sum(run.offline_seconds for run in runs),
        "seconds": seconds,
    }


@contextlib.contextmanager
def local_service(
    model: ServedModel, source: SourceName, *, batch: int = 4, workers: int = 2
) -> Iterator[tuple[str, Path, Path]]:
    """A server, and with that source a dealer, as processes of this machine, for trials.

    Gives (address of the server, keys, a directory). Without a dealer a client that prepares takes two workers.
    """
    with tempfile.TemporaryDirectory(prefix="comet-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        keys = directory / "keys"
        make_test_set(keys)
        dealer = stack.enter_context(_process(_deal, keys)) if source == "dealer" else None
        limits = ServiceLimits(batch=batch)
        port = stack.enter_context(_process(_serve, model, dealer, keys, directory / "state", workers, limits))
        yield f"127.0.0.1:{port}", keys, directory


@contextlib.contextmanager
def _process(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """A process that tells the port at which it listens."""
    context = multiprocessing.get_context("fork")  # the model is shared, not copied
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    try:
        if not here.poll(_START_SECONDS):
            raise PeerError("a process of the local service did not start in time")
        try:
            port = here.recv()
        except EOFError as error:
            raise PeerError("a process of the local service failed to start") from error
        yield port
    finally:
        here.close()
        process.terminate()
        process.join(30)
        process.kill()
        process.join()


def _identity(keys: Path, name: str) -> TlsIdentity:
    return TlsIdentity(keys / f"{name}.pem", keys / f"{name}.key", keys / "authority.pem")


def _deal(tell: Connection, keys: Path) -> None:
    run_dealer("127.0.0.1", 0, _identity(keys, "dealer"), started=lambda address: tell.send(address[1]))
    os._exit(0)


def _serve(
    tell: Connection,
    model: ServedModel,
    dealer: int | None,
    keys: Path,
    state: Path,
    workers: int,
    limits: ServiceLimits,
) -> None:
    source = PairSource() if dealer is None else DealerSource(("127.0.0.1", dealer))
    server = Server(model, ("127.0.0.1", 0), source, _identity(keys, "server"), state, workers=workers, limits=limits)
    server.serve_forever(lambda: tell.send(server.address[1]))
