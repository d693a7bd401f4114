"""Texts by real parties over TLS beside those of the twin: the same tokens, and the bytes and rounds that are planned.

    python research/benchmarks/conversations.py CHECKPOINT [--source dealer] [--texts 20] [--tokens 64]
        [--drafts 4 [--draft-texts WORK]]

CHECKPOINT is what `comet adopt` makes of a decoder. Each text is kept in the record, so the same command goes on; in
the end it prints a summary. Prompts are the beginnings of stories. Greedy. WORK is where `drafts.py` keeps the texts
that are guessed by; without it, drafts are guessed by the text so far. Randomness is prepared before each text. Seconds
are of this machine, medians over tokens and texts, and say little beside other work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from comet_mpc.local.service import local_service
from comet_mpc.models.writing.drafts import Drafter, KnownTexts
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.sources import find_source
from comet_mpc.service.client import Client
from comet_mpc.service.writing.client import Token

HOME = Path(__file__).parent / "results" / "writing"
NAMES = ("Lily", "Tom", "Mia", "Ben", "Sue", "Max", "Anna", "Sam", "Lucy", "Tim")
BEGINNINGS = (
    "Once upon a time, there was a child called {}. One day, {} went",
    "{} and a small dog lived near a big forest. In the morning, {} saw",
)


def prompts(count: int) -> list[str]:
    return [BEGINNINGS[i // len(NAMES) % 2].format(*[NAMES[i % len(NAMES)]] * 2) for i in range(count)]


def cpu_seconds() -> float:
    """Of this process and all that it has started."""
    parents, used = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process], used[process] = int(fields[1]), sum(map(int, fields[11:15]))
    own, size = {os.getpid()}, 0
    while size < len(own):
        size = len(own)
        own |= {process for process, parent in parents.items() if parent in own}
    return sum(used[process] for process in own) / os.sysconf("SC_CLK_TCK")


def prepared(client: Client, positions: int) -> dict[str, float]:
    """What it takes to prepare a conversation of so many positions, by both parties together."""
    start, cpu = time.monotonic(), cpu_seconds()
    client.prepare(1, bucket=positions)
    return {
        "positions": positions,
        "prepare_seconds": round(time.monotonic() - start, 2),
        "prepare_cpu_seconds": round(cpu_seconds() - cpu, 2),
    }


def measured(
    client: Client, model: Any, source: Any, prompt: str, tokens: int, drafts: int, drafter: Drafter | None
) -> dict[str, Any]:
    """One text by the parties, and what it should be."""
    size = len(model.prompt(prompt))
    spare = tokens // 2 if drafts else 0
    positions = model.fitting(min(model.longest, size + tokens - 1 + spare))
    known = {"prompt": prompt, "prompt_tokens": size, **prepared(client, positions)}
    found = list(client.generate(prompt, tokens=tokens, drafts=drafts, drafter=drafter))
    expected = [*written_by_twin(model, prompt, tokens)]
    same = [one.id == other for one, other in zip(found, expected, strict=False)]
    runs = [one for one in found if one.rounds]
    known |= {"tokens": len(found), "same": sum(same), "first_other": same.index(False) if False in same else None}
    known |= {"rounds": sum(one.rounds for one in runs), "runs": len(runs), "offline_bytes": found[0].offline_bytes}
    return known | _of_tokens(found, drafts) | ({} if drafts else _planned(model, source, found, positions))


def _of_tokens(found: list[Token], drafts: int) -> dict[str, Any]:
    """Of those after the first, whose run is the prompt's."""
    rest = found[1:]
    return {
        "token_bytes": round(sum(one.online_bytes for one in rest) / max(1, len(rest))),
        "token_rounds": round(sum(one.rounds for one in rest) / max(1, len(rest)), 1),
        "token_seconds": round(sum(one.seconds for one in rest) / max(1, len(rest)), 4)
        if drafts
        else round(median(one.seconds for one in rest), 4),
        "prompt_seconds": round(found[0].seconds, 3),
    }


def _planned(model: Any, source: Any, found: list[Token], positions: int) -> dict[str, Any]:
    size, plan = found[0].prompt_tokens, model.conversation(positions, source)
    runs = [plan.window(0, size), *(plan.window(at, at + 1) for at in range(size, size + len(found) - 1))]
    sent = [(one.online_bytes, one.rounds) for one in found]
    return {"as_planned": sent == [(run.online_bytes, run.rounds) for run in runs]}


def summary(texts: list[dict[str, Any]]) -> dict[str, Any]:
    """The same tokens are counted while the texts are the same: after another token, another text goes on."""
    others = [one["first_other"] for one in texts if one["first_other"] is not None]
    compared = sum(one["tokens"] for one in texts if one["first_other"] is None) + sum(place + 1 for place in others)
    return {
        "texts": len(texts),
        "texts that are the same": len(texts) - len(others),
        "tokens": compared,
        "same, per cent": round(100.0 * (1.0 - len(others) / compared), 2),
        "as planned": all(one.get("as_planned", True) for one in texts),
        "bytes a token": round(median(one["token_bytes"] for one in texts)),
        "rounds a token": round(sum(one["token_rounds"] for one in texts) / len(texts), 1),
        "seconds a token": round(median(one["token_seconds"] for one in texts), 4),
        "seconds a token, fastest text": min(one["token_seconds"] for one in texts),
        "offline bytes a position": round(median(one["offline_bytes"] / one["positions"] for one in texts)),
        "offline CPU seconds a position": round(
            median(one["prepare_cpu_seconds"] / one["positions"] for one in texts), 3
        ),
    }


def _kept(work: Path) -> list[list[int]]:
    return [ids for path in sorted(work.glob("texts-*.npy")) for ids in np.load(path).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--source", default="dealer")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--draft-texts", type=Path, help="directory of texts to guess by")
    parser.add_argument("--name", default="conversations", help="of the record")
    given = parser.parse_args()
    source, model = find_source(given.source), load_decoder(given.checkpoint)
    drafter = given.draft_texts and KnownTexts(_kept(given.draft_texts))
    path = HOME / f"{given.name}-{given.source}{'-drafts' if given.drafts else ''}.json"
    record: dict[str, Any] = {
        "record": "conversations", "source": given.source, "tokens": given.tokens, "drafts": given.drafts,
        "fingerprint": model.fingerprint, "texts": [],
    }  # fmt: skip
    if path.exists():
        found = json.loads(path.read_text())
        if all(found.get(name) == record[name] for name in ("tokens", "drafts", "fingerprint")):
            record = found
    with (
        local_service(model, source) as (address, keys, directory),
        Client(address, keys=keys, cache=directory / "cache", ready=0) as client,
    ):
        for prompt in prompts(given.texts)[len(record["texts"]) :]:
            record["texts"].append(measured(client, model, source, prompt, given.tokens, given.drafts, drafter))
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(json.dumps(record["texts"][-1]), flush=True)
    record["summary"] = summary(record["texts"])
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
