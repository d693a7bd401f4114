"""Texts by real parties over TLS beside those of the twin: the same tokens, and the bytes and rounds that are planned.

    python research/benchmarks/conversations.py CHECKPOINT [--source dealer] [--texts 20] [--tokens 64]

CHECKPOINT is what `comet adopt` makes of a decoder. Each text is kept in the record, so the same command goes on.
Prompts are the beginnings of stories. Greedy. Seconds are of this machine, and say little beside other work.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from comet_mpc.local.service import local_service
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.sources import find_source
from comet_mpc.service.client import Client

HOME = Path(__file__).parent / "results" / "writing"
NAMES = ("Lily", "Tom", "Mia", "Ben", "Sue", "Max", "Anna", "Sam", "Lucy", "Tim")
BEGINNINGS = (
    "Once upon a time, there was a child called {}. One day, {} went",
    "{} and a small dog lived near a big forest. In the morning, {} saw",
)


def prompts(count: int) -> list[str]:
    return [BEGINNINGS[i // len(NAMES) % 2].format(*[NAMES[i % len(NAMES)]] * 2) for i in range(count)]


def measured(client: Client, model: Any, source: Any, prompt: str, tokens: int) -> dict[str, Any]:
    """One text by the parties, and what it should be."""
    found = list(client.generate(prompt, tokens=tokens))
    expected = [*written_by_twin(model, prompt, tokens)]
    size = found[0].prompt_tokens
    plan = model.conversation(model.fitting(size + tokens - 1), source)
    runs = [plan.window(0, size), *(plan.window(at, at + 1) for at in range(size, size + len(found) - 1))]
    same = [one.id == other for one, other in zip(found, expected, strict=False)]
    seconds = sorted(one.seconds for one in found[1:])
    return {
        "prompt": prompt, "prompt_tokens": size, "tokens": len(found), "same": sum(same),
        "first_other": same.index(False) if False in same else None,
        "as_planned": [(one.online_bytes, one.rounds) for one in found]
        == [(run.online_bytes, run.rounds) for run in runs],
        "token_bytes": round(sum(one.online_bytes for one in found[1:]) / max(1, len(found) - 1)),
        "token_rounds": found[-1].rounds, "offline_bytes": found[0].offline_bytes,
        "median_seconds": seconds[len(seconds) // 2] if seconds else 0.0,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--source", default="dealer")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    source, model = find_source(given.source), load_decoder(given.checkpoint)
    path = HOME / f"conversations-{given.source}.json"
    record: dict[str, Any] = {"record": "conversations", "source": given.source, "tokens": given.tokens}
    record |= {"fingerprint": model.fingerprint, "texts": []}
    if path.exists():
        found = json.loads(path.read_text())
        if all(found[name] == record[name] for name in ("tokens", "fingerprint")):
            record = found
    with (
        local_service(model, source) as (address, keys, directory),
        Client(address, keys=keys, cache=directory / "cache", ready=0) as client,
    ):
        for prompt in prompts(given.texts)[len(record["texts"]) :]:
            record["texts"].append(measured(client, model, source, prompt, given.tokens))
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(json.dumps(record["texts"][-1]))


if __name__ == "__main__":
    main()
