"""Classifies the rows of a CSV file privately, from Python.

    python examples/classify_csv.py server.example:7001 reviews.csv --column text --keys keys --out labelled.csv

The labelled file is the input with two more columns, `label` and `probability`. `comet query --csv` does the same, and
goes on after a crash; this is where to begin if a program of yours needs something else.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from comet_mpc import Client, CometError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="HOST:PORT")
    parser.add_argument("file", type=Path, help="a CSV file with a header row")
    parser.add_argument("--column", default="text", help="the column with the texts")
    parser.add_argument("--keys", type=Path, default=Path("keys"), help="authority.pem, client.pem, client.key")
    parser.add_argument("--cache", type=Path, help="downloads and prepared randomness; default: the user's cache")
    parser.add_argument("--out", type=Path, required=True, help="the labelled file")
    arguments = parser.parse_args()

    with arguments.file.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or arguments.column not in rows[0]:
        sys.exit(f"{arguments.file} has no rows with a column {arguments.column!r}")
    with Client(arguments.server, keys=arguments.keys, cache=arguments.cache) as client:
        answers = client.classify([row[arguments.column] for row in rows])
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0], "label", "probability"])
        writer.writeheader()
        for row, answer in zip(rows, answers, strict=True):
            writer.writerow({**row, "label": answer.label, "probability": f"{answer.probability:.4f}"})


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"classify_csv: {error}")
