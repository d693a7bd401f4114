"""A client that asks again and again, and writes down what it does, each before it does it: a program of its own.

    python noting_client.py ADDRESS KEYS NAME CACHE NOTES --text TEXT [--queries N] [--ready N] [--timeout SECONDS]

Notes are JSON lines: `named` is a bundle that the server is told of, `logits` an answer with the `seconds` that it took
since the question was first asked, `error` the class of an error, after which the same question is asked again. `at` is
the time of the note.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from comet_mpc.errors import CometError
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service import connection
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Run

__all__ = ["PROGRAM"]

PROGRAM = Path(__file__)
_PAUSE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("address", "keys", "name", "cache", "notes"):
        parser.add_argument(name)
    parser.add_argument("--text", required=True)
    parser.add_argument("--queries", type=int, default=0, help="0: without end")
    parser.add_argument("--ready", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=10.0)
    given = parser.parse_args()
    module: Any = connection
    say = module.say
    with open(given.notes, "a", buffering=1) as file:

        def note(**what: object) -> None:
            file.write(json.dumps({**what, "at": time.time()}) + "\n")

        def noted(channel: Channel, message: Any) -> None:
            if isinstance(message, Run):
                note(named=message.bundle_id)
            say(channel, message)

        module.say = noted
        options: dict[str, Any] = {"cache": given.cache, "ready": given.ready, "timeout": given.timeout}
        answered, begun = 0, time.monotonic()
        while not given.queries or answered < given.queries:
            try:
                with Client(given.address, identity=TlsIdentity.find(given.keys, given.name), **options) as client:
                    while not given.queries or answered < given.queries:
                        (found,) = client.classify([given.text])
                        note(logits=found.logits, seconds=round(time.monotonic() - begun, 3))
                        answered, begun = answered + 1, time.monotonic()
            except CometError as error:
                note(error=type(error).__name__, seconds=round(time.monotonic() - begun, 3))
                time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
