"""A server to test against, as a process of its own with short limits."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROCESS = """
import json, sys
from pathlib import Path
from comet_mpc.models.served import ServedModel
from comet_mpc.errors import CometError
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service.metrics import log_as_json
from comet_mpc.service.server import Server
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.offline.sources import DealerSource, PairSource
options = json.loads(sys.argv[1])
keys = Path(options.pop("keys"))
limits = ServiceLimits(**options.pop("limits"))
dealer = options.pop("dealer")
log_as_json()
server = Server(
    ServedModel.load(Path(options.pop("model"))), ("127.0.0.1", options.pop("port")),
    PairSource() if dealer is None else DealerSource(("127.0.0.1", dealer)),
    TlsIdentity.find(keys, "server"), Path(options.pop("state")),
    metrics=("127.0.0.1", 0), limits=limits, **options,
)
server.serve_forever(lambda: print(server.address[1], server.metrics_address[1], flush=True))
"""


class ServerProcess:
    """The process, where it listens, and its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        if not ports:
            process.wait(20)
            self._reader.join(5)
            raise AssertionError("the server did not start: " + "".join(self.log)[-2000:])
        self.address = f"127.0.0.1:{ports[0]}"
        self.port = int(ports[0])
        self.metrics = f"http://127.0.0.1:{ports[1]}/metrics"

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def events(self) -> list[dict[str, Any]]:
        """Every line of the log is a JSON object."""
        return [json.loads(line) for line in list(self.log)]


@contextlib.contextmanager
def server_process(
    keys: Path,
    model: Path,
    dealer: int | None,
    state: Path,
    *,
    port: int = 0,
    limits: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[ServerProcess]:
    options = {"keys": str(keys), "model": str(model), "dealer": dealer, "state": str(state), "port": port}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS, json.dumps({**options, "limits": limits or {}, **more})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield ServerProcess(process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
