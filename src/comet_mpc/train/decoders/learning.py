"""Brings a fitted decoder still nearer to its original: the matrices that least squares chose learn from the original's
probabilities of next tokens.

Least squares towards the original's sums weigh every direction of the stream alike. What decides the next token counts
for more here. A few passes over few texts are enough, at a small rate: more would learn the texts.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comet_mpc.files import atomic_write
from comet_mpc.progress import Tick, silent
from comet_mpc.train.decoders.fitting import Fitted, Fitting

ROWS = 8
"""Texts of an update."""
_RATE = 1.5e-5
_WARM_UP = 10
_KEPT_EVERY = 10


def learn(
    fitting: Fitting, fitted: Fitted, ids: Tensor, updates: int, tick: Tick = silent, kept: Path | None = None
) -> Fitted:
    """Changes the fitted matrices. ids: texts, (texts, tokens)

    kept: a file for what was learnt so far, which is not learnt again
    """
    student, original = fitting.student, fitting.original
    student.place(fitted.layers)
    names = [f"layers.{i}.{part}.weight" for i in range(fitting.shape.layers) for part in ("attention_output", "down")]
    parts = (ids, *(student.tensors[name] for name in names))
    run = hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest()
    for name in names:
        student.tensors[name] = student.tensors[name].detach().clone().requires_grad_(True)
    optimiser = torch.optim.Adam([student.tensors[name] for name in names], lr=_RATE, betas=(0.9, 0.99))
    done = _resumed(kept, run, fitting, names, optimiser)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    tick(done, updates)
    while done < updates:
        for group in optimiser.param_groups:
            group["lr"] = _RATE * 0.5 * (1.0 + math.cos(math.pi * done / updates)) * min(1.0, (done + 1) / _WARM_UP)
        rows = ids[order[torch.arange(done * ROWS, (done + 1) * ROWS) % len(ids)]]
        with torch.no_grad():
            wanted = torch.log_softmax(original.logits(original.states(rows)), -1)
        given = torch.log_softmax(original.logits(student.served_states(rows)), -1)
        loss = (wanted.exp() * (wanted - given)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        done += 1
        if kept is not None and done % _KEPT_EVERY == 0:
            with atomic_write(kept) as file:
                matrices = {name: student.tensors[name].detach() for name in names}
                state = {"run": run, "done": done, "matrices": matrices, "adam": optimiser.state_dict()}
                torch.save(state, file)
        tick(done, updates)
    for name in names:
        student.tensors[name] = student.tensors[name].detach()
    return Fitted(fitted.layers, fitting.looked_at(ids))


def _resumed(kept: Path | None, run: str, fitting: Fitting, names: list[str], optimiser: torch.optim.Adam) -> int:
    """How many updates there were already, to these very matrices by these texts."""
    if kept is None or not kept.exists():
        return 0
    try:
        found: dict[str, Any] = torch.load(kept, weights_only=True)
    except Exception:  # damaged in any way: all is learnt again
        return 0
    if found.get("run") != run:
        return 0
    with torch.no_grad():
        for name in names:
            fitting.student.tensors[name].copy_(found["matrices"][name])
    optimiser.load_state_dict(found["adam"])
    return int(found["done"])
