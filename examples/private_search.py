"""Searches sentences by meaning with an encoder that a server holds. It sees neither the sentences nor the question.

    python examples/private_search.py server.example:7001 sentences.txt "has my card been sent?" --keys keys

sentences.txt has a sentence in every line. All of them are embedded, then the question, and the nearest are printed.
Keep the vectors if you search again: only the question is new then. Whoever has the model as well, such as the server's
operator, can see how much of a search in the clear is kept: with `--clear CHECKPOINT`, every sentence is also a
question, and what is nearest to it by private vectors is compared with what is nearest by the model in the clear.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from comet_mpc import CometError, PrivateEncoder, ServedModel

Array = npt.NDArray[np.float32]


def in_the_clear(checkpoint: Path, sentences: list[str]) -> Array:
    """The same model's vectors, by ordinary arithmetic."""
    model = ServedModel.load(checkpoint)
    return np.array([model.plain_logits(model.encode([sentence]))[0] for sentence in sentences], np.float32)


def nearest(similarity: Array, count: int) -> npt.NDArray[np.int64]:
    """Of every row, the columns of the largest numbers, best first."""
    return np.argsort(-similarity, axis=1, kind="stable")[:, :count]


def recall(private: Array, clear: Array, count: int) -> float:
    """Of the `count` sentences nearest to each one in the clear, the part that the private vectors find."""
    found = []
    for vectors in (private, clear):
        similarity = PrivateEncoder.similarity(vectors, vectors)
        np.fill_diagonal(similarity, -np.inf)  # itself
        found.append(nearest(similarity, count))
    return float(np.mean([len({*ours} & {*theirs}) / count for ours, theirs in zip(*found, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="HOST:PORT of a server with a model of embeddings")
    parser.add_argument("file", type=Path, help="a sentence in every line")
    parser.add_argument("question")
    parser.add_argument("--count", type=int, default=5, help="sentences to find")
    parser.add_argument("--keys", type=Path, default=Path("keys"), help="authority.pem, client.pem, client.key")
    parser.add_argument("--cache", type=Path, help="downloads and prepared randomness; default: the user's cache")
    parser.add_argument("--clear", type=Path, help="the server's checkpoint, to compare with")
    arguments = parser.parse_args()

    sentences = [line.strip() for line in arguments.file.read_text("utf-8").splitlines() if line.strip()]
    count = min(arguments.count, len(sentences) - 1)
    if count < 1:
        sys.exit(f"{arguments.file} has too few sentences to search in")
    with PrivateEncoder(arguments.server, keys=arguments.keys, cache=arguments.cache) as encoder:
        vectors = encoder.encode(sentences, show_progress_bar=True)
        question = encoder.encode([arguments.question])
    similarity = encoder.similarity(question, vectors)
    for place in nearest(similarity, count)[0]:
        print(f"{similarity[0, place]:.3f}  {sentences[place]}")
    if arguments.clear is not None:
        share = recall(vectors, in_the_clear(arguments.clear, sentences), count)
        print(f"of the {count} nearest of {len(sentences)} sentences in the clear, {share:.3f} are found")


if __name__ == "__main__":
    try:
        main()
    except CometError as error:
        sys.exit(f"private_search: {error}")
