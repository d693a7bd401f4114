"""Reads the plan of a model: where its bytes and rounds go, and how long they take on a network.

    python examples/read_a_plan.py [CHECKPOINT] --tokens 32 --network 200mbit/10ms

Without a checkpoint it plans the bundled model. A plan needs shapes only: no text, no peer, no randomness.
`comet plan` prints more.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path

from comet_mpc import CLIENT, SERVER, CometError, DealerSource, Network, PairSource, ServedModel

BUNDLED = Path(str(files("comet_mpc") / "data" / "demo_model"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=BUNDLED)
    parser.add_argument("--tokens", type=int, default=32, help="tokens that a text is padded to")
    parser.add_argument("--batch", type=int, default=1, help="texts at once")
    parser.add_argument("--source", choices=("pair", "dealer"), default="pair", help="who prepares the randomness")
    parser.add_argument("--network", default="200mbit/10ms", help="RATE/ROUND-TRIP")
    arguments = parser.parse_args()

    # Of several ways to the same values, the plan takes those that cost the least: by this source, on this network.
    source = DealerSource() if arguments.source == "dealer" else PairSource()
    network = Network.parse(arguments.network)
    plan = ServedModel.load(arguments.checkpoint, network=network).plan(arguments.batch, arguments.tokens, source)

    # Every round of the schedule says which part of the program it belongs to, and what each party sends in it.
    # A part is a path, such as "layer 1/attention"; here all layers are added up.
    rounds: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for entry in plan.schedule:
        part = entry.part.split("/")[-1]
        rounds[part] += 1
        sent[part] += entry.from_client + entry.from_server

    print(f"{'part':20} {'rounds':>8} {'bytes':>12}")
    for part, count in sent.most_common():
        print(f"{part:20} {rounds[part]:8} {count:12}")
    print(f"{'in all':20} {plan.rounds:8} {plan.online_bytes:12}")
    print()
    print(f"the client sends {plan.sent(CLIENT)} bytes, the server {plan.sent(SERVER)}")
    print(f"{len(plan.correlations)} correlations, digest {plan.digest[:16]}")
    print(f"on {network}: {network.seconds(plan):.2f} s, without the computing")


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"read_a_plan: {error}")
