"""Plain texts to adopt models of others with: from banking77 and GLUE, as `comet adopt --data` reads them.

    python research/benchmarks/adoption_data.py OUT --banking banking77 --glue GLUE

questions.csv   questions of bank customers
pairs.csv       a query and a passage: half of them with their own passage, half with another one's
sentences.txt   sentences for a tagger of grammar, right and wrong ones (CoLA, MRPC)
texts.txt       questions and sentences of all these, for embeddings
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Sequence
from pathlib import Path

PAIRS, SENTENCES, TEXTS = 8000, 8000, 8000


def banking(directory: Path) -> list[tuple[str, str]]:
    """Question and intent."""
    with (directory / "train.csv").open(newline="") as file:
        return [(row["text"].strip(), row["category"]) for row in csv.DictReader(file)]


def glue(directory: Path, task: str) -> list[list[str]]:
    rows = [line.split("\t") for line in (directory / task / "train.tsv").read_text().splitlines()[1:]]
    return [row[:-1] for row in rows]


def pairs(questions: list[tuple[str, str]], directory: Path, chance: random.Random) -> list[tuple[str, str]]:
    """RTE's statements and MRPC's and STS-B's sentences with a passage, and two questions of one intent or of two."""
    own = [(query, passage) for passage, query in glue(directory, "RTE")]
    own += [(first, second) for task in ("MRPC", "STS-B") for first, second in glue(directory, task)]
    by_intent: dict[str, list[str]] = {}
    for text, intent in questions:
        by_intent.setdefault(intent, []).append(text)
    own += [(text, chance.choice(by_intent[intent])) for text, intent in questions]
    chance.shuffle(own)
    own = own[:PAIRS]
    strange = chance.sample([passage for _, passage in own], len(own))
    found = zip(own, strange, strict=True)
    return [(query, passage if chance.random() < 0.5 else other) for (query, passage), other in found]


def write_csv(path: Path, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--banking", type=Path, required=True, help="directory of banking77 with train.csv")
    parser.add_argument("--glue", type=Path, required=True, help="directory with the tasks of GLUE")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    chance, questions = random.Random(0), banking(given.banking)
    texts = [text for text, _ in questions]
    write_csv(given.out / "questions.csv", ("text",), [(text,) for text in texts])
    write_csv(given.out / "pairs.csv", ("query", "passage"), pairs(questions, given.glue, chance))
    sentences = [s for task in ("CoLA", "MRPC") for row in glue(given.glue, task) for s in row]
    all_tasks = ("MRPC", "RTE", "STS-B", "SST-2")
    texts += [s for task in all_tasks for row in glue(given.glue, task) for s in row]
    for name, lines, count in (("sentences", sentences, SENTENCES), ("texts", texts, TEXTS)):
        different = list(dict.fromkeys(" ".join(line.split()) for line in lines))
        taken = chance.sample(different, count)
        (given.out / f"{name}.txt").write_text("".join(f"{line}\n" for line in taken))


if __name__ == "__main__":
    main()
