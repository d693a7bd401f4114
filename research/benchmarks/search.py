"""Private search over a few hundred sentences, and how much of a search in the clear it finds.

    python research/benchmarks/search.py SENTENCES [--rows 300] [--count 5] [--json FILE|-]

SENTENCES is a CSV file with a column `text`. The encoder is that of the bundled model with a head that averages its
rows: it was trained to tell good films from bad ones, so what it finds near is no measure of a search engine. What is
measured is the difference between the private vectors and those of the same model in the clear. The randomness is a
dealer's, which makes no difference to that.
`examples/private_search.py` does the search, against a server in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from comet_mpc import ServedModel
from comet_mpc.local.service import local_service
from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import tensor_shapes
from comet_mpc.models.heads import Head
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.offline.sources import DEALER

EXAMPLE = Path(__file__).parents[2] / "examples" / "private_search.py"


def encoder(directory: Path) -> Path:
    """The bundled model as one of embeddings."""
    bundled = Path(str(files("comet_mpc") / "data" / "demo_model"))
    config, tensors = load_checkpoint(bundled)
    plain = msgspec.structs.replace(config.encoder, labels=())
    head = Head(kind="embedding", pooling="mean", unit=True)
    config = msgspec.structs.replace(config, encoder=plain, head=head, pooler="none")
    kept = {name: tensors[name] for name in tensor_shapes(config)}
    save_checkpoint(directory, certify(config, kept), kept, tokenizer=(bundled / "tokenizer.json").read_bytes())
    return directory


def search(sentences: list[str], count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        checkpoint, file = encoder(Path(made) / "encoder"), Path(made) / "sentences.txt"
        file.write_text("\n".join(sentences) + "\n", "utf-8")
        begun = time.monotonic()
        with local_service(ServedModel.load(checkpoint), DEALER, batch=8) as (address, keys, directory):
            command = [sys.executable, str(EXAMPLE), address, str(file), sentences[0], "--count", str(count)]
            command += ["--keys", str(keys), "--cache", str(directory / "cache"), "--clear", str(checkpoint)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        *found, last = done.stdout.splitlines()
    return {
        "sentences": len(sentences),
        "source": DEALER.name,
        "count": count,
        "recall": float(last.split()[-3]),
        "nearest": [line.split(maxsplit=1)[1] for line in found],
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--json", default="-")
    arguments = parser.parse_args()
    with arguments.sentences.open(newline="", encoding="utf-8") as file:
        texts = list(dict.fromkeys(" ".join(row["text"].split()) for row in csv.DictReader(file)))
    step = max(1, len(texts) // arguments.rows)  # the files are sorted by what they are about
    found = search(texts[::step][: arguments.rows], arguments.count)
    command = f"python research/benchmarks/search.py {arguments.sentences.name} --rows {arguments.rows}"
    text = json.dumps({**found, "command": command, "data": arguments.sentences.name}, indent=2) + "\n"
    sys.stdout.write(text) if arguments.json == "-" else Path(arguments.json).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
