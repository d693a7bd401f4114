"""The connection to a Ray cluster: its nodes, and classes that run on them. Ray reports to nobody."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from comet_mpc.errors import ConfigurationError


@dataclass(frozen=True)
class Machine:
    """A node of the cluster, as Ray sees it."""

    number: str
    address: str
    cpus: float


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """address: HOST:PORT of the cluster's head, `auto` for the one on this machine, or `local` for a new one here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, namespace="comet", **options)
    except Exception as error:  # many kinds: nobody there, another version, a wrong address
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"no Ray cluster can be used at {address}: {reason}; start one (`ray start --head`), or correct --cluster"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def machines() -> list[Machine]:
    """Those that are alive and have a core."""
    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"]["CPU"])
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]


def start_on(kind: type, machine: Machine, cpus: float, *arguments: Any) -> Any:
    """An object of that class on that machine and on no other. It ends with this process."""
    strategy = NodeAffinitySchedulingStrategy(machine.number, soft=False)
    options = {"num_cpus": min(cpus, machine.cpus), "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(kind).options(**options, scheduling_strategy=strategy).remote(*arguments)


def spread(kind: type, *arguments: Any) -> Any:
    """An object of that class on whichever machine has the fewest."""
    options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(kind).options(**options, scheduling_strategy="SPREAD").remote(*arguments)


def end(handle: Any) -> None:
    """Ends an object, if it is still there."""
    with contextlib.suppress(Exception):
        ray.kill(handle)
