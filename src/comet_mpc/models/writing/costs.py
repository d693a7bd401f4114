"""What a conversation costs, planned: the prompt's run, each token after it, and what is prepared."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from comet_mpc.engine import Session
from comet_mpc.engine.costs import compute_seconds
from comet_mpc.engine.windows import Window, WindowPlan
from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.inverse_rule import WIDEST, WideRule
from comet_mpc.functions.layer_norm import shrink_factor
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import (
    DecoderLayerRules,
    DecoderRules,
    DecoderShape,
    decode,
    input_rows,
    public_weights,
    tell,
    top_of,
)
from comet_mpc.models.streams.folding import LEAST_MEAN
from comet_mpc.models.writing.model import WritingModel, told
from comet_mpc.offline.source import Source

_TOP = 2.0**20
"""Mean square of the longest row of a stream, about what is proved of models with some layers."""


class TokenCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a text of `tokens` after a prompt of `prompt`. Bytes and rounds are exact; both parties together."""

    source: str
    prompt: int
    tokens: int
    positions: int
    """For which it is prepared."""
    prompt_bytes: int
    """Of the prompt's run, which gives the first token."""
    prompt_rounds: int
    token_bytes: int
    """Of each token after it, on average: later ones look back at more."""
    last_token_bytes: int
    token_rounds: int
    online_bytes: int
    rounds: int
    offline_bytes: int
    offline_bytes_a_token: int
    """For each position that is prepared."""
    compute_seconds: float
    """Of a token, for each party, about."""
    draft_bytes: int
    """Of a run that verifies `drafts` guesses besides; its rounds are those of a token."""
    drafts: int


def conversation_costs(
    conversation: WindowPlan, source: Source, prompt: int = 16, tokens: int = 64, drafts: int = 4
) -> TokenCosts:
    """Of a conversation that is planned already."""
    total = conversation.total
    if prompt < 1 or tokens < 1 or prompt + tokens - 1 > total:
        raise ConfigurationError(f"{tokens} tokens after a prompt of {prompt} do not fit into {total} positions")
    first = conversation.window(0, prompt)
    # What a token sends is linear in the positions before it, but for the rounding of bits to bytes: all are planned.
    each = [conversation.window(at, at + 1) for at in range(prompt, prompt + tokens - 1)]
    last = each[-1] if each else first
    drafts = min(drafts, total - prompt - 1)
    guessed = conversation.window(prompt, prompt + 1 + drafts) if drafts > 0 else last
    offline = source.offline_bytes(conversation.whole)
    sent = sum(one.online_bytes for one in each)
    return TokenCosts(
        source=source.name, prompt=prompt, tokens=tokens, positions=total, prompt_bytes=first.online_bytes,
        prompt_rounds=first.rounds, token_bytes=round(sent / len(each)) if each else 0,
        last_token_bytes=last.online_bytes, token_rounds=last.rounds, online_bytes=first.online_bytes + sent,
        rounds=first.rounds + sum(one.rounds for one in each), offline_bytes=offline,
        offline_bytes_a_token=round(offline / total), compute_seconds=compute_seconds(last),
        draft_bytes=guessed.online_bytes, drafts=max(0, drafts),
    )  # fmt: skip


def token_costs(model: WritingModel, source: Source, prompt: int = 16, tokens: int = 64) -> TokenCosts:
    """Of the usual conversation of a model, or of as much as its context has room for."""
    prompt = min(prompt, model.longest)
    tokens = min(tokens, model.longest + 1 - prompt)
    conversation = model.conversation(model.fitting(prompt + tokens - 1), source)
    return conversation_costs(conversation, source, prompt, tokens)


def shape_conversation(shape: DecoderShape, positions: int, source: Source) -> WindowPlan:
    """The program of a decoder that is not there yet, with norms whose ranges are as wide as tables reach.

    A real one's ranges follow from its weights: narrower ones cost a little less.
    """
    shape = replace(shape, positions=positions)
    shrink = shrink_factor(shape.hidden)
    high = _TOP * shrink**3
    norm = WideRule(high / WIDEST * 1.001, high, math.sqrt(shrink), throughout=False)
    form = CausalForm(mean_rule(LEAST_MEAN), denominator_rule(positions))
    rules = DecoderRules((DecoderLayerRules((norm, norm), form),) * shape.layers, norm)
    weights, top = public_weights(shape), top_of(shape, rules)

    def run(session: Session, window: Window) -> None:
        states = decode(session, input_rows(session, None, window, shape, top), window, shape, rules, weights)
        tell(session, states, told(window))

    return WindowPlan(run, positions, abilities=source.abilities)
