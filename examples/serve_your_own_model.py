"""Serves a checkpoint of your own, from Python instead of by `comet serve`.

    comet keys make keys --host server.example
    python examples/serve_your_own_model.py CHECKPOINT --listen 0.0.0.0:7001 --keys keys --state state

CHECKPOINT is a directory that `comet unify` or `comet finetune` wrote in the certified form
(docs/how-to/convert.md). Stop it with Ctrl-C or SIGTERM: running queries are finished first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from comet_mpc import CometError, PairSource, ServedModel, Server, ServiceLimits, TlsIdentity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--listen", default="127.0.0.1:7001", help="HOST:PORT; port 0 lets the system choose")
    parser.add_argument("--keys", type=Path, default=Path("keys"), help="authority.pem, server.pem, server.key")
    parser.add_argument("--state", type=Path, default=Path("state"), help="prepared randomness. Never copy it")
    parser.add_argument("--workers", type=int, default=2, help="connections that are served at a time")
    arguments = parser.parse_args()

    # Loading proves the certified ranges again from the weights. A checkpoint whose claims do not hold is refused.
    model = ServedModel.load(arguments.checkpoint)

    # The server prepares the randomness with each client, and nobody else takes part. `DealerSource(address)` is the
    # other source: faster, but privacy then depends on who runs the dealer.
    source = PairSource()
    for bucket in model.buckets():
        plan = model.plan(1, bucket, source)
        print(f"{bucket} tokens: {plan.online_bytes} bytes in {plan.rounds} rounds")

    host, _, port = arguments.listen.rpartition(":")
    server = Server(
        model,
        (host, int(port)),
        source,
        TlsIdentity.find(arguments.keys, "server"),
        arguments.state,
        workers=arguments.workers,
        limits=ServiceLimits(batch=4, ready=2),
    )
    server.serve_forever(lambda: print("serving at {}:{}".format(*server.address), flush=True))


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"serve_your_own_model: {error}")
