"""The nodes that serve: started, watched, replaced, and the one among them that a client belongs to.

A node is *starting*, *running*, *stopping*, *failed*, or *asleep*: nobody has needed it for long. Its bundles are on
its disk then. A client that names a state goes to the node that has it, which is woken if need be; any other goes to
the node with the least to do. A node that is lost, or does not answer in time, takes its connections with it; what was
prepared there is lost, and the clients set themselves up with another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from comet_mpc.cluster import ray_cluster
from comet_mpc.cluster.host import Host, Seen
from comet_mpc.cluster.ray_cluster import Machine
from comet_mpc.cluster.scaling import Scale
from comet_mpc.errors import CometError, ConfigurationError, PeerError
from comet_mpc.net.sockets import Address
from comet_mpc.service.connection import STATE_DIGITS
from comet_mpc.service.hosting.blueprint import Blueprint
from comet_mpc.service.hosting.lookout import Load

_log = logging.getLogger(__name__)

T = TypeVar("T")
Status = Literal["starting", "running", "stopping", "asleep", "failed", "lost"]


@dataclass(frozen=True)
class FleetLimits:
    look_seconds: float = 1.0
    """Between two looks at every node."""
    node_seconds: float = 10.0
    """A node that does not answer for so long is given up."""
    start_seconds: float = 900.0
    """To load the models on a node."""
    choose_seconds: float = 30.0
    """A client waits so long for a node."""
    return_seconds: float = 5.0
    """… and so long for the one with its bundles, if that has stopped answering; then it gets another."""
    retry_seconds: float = 30.0
    """Before a node on which no server could be started is tried again."""


@dataclass(eq=False)
class Node:
    """One machine that serves, or did."""

    machine: Machine
    name: str
    status: Status = "starting"
    handle: Any = None
    address: Address = ("", 0)
    load: Load = field(default_factory=Load)
    states: frozenset[str] = frozenset()
    sent: int = 0
    """Clients since the last look: they are not in its load yet."""
    suspect: bool = False
    """It could not be reached, or its server is lost and a new one is not there yet."""
    connections: set[asyncio.WriteTransport] = field(default_factory=set)
    starting: asyncio.Task[None] | None = None
    failed_at: float = 0.0
    failure: Exception | None = None

    @property
    def answers(self) -> bool:
        return self.status == "running" and not self.suspect

    def unreachable(self) -> None:
        self.suspect = True

    def cut_off(self) -> int:
        """Ends all its connections."""
        for transport in self.connections:
            transport.abort()
        return len(self.connections) // 2

    def burden(self) -> tuple[float, ...]:
        load = self.load
        return (load.waiting + load.working + self.sent) / max(1, load.slots), load.sessions + self.sent, load.bundles


class Fleet:
    """Made and used within one event loop; `watch` runs beside whoever chooses."""

    def __init__(self, blueprint: Blueprint, state: Path, scale: Scale, limits: FleetLimits | None = None) -> None:
        self._blueprint, self._state, self._scale = blueprint, state.absolute(), scale
        self._limits = limits or FleetLimits()
        self._nodes: dict[str, Node] = {}
        self._machines: dict[str, Machine] = {}
        self._changed = asyncio.Condition()

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.status == "running"]

    async def open(self) -> None:
        """Returns when the least number of nodes serve; raises what went wrong if none does."""
        await self._look_at_machines()
        if not self._machines:
            raise ConfigurationError("the Ray cluster has no node with a core: start one with `ray start`")
        for machine in [*self._machines.values()][: self._scale.least]:
            self._launch(machine)
        await asyncio.wait([node.starting for node in self.nodes if node.starting is not None])
        if not self.running():
            failure = self.nodes[0].failure
            raise failure if isinstance(failure, CometError) else PeerError(f"no node can serve: {failure}")

    async def watch(self) -> None:
        """Until it is cancelled. What Ray knows of the machines does not wait for a server that does not answer."""
        await asyncio.gather(self._again_and_again(self._look_at_machines), self._again_and_again(self._look))

    async def _again_and_again(self, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            try:
                await action()
            except Exception:  # one look that fails is not the end of the service
                _log.exception("the nodes could not be looked at")
            async with self._changed:
                self._changed.notify_all()

    async def _look_at_machines(self) -> None:
        """Which of them are there."""
        self._machines = {machine.number: machine for machine in await asyncio.to_thread(ray_cluster.machines)}
        for node in self.nodes:
            if node.machine.number not in self._machines:
                self._lose(node)

    async def _look(self) -> None:
        """What every server does, and whether there is to be another one, or one less."""
        await asyncio.gather(*(self._look_at(node) for node in self.running()))
        self._fit()

    async def choose(self, wanted: str) -> Node:
        """The node that has that state; if nobody has it, or none is named, one with little to do."""
        begun = time.monotonic()
        while True:
            own = next((node for node in self.nodes if wanted and wanted in node.states), None)
            waited = time.monotonic() - begun
            if own is not None and own.suspect and waited >= self._limits.return_seconds:
                own = None
            if own is not None and own.status == "asleep":
                self._launch(own.machine)
            fitting = [node for node in ([own] if own is not None else self.nodes) if node.answers]
            if fitting:
                chosen = min(fitting, key=Node.burden)
                chosen.sent += 1
                return chosen
            if waited >= self._limits.choose_seconds:
                raise PeerError("no node serves now")
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.look_seconds):
                        await self._changed.wait()

    async def reload(self) -> None:
        """Has all nodes load their checkpoints again."""
        for node in self.running():
            await self._answer(node.handle.reload.remote())

    async def close(self) -> None:
        """Ends all servers, in order."""
        for node in self.nodes:
            if node.starting is not None:
                node.starting.cancel()
        await asyncio.gather(*(self._stop(node) for node in self.running()))
        for node in self.nodes:
            if node.handle is not None:
                ray_cluster.end(node.handle)

    # One node ----------------------------------------------------------------------------------------------

    def _launch(self, machine: Machine) -> None:
        node = self._nodes.setdefault(machine.number, Node(machine, machine.address))
        node.status = "starting"
        node.starting = asyncio.create_task(self._start(node))

    async def _start(self, node: Node) -> None:
        workers = self._blueprint.workers or max(2, int(node.machine.cpus))
        blueprint = msgspec.json.encode(msgspec.structs.replace(self._blueprint, workers=workers))
        fields: dict[str, object] = {"node": node.name, "cores": min(workers, node.machine.cpus)}
        _log.info("a server starts on a node as soon as it has free cores", extra={"fields": fields})
        try:
            arguments = blueprint, node.machine.address, str(self._state)
            node.handle = ray_cluster.start_on(Host, node.machine, workers, *arguments)
            async with asyncio.timeout(self._limits.start_seconds):
                node.address, node.name = await self._answer(node.handle.start.remote())
                self._note(node, await self._answer(node.handle.look.remote()))
        except Exception as error:  # of Ray, of the machine, of what is on it
            node.status, node.failure, node.failed_at = "failed", _cause(error), time.monotonic()
            fields = {"node": node.name, "error": type(node.failure).__name__, "reason": str(node.failure)}
            _log.error("no server could be started on a node", extra={"fields": fields})
            ray_cluster.end(node.handle)
        else:
            node.status, node.suspect = "running", False
            _log.info("a node serves", extra={"fields": {"node": node.name, "bundles": node.load.bundles}})
        async with self._changed:
            self._changed.notify_all()

    async def _look_at(self, node: Node) -> None:
        try:
            async with asyncio.timeout(self._limits.node_seconds):
                self._note(node, await self._answer(node.handle.look.remote()))
                node.suspect, node.sent = False, 0
        except Exception as error:  # whatever it is: nothing is to be expected of it
            if node.status != "running":
                return
            cause = _cause(error)
            fields: dict[str, object] = {"node": node.name, "connections": node.cut_off()}
            fields |= {"error": type(cause).__name__, "reason": str(cause).partition("\n")[0]}
            _log.error("a server is lost", extra={"fields": fields})
            ray_cluster.end(node.handle)
            node.suspect = True
            self._launch(node.machine)  # if the machine is there, with all that it had

    def _note(self, node: Node, seen: Seen) -> None:
        node.load = seen.load
        node.states = frozenset(state[:STATE_DIGITS] for state in seen.load.states)
        _repeat(node.name, seen.log)

    def _lose(self, node: Node) -> None:
        """The machine is gone, and what was prepared on it."""
        del self._nodes[node.machine.number]
        node.status = "lost"
        if node.starting is not None:
            node.starting.cancel()
        fields = {"node": node.name, "bundles": node.load.bundles, "connections": node.cut_off()}
        _log.error("a node is lost, and the bundles on it", extra={"fields": fields})

    async def _stop(self, node: Node) -> None:
        node.status = "stopping"
        try:
            _repeat(node.name, await self._answer(node.handle.stop.remote()))
        except Exception as error:
            fields = {"node": node.name, "error": type(error).__name__}
            _log.warning("a server did not stop in order", extra={"fields": fields})
        ray_cluster.end(node.handle)
        node.status, node.load = "asleep", Load(bundles=node.load.bundles)

    def _fit(self) -> None:
        """Another node, or one less, if that is called for."""
        now = time.monotonic()
        loads = {node.machine.number: node.load for node in self.running()}
        starting = sum(node.status == "starting" for node in self.nodes)
        if self._scale.more(loads.values(), starting, now):
            free = [machine for machine in self._machines.values() if self._is_free(machine, now)]
            if free:  # one that has served before has its bundles
                self._launch(max(free, key=lambda machine: machine.number in self._nodes))
        elif (number := self._scale.fewer(loads, now)) is not None:
            node = self._nodes[number]
            _log.info("a node is not needed for now", extra={"fields": {"node": node.name}})
            node.status = "stopping"
            node.starting = asyncio.create_task(self._stop(node))

    def _is_free(self, machine: Machine, now: float) -> bool:
        node = self._nodes.get(machine.number)
        if node is None or node.status == "asleep":
            return True
        return node.status == "failed" and now - node.failed_at >= self._limits.retry_seconds

    @staticmethod
    async def _answer(reference: Awaitable[T]) -> T:
        return await reference


def _cause(error: Exception) -> Exception:
    """Ray wraps what a method on a node raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, CometError) else error


def _repeat(node: str, log: bytes) -> None:
    """What a server said, here, with the name of its node."""
    lines = []
    for line in log.splitlines():
        try:
            entry = {**msgspec.json.decode(line, type=dict[str, Any]), "node": node}
        except (msgspec.DecodeError, UnicodeDecodeError):
            entry = {"event": line.decode(errors="replace"), "node": node}
        lines.append(msgspec.json.encode(entry) + b"\n")
    if lines:
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.flush()
