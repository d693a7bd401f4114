"""What a model writes by its plaintext twin: the same integers as between two parties, by nobody in particular."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window
from comet_mpc.errors import ShapeError
from comet_mpc.models.writing.model import Places, WritingModel
from comet_mpc.models.writing.sampling import Sampler, Sampling


def written_by_twin(
    model: WritingModel, prompt: str | Sequence[int], tokens: int, sampling: Sampling | None = None
) -> Iterator[int]:
    """The tokens of a text one at a time, up to one that ends it.

    model: with its weights, as a server has it
    """
    ids, weights, session = model.prompt(prompt), model.weights(), TwinSession()
    total = model.fitting(len(ids) + tokens - 1)
    sampler, places, run, kept = Sampler(sampling or Sampling()), Places(), [*ids], 0
    for _ in range(tokens):
        first = len(places.all)
        places = places.after(len(run), kept)
        states = model.step(Window(first, first + len(run), total), places.all, run)(session, weights)
        if states is None:
            raise ShapeError("the program gave no states: a twin needs the server's model")
        ids.append(sampler.pick(model.logits(states)[-1], ids))
        yield ids[-1]
        if ids[-1] in model.ends:
            return
        run, kept = ids[-1:], len(run)
