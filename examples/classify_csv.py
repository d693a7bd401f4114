"""Classifies the rows of a CSV file privately, against a running server.

    python examples/classify_csv.py server.example:7001 reviews.csv --column text --keys keys --out labelled.csv

The server learns how many rows there are and how long each is, to the next bucket (16, 32, 64, … tokens). It learns
neither the texts nor the labels. The labelled file is the input with two more columns, `label` and `probability`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from comet_mpc import Client, CometError

GROUP = 16  # rows that are sent together: texts of one size share their rounds


def labelled(client: Client, rows: list[dict[str, str]], column: str) -> Iterator[dict[str, str]]:
    """The rows with their answers. Rows are classified group by group, so a long file shows progress."""
    for start in range(0, len(rows), GROUP):
        group = rows[start : start + GROUP]
        for row, answer in zip(group, client.classify([row[column] for row in group]), strict=True):
            yield {**row, "label": answer.label, "probability": f"{answer.probability:.4f}"}
        print(f"{start + len(group)} of {len(rows)} rows", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="HOST:PORT")
    parser.add_argument("file", type=Path, help="a CSV file with a header row")
    parser.add_argument("--column", default="text", help="the column with the texts")
    parser.add_argument("--keys", type=Path, default=Path("keys"), help="authority.pem, client.pem, client.key")
    parser.add_argument("--cache", type=Path, help="downloads and prepared randomness; default: the user's cache")
    parser.add_argument("--out", type=Path, help="the labelled file; default: standard output")
    arguments = parser.parse_args()

    with arguments.file.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or arguments.column not in rows[0]:
        sys.exit(f"{arguments.file} has no rows with a column {arguments.column!r}")

    out = arguments.out.open("w", newline="", encoding="utf-8") if arguments.out else sys.stdout
    writer = csv.DictWriter(out, [*rows[0], "label", "probability"])
    with out, Client(arguments.server, keys=arguments.keys, cache=arguments.cache) as client:
        writer.writeheader()
        writer.writerows(labelled(client, rows, arguments.column))


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"classify_csv: {error}")
