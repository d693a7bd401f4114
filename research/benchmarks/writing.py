"""How near a decoder stays to its original when its functions become polynomials: least squares, no training.

    python research/benchmarks/writing.py MODEL [--texts 100] [--held-out 100] [--tokens 192] [--record FILE]

MODEL is a directory with a Llama or GPT-2 checkpoint. The model writes all texts itself: those to fit to with seed 1,
and those to measure with with seed 1002. Writes perplexity and the share of greedy next tokens that agree, and what a
token costs by either source (`plan`), as a record.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from comet_mpc.engine import Session
from comet_mpc.engine.windows import Window, WindowPlan
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import (
    DecoderRules,
    DecoderShape,
    decode,
    input_rows,
    public_weights,
    tell,
    top_of,
)
from comet_mpc.models.streams.folding import LEAST_MEAN, Folding
from comet_mpc.models.streams.reading import read_decoder
from comet_mpc.offline.sources import find_source
from comet_mpc.train.decoders.fitting import Fitting
from comet_mpc.train.decoders.original import Original

_AT_ONCE = 20
_POSITIONS = 80
"""Of a conversation that is planned: 16 of a prompt and 64 more."""


def compared(original: Original, fitting: Fitting, layers: Any, ids: torch.Tensor) -> dict[str, float]:
    """Perplexities, and the share of positions whose likeliest next token is the original's."""
    off, same, count = [0.0, 0.0], 0, 0
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        with torch.no_grad():
            logits = [original.logits(fitting.states(part, own)) for own in (None, layers)]
        for which, each in enumerate(logits):
            likely = torch.log_softmax(each[:, :-1], -1).gather(-1, part[:, 1:, None])
            off[which] -= float(likely.sum())
        same += int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
        count += part.numel()
    predicted = len(ids) * (ids.shape[1] - 1)
    exact, fitted = (math.exp(each / predicted) for each in off)
    return {"original": exact, "fitted": fitted, "more": fitted / exact - 1.0, "agree": same / count}


def planned(shape: DecoderShape, rules: DecoderRules, name: str) -> dict[str, float]:
    """What a token in the middle of a conversation costs by a source, and its preparation."""
    source, weights = find_source(name), public_weights(shape)

    def run(session: Session, window: Window) -> None:
        rows = input_rows(session, None, window, shape, top_of(shape, rules))
        tell(session, decode(session, rows, window, shape, rules, weights), 1 if window.first == 0 else window.size)

    plan = WindowPlan(run, _POSITIONS, abilities=source.abilities)
    token = plan.window(_POSITIONS // 2, _POSITIONS // 2 + 1)
    offline = source.offline_traffic(plan.whole.correlations)
    return {
        "rounds": token.rounds,
        "online": token.online_bytes,
        "offline": (offline.sent + offline.received) / _POSITIONS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--begin", type=int, default=1, help="the token that every text begins with")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape, tensors = read_decoder(arguments.model)
    original = Original(shape, tensors)
    test = original.write(arguments.held_out, arguments.tokens, arguments.begin, 1002)
    train = original.write(arguments.texts, arguments.tokens, arguments.begin, 1)
    written = time.process_time()
    fitting = Fitting(shape, tensors, CausalForm(mean_rule(LEAST_MEAN), denominator_rule(shape.positions)))
    found = fitting.run(train, lambda layers: print(f"{layers} layers are fitted", flush=True))
    seconds = time.process_time() - written
    folding = Folding(shape, fitting.tensors, found.layers, found.seen)
    record = {
        "record": "writing",
        "model": arguments.model.name,
        "texts": arguments.texts,
        "held_out": arguments.held_out,
        "tokens": arguments.tokens,
        "near": compared(original, fitting, found.layers, test),
        "top": folding.top,
        "token": {name: planned(shape, folding.rules, name) for name in ("dealer", "pair")},
        "fit_seconds": seconds,
        "versions": {"torch": torch.__version__},
        "command": f"python research/benchmarks/writing.py {arguments.model.name} --texts {arguments.texts} "
        f"--held-out {arguments.held_out} --tokens {arguments.tokens}",
    }
    text = json.dumps(record, indent=2)
    print(text)
    if arguments.record is not None:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(text + "\n")


if __name__ == "__main__":
    main()
