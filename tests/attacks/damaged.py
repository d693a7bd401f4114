"""Damaged files of every kind: is an answer ever wrong, is an error ever not one of ours, does anything hang?

    PYTHONPATH=tests python tests/attacks/damaged.py --files 1000 --json FILE

One file is damaged at a time (bits flipped, cut, filled with zeros or rubbish, emptied), and what depends on it is
used: a model is loaded and asked, keys make TLS contexts, a query runs in this process with a damaged bundle, cache or
secret. It ends as right (the damage did not matter, or was mended), refused (an error of ours), wrong, or a traceback.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.errors import CometError
from comet_mpc.models.served import ServedModel
from comet_mpc.net.authority import issue, make_test_set, revoke
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.sources import PAIR
from comet_mpc.service.deployment import Deployment
from support.clients import LocalClient, RecordingService, local_service
from support.processes import TWIN_BOUND
from support.shared_transfers import share_base_transfers
from support.siege import TEXT, Outcome, bounded, main
from support.toy_model import TINY, make_checkpoint, twin_logits

_PATIENCE = 120.0


def spoil(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    match dice.choice(["flip", "flip", "flip", "cut", "zeros", "rubbish", "empty", "longer"]):
        case "flip":
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case "cut":
            del data[dice.randrange(len(data)) :]
        case "zeros":
            start = dice.randrange(len(data))
            data[start : start + 64] = bytes(len(data[start : start + 64]))
        case "rubbish":
            start = dice.randrange(len(data))
            data[start : start + 64] = dice.randbytes(len(data[start : start + 64]))
        case "empty":
            data.clear()
        case _:
            data += dice.randbytes(dice.randrange(1, 100))
    path.write_bytes(data)


class Ground:
    """Whole files of every kind, to be copied and damaged."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self._directory, self._dice, self._numbers = directory, dice, itertools.count()
        self._checkpoint = make_checkpoint(directory / "model", **TINY)
        self._model = ServedModel.load(self._checkpoint)
        self._expected = twin_logits(self._model, self._model.encode([TEXT]))[0]
        self._keys = directory / "keys"
        self._identity = make_test_set(self._keys)["client"]
        issue(self._keys, "gone", "client")
        revoke(self._keys, "gone")
        self._dealt = RecordingService(self._model, self._identity, directory / "dealt")
        self._set_up = LocalClient(self._dealt, self._identity, directory / "set-up")
        assert not isinstance(self._set_up.try_to_classify(TEXT), CometError)
        self._pair = local_service(self._model, PAIR, self._identity, directory / "pair")

    def _fresh(self) -> Path:
        return self._directory / f"trial-{next(self._numbers)}"

    def _judged(self, client: LocalClient) -> str:
        found = client.try_to_classify(TEXT)
        if isinstance(found, CometError):
            return "refused"
        return "right" if np.max(np.abs(np.array(found[0].logits) - self._expected)) < TWIN_BOUND else "wrong"

    def model(self, *names: str) -> str:
        copy = shutil.copytree(self._checkpoint, self._fresh())
        spoil(copy / self._dice.choice(names), self._dice)
        model = ServedModel.load(copy)
        found = twin_logits(model, model.encode([TEXT]))[0]
        return "right" if np.array_equal(found, self._expected) else "wrong"

    def keys(self) -> str:
        copy = shutil.copytree(self._keys, self._fresh())
        name = self._dice.choice(["client", "server"])
        spoil(copy / self._dice.choice([f"{name}.pem", f"{name}.key", "authority.pem", "revoked.pem"]), self._dice)
        identity = TlsIdentity.find(copy, name)
        identity.server_context(require_client=True)
        identity.client_context()
        return "right"

    def bundle(self, side: str, service: Deployment) -> str:
        """Damaged at one side after it was prepared; the query takes another one."""
        client = LocalClient(service, self._identity, self._fresh())
        if isinstance(service, RecordingService):
            client.adopt(self._set_up, service)
        made = client.try_to_prepare()
        assert isinstance(made, str), made
        assert client.store is not None
        store = client.store if side == "client" else service.store
        spoil(store.directory / f"{made}.bundle", self._dice)
        again = LocalClient(service, self._identity, client.cache)
        if isinstance(service, RecordingService):
            again.adopt(self._set_up, service)
        return self._judged(again)

    def cache(self) -> str:
        copy = shutil.copytree(self._directory / "set-up", self._fresh())
        spoil(self._dice.choice(sorted(copy.glob("*/package")) + sorted(copy.glob("*/weights"))), self._dice)
        return self._judged(LocalClient(self._dealt, self._identity, copy))

    def secret(self) -> str:
        state = self._fresh()
        RecordingService(self._model, self._identity, state)
        spoil(state / "weights.secret", self._dice)
        service = RecordingService(self._model, self._identity, state)
        return self._judged(LocalClient(service, self._identity, self._fresh()))

    def kinds(self) -> dict[str, tuple[int, Callable[[], str]]]:
        """What can be damaged, and how often of a hundred."""
        return {
            "checkpoint": (30, lambda: self.model("config.json", "model.safetensors")),
            "tokenizer": (15, lambda: self.model("tokenizer.json")),
            "keys": (25, self.keys),
            "bundle of a dealer, server": (8, lambda: self.bundle("server", self._dealt)),
            "bundle of a dealer, client": (6, lambda: self.bundle("client", self._dealt)),
            "bundle of a pair, server": (3, lambda: self.bundle("server", self._pair)),
            "bundle of a pair, client": (3, lambda: self.bundle("client", self._pair)),
            "cache": (6, self.cache),
            "secret": (4, self.secret),
        }


def damaged(files: int, seed: int) -> Outcome:
    """One damaged file after another, of every kind."""
    dice, counts = random.Random(seed), dict[str, dict[str, int]]()
    strange: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="comet-") as name, pytest.MonkeyPatch.context() as patch:
        share_base_transfers(patch)
        ground = Ground(Path(name), dice)

        def outcome(trial: Callable[[], str]) -> Outcome:
            try:
                return {"end": trial()}
            except CometError:
                return {"end": "refused"}
            except Exception as error:
                strange[f"{type(error).__name__}: {error}"[:200]] += 1
                return {"end": "traceback"}

        for kind, (share, trial) in ground.kinds().items():
            ends: Counter[str] = Counter()
            for _ in range(max(1, files * share // 100)):
                ends[str(bounded(lambda trial=trial: outcome(trial), _PATIENCE).get("end", "hang"))] += 1  # type: ignore[misc]
                for left in Path(name).glob("trial-*"):
                    shutil.rmtree(left, ignore_errors=True)
            counts[kind] = dict(ends)
    total = Counter[str]()
    for one in counts.values():
        total.update(one)
    return {"ends": {end: total[end] for end in ("right", "refused", "wrong", "traceback", "hang")}, "kinds": counts,
            "strange": dict(strange)}  # fmt: skip


if __name__ == "__main__":
    main(damaged, files=1000, seed=1)
