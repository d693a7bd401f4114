"""How many tokens a run gives with drafts, on stories: guesses by the text so far, and by other texts of the model's.

    python research/benchmarks/drafts.py MODEL CHECKPOINT WORK [--texts 400] [--tokens 64] [--record FILE]

MODEL is a decoder's directory, CHECKPOINT what `comet adopt` made of it; texts are kept in WORK. What is guessed are
the original's greedy texts after the beginnings of `conversations.py`. A run with drafts has the rounds of a token, and
accepted guesses do not depend on the protocol: so rounds a token follow exactly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from conversations import prompts

from comet_mpc.models.streams.reading import read_decoder
from comet_mpc.models.writing.drafts import Drafter, KnownTexts, RepeatedWords, verified
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import Shown
from comet_mpc.train.decoders.original import Original
from comet_mpc.train.decoders.texts import written

_LENGTH, _SEED, _PROMPTS, _POSITIONS = 200, 1, 20, 96
_DRAFTS = (1, 2, 4, 6)


@torch.no_grad()
def greedy(original: Original, prompt: list[int], tokens: int) -> list[int]:
    ids = [*prompt]
    for _ in range(tokens):
        ids.append(int(original.logits(original.states(torch.tensor([ids]))[:, -1]).argmax()))
    return ids


def tokens_a_run(ids: list[int], size: int, drafter: Drafter, most: int) -> tuple[int, int]:
    """Tokens and runs of a text after a prompt of so many."""
    done, runs = size + 1, 1
    while done < len(ids):
        guesses = [*drafter.draft(ids[:done], min(most, len(ids) - done - 1))]
        rows: Any = range(len(guesses) + 1)
        done += len(verified(guesses, rows, ids[:done], lambda _, text: ids[len(text)]))
        runs += 1
    return len(ids) - size, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "checkpoint", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    original, model = Original(*read_decoder(given.model)), load_decoder(given.checkpoint)
    with Shown().stage("writing texts to guess by: texts") as tick:
        begin = min(model.ends)
        known = written(original, given.work, given.texts, _LENGTH, begin=begin, seed=_SEED, tick=tick)
    sizes = [len(model.prompt(prompt)) for prompt in prompts(_PROMPTS)]
    texts = [greedy(original, model.prompt(prompt), given.tokens) for prompt in prompts(_PROMPTS)]
    rounds = {
        name: model.conversation(_POSITIONS, find_source(name)).window(40, 41).rounds for name in ("dealer", "pair")
    }
    record: dict[str, Any] = {"record": "drafts", "model": given.model.name, "texts": given.texts, "rounds": rounds}
    for name, make in (("the text so far", RepeatedWords), ("other texts", lambda: KnownTexts(known.tolist()))):
        shared = make()
        for most in _DRAFTS:
            counts = [tokens_a_run(ids, size, shared, most) for ids, size in zip(texts, sizes, strict=True)]
            each = sum(count for count, _ in counts) / sum(runs for _, runs in counts)
            found = {"tokens a run": round(each, 3)} | {own: round(each_run / each) for own, each_run in rounds.items()}
            record[f"{name}, {most} drafts"] = found
    text = json.dumps(record, indent=1)
    print(text)
    if given.record is not None:
        given.record.write_text(text + "\n")


if __name__ == "__main__":
    main()
