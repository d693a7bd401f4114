"""Many texts asked at once by clients on the nodes of a Ray cluster: `comet query --cluster`, `comet eval --cluster`.

The texts are in the clear on these nodes. So this is the cluster of whoever owns the texts, never the server's.

Each run of the program is asked for by the next client that is free. A run whose client is lost, or got an error that
another try may mend, is asked for again, by another client and with other randomness.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from comet_mpc.cluster import ray_cluster
from comet_mpc.cluster.host import Host
from comet_mpc.engine.costs import Network
from comet_mpc.errors import CometError, ImpossibleAnswer, NodeLost, PeerClosed, PeerError, PeerTimeout, ServerBusy
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Input, TextRun
from comet_mpc.net.authority import make_test_set
from comet_mpc.service.client import Client, ClientOptions
from comet_mpc.service.hosting.blueprint import Blueprint
from comet_mpc.service.prediction import Answer

Runs = Callable[[Sequence[Input]], list[TextRun]]

_LOOPBACK = "127.0.0.1"
_TICK = 1.0
_MOST_TRIES = 4
"""Of one run, and losses of clients for each that there is."""
_PASSING = (NodeLost, PeerClosed, PeerTimeout, ServerBusy)
"""Errors that another try may mend."""


class Asker:
    """A client on a node. What it prepares stays in its cache there."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._client = Client(address, **options)

    def ask(self, run: TextRun, texts: list[Input]) -> list[Answer]:
        return self._client.ask_run(run, texts)


class SelfServed(Asker):
    """A server and its client on one node, for trials: both have one operator, so nothing is private."""

    def __init__(self, blueprint: bytes, options: ClientOptions) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="comet-")
        directory = Path(self._directory.name)
        make_test_set(directory / "keys")
        order = msgspec.json.decode(blueprint, type=Blueprint)
        order = msgspec.structs.replace(order, keys=str(directory / "keys"))
        self._host = Host(msgspec.json.encode(order), _LOOPBACK, str(directory / "state"))
        (host, port), _ = self._host.start()
        own: ClientOptions = {**options, "keys": directory / "keys", "cache": directory / "cache"}
        super().__init__(f"{host}:{port}", own)


class Spread:
    """Asks as a `Client` does, by several of them at once.

    make  makes another one on some node
    runs  encodes texts, here, all of them before the first is asked about
    """

    def __init__(self, make: Callable[[], Any], count: int, runs: Runs) -> None:
        self._make, self._runs = make, runs
        self._idle = [make() for _ in range(count)]
        self._losses_left = _MOST_TRIES * count

    def ask(self, texts: Sequence[Input], *, told: Callable[[int, Any], None] | None = None) -> list[Answer]:
        """One answer per text, in order; all of them or an error. told: as of `Client.ask`."""
        found: dict[int, Answer] = {}
        impossible: CometError | None = None
        waiting = deque((run, _MOST_TRIES) for run in self._runs(texts))
        flying: dict[Any, tuple[Any, TextRun, int]] = {}
        try:
            while waiting or flying:
                while waiting and self._idle:
                    asker, (run, tries) = self._idle.pop(), waiting.popleft()
                    flying[asker.ask.remote(run, [texts[index] for index in run.indices])] = asker, run, tries
                for reference in ray.wait(list(flying), timeout=_TICK)[0]:
                    asker, run, tries = flying.pop(reference)
                    try:
                        answers = self._result(reference, asker)
                    except ImpossibleAnswer as error:  # the server must not learn of it: the others are asked
                        impossible = impossible or error
                    except _PASSING:
                        if tries <= 1:
                            raise
                        waiting.append((run, tries - 1))
                    else:
                        for index, one in zip(run.indices, answers, strict=True):
                            found[index] = one
                            if told is not None:
                                told(index, one)
        finally:
            for asker, _, _ in flying.values():  # what it does now is wanted by nobody
                ray_cluster.end(asker)
        if impossible is not None:
            raise impossible
        return [found[index] for index in range(len(texts))]

    def _result(self, reference: Any, asker: Any) -> list[Answer]:
        """What a client has answered; it is free again, or another one takes its place."""
        try:
            answers: list[Answer] = ray.get(reference, timeout=_TICK)
        except (RayActorError, GetTimeoutError) as error:
            self._losses_left -= 1
            ray_cluster.end(asker)
            cause = getattr(error, "cause", None) or error.__cause__
            if isinstance(cause, CometError) or not self._losses_left:  # it could not even be made
                raise PeerError(f"the clients on the cluster are lost: {_first_line(error)}") from error
            self._idle.append(self._make())
            raise PeerClosed("a client on the cluster is lost") from error
        except RayTaskError as error:
            self._idle.append(asker)
            if isinstance(error.cause, CometError):
                raise error.cause from None
            raise
        self._idle.append(asker)
        return answers

    def close(self) -> None:
        for asker in self._idle:
            ray_cluster.end(asker)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


@contextlib.contextmanager
def spread_clients(
    cluster: str,
    count: int,
    public: PublicModel,
    kind: type,
    whom: str | bytes,
    options: ClientOptions,
    runs: Runs | None = None,
) -> Iterator[Spread]:
    """Clients on the nodes of a cluster; count 0: as many as it has cores.

    kind: `Asker`, which asks the server at the address `whom`; or `SelfServed`, by a blueprint in JSON
    runs: how texts are encoded, if not with the public model alone
    """
    given: ClientOptions = {"ready": 0, **options}
    given["bucket"] = given["tokenizer"] = None  # of no use to clients that are given tokens
    given["accept_model"] = ""
    if issubclass(kind, Asker) and not issubclass(kind, SelfServed):
        given["fingerprint"] = public.fingerprint  # none of them takes another model than the one that was checked here
    with ray_cluster.connected(cluster):
        wanted = count or max(1, round(sum(machine.cpus for machine in ray_cluster.machines())))
        runs = runs or (lambda texts: public.runs(texts, options["batch"], options.get("bucket")))
        clients = Spread(lambda: ray_cluster.spread(kind, whom, given), wanted, runs)
        with contextlib.closing(clients):
            yield clients


@contextlib.contextmanager
def self_served_clients(
    cluster: str, count: int, directory: Path, served: PublicModel, network: Network, batch: int
) -> Iterator[Spread]:
    """Clients of one model on the nodes of a cluster, each with a server of its own. directory: of it, on every node"""
    blueprint = Blueprint(models={"model": str(directory)}, keys="", network=str(network), untrained=True, workers=2)
    order = msgspec.json.encode(blueprint.everywhere())
    with spread_clients(cluster, count, served, SelfServed, order, {"batch": batch}) as clients:
        yield clients
