"""The plain model: an encoder of texts or images with a head, in every form that Comet knows.

    activation  GeLU, or smu; normalised by what the weights prove about every neuron, or not; or a polynomial of its
                own for every neuron
    attention   softmax, or f(s)^p / Σ f(s)^p with f = ReLU or smu and s = q·k/√d or cos(q, k) - threshold; or f a
                quartic of its own for every head, of soft cosines
    pooler      tanh, or x/sqrt(1 + x²); ReLU, or smu normalised like neurons

and evaluated in one of three ways:

    exact    with exact functions
    steps    activations, scores and denominators by the very coefficients that the protocol evaluates: for training
    served   variances, norms and the pooler by their rules too: the protocol but for rounding

Parameters are those that a checkpoint declares (`checkpoint.tensor_shapes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from comet_mpc.functions.layer_norm import shrink_factor
from comet_mpc.functions.rule import InverseRule, Rule
from comet_mpc.models.blocks import position_buckets
from comet_mpc.models.bounds import activation_bounds, head_bounds, norm_before
from comet_mpc.models.certify import certify, universal_rules
from comet_mpc.models.checkpoint import FITTED, CometConfig, tensor_shapes
from comet_mpc.models.fitted.numbers import within_limits
from comet_mpc.train.steps import fitted_neurons, fitted_weights, rounded_smu, smu

Mode = Literal["exact", "steps", "served"]
Probe = Callable[[str, Tensor], None]

_SHORTEST = 16  # texts are served padded to powers of two from here on, and denominators divided by that length


class _Norm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.size, self.epsilon = size, epsilon
        self.shrink = shrink_factor(size)

    def forward(self, x: Tensor, rule: InverseRule | None) -> Tensor:
        if rule is None:
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.epsilon)
        shrink = self.shrink
        v = shrink * (x - x.mean(-1, keepdim=True))
        t = shrink * v.square().mean(-1, keepdim=True) + self.epsilon * shrink**3
        n = v * (rule(t) * (math.sqrt(shrink) / rule.gain))
        return n * self.weight + self.bias


class _Declared(nn.Module):
    """Linear layers, LayerNorms and single parameters, as a checkpoint declares them under a prefix."""

    def __init__(self, config: CometConfig, prefix: str, *, but: tuple[str, ...] = ()) -> None:
        super().__init__()
        for name, shape in tensor_shapes(config).items():
            owner, _, part = name.removeprefix(prefix).partition(".")
            if not name.startswith(prefix) or owner in but:
                continue
            if not part:
                setattr(self, owner, nn.Parameter(torch.zeros(shape)))
            elif part == "weight":
                linear = len(shape) == 2
                setattr(
                    self, owner, nn.Linear(shape[1], shape[0]) if linear else _Norm(shape[0], config.encoder.epsilon)
                )
            elif part != "bias":
                setattr(self, owner, getattr(self, owner, nn.ParameterDict()))
                getattr(self, owner)[part] = nn.Parameter(torch.zeros(shape))


class _Embeddings(_Declared):
    words: Tensor
    patches: Tensor
    """Of images, in the place of words."""
    positions: Tensor
    types: Tensor | None
    norm: _Norm

    def __init__(self, config: CometConfig) -> None:
        super().__init__(config, "embeddings.")
        self.first, self.image = config.encoder.first_position, config.encoder.image is not None
        if not config.encoder.types:
            self.types = None

    def forward(self, ids: Tensor, types: Tensor | None) -> Tensor:
        if self.image:  # ids are pixels
            start = self.positions[:1].expand(len(ids), 1, -1)
            return torch.cat([start, F.linear(ids, self.patches) + self.positions[1:]], dim=1)
        n = ids.shape[1]
        x = F.embedding(ids, self.words) + self.positions[self.first : self.first + n]
        if self.types is not None:
            x = x + (self.types[0] if types is None else F.embedding(types, self.types))
        return x


class _Layer(_Declared):
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attention_output: nn.Linear
    attention_norm: _Norm
    up: nn.Linear
    down: nn.Linear
    output_norm: _Norm
    thresholds: Tensor
    """Of cosine attention."""
    neurons: nn.ParameterDict
    """Scales and coefficients, where they are fitted."""
    scores: Tensor
    softness: Tensor
    """Of heads, where attention is fitted (`models.fitted.numbers`)."""
    activation: nn.ParameterDict
    """α and μ, where they are learnt (the paper's appendix C)."""
    attention: nn.ParameterDict
    """μ, where it is learnt."""

    def __init__(self, config: CometConfig, index: int) -> None:
        super().__init__(config, f"layers.{index}.")
        self.config, self.name, self.heads = config, f"layers.{index}", config.encoder.heads
        self.before = norm_before(index)
        if config.activation.kind == FITTED:
            self.neurons["scale"].requires_grad_(False)  # a unit of the coefficients, and no more

    def forward(self, model: UnifiedModel, x: Tensor, before: _Norm, mask: Tensor, bias: Tensor | None) -> Tensor:
        if self.config.encoder.stream:
            return self._on_stream(model, x, before, mask, bias)
        x = x + model.dropout(self.attention_output(self.attend(model, x, before, mask, bias)))
        x = model.normalise(f"{self.name}.attention_norm", self.attention_norm, x)
        x = x + model.dropout(self.down(self.activate(model, x)))
        return model.normalise(f"{self.name}.output_norm", self.output_norm, x)

    def _on_stream(self, model: UnifiedModel, x: Tensor, before: _Norm, mask: Tensor, bias: Tensor | None) -> Tensor:
        """Pre-normalised: x is what no LayerNorm has scaled."""
        rows = model.normalise(self.before, before, x)
        x = x + model.dropout(self.attention_output(self.attend(model, rows, before, mask, bias)))
        rows = model.normalise(f"{self.name}.attention_norm", self.attention_norm, x)
        added: Tensor = x + model.dropout(self.down(self.activate(model, rows)))
        return added

    def activate(self, model: UnifiedModel, x: Tensor) -> Tensor:
        """The neurons' outputs, before the second matrix."""
        choice, h = self.config.activation, self.up(x)
        if choice.kind == "gelu":
            return F.gelu(h)
        if choice.kind == FITTED:
            return fitted_neurons(h, self.neurons["scale"], self.neurons["coefficients"])
        mu: float | Tensor = self.activation["mu"] if choice.trainable else choice.mu
        alpha: float | Tensor = self.activation["alpha"] if choice.trainable else choice.alpha
        rule = model.rule(self.name, "activation")
        if not choice.normalised:
            model.see(f"{self.name}.activation", (1.0 - alpha) ** 2 * h.square() + mu**2)
            return smu(model.held(h, mu, alpha, rule), mu, alpha, rule)
        norm = self.attention_norm
        bound = activation_bounds(self.up.weight, self.up.bias, norm.weight, norm.bias)
        h = h / bound
        model.see(f"{self.name}.activation", h.square() + mu**2)
        if model.rounds and rule is not None and rule.unit:
            return bound * rounded_smu(h, choice.mu, choice.alpha, rule)
        return bound * smu(h, mu, alpha, rule)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, model: UnifiedModel, x: Tensor, before: _Norm, mask: Tensor, bias: Tensor | None) -> Tensor:
        """Every head's averages of values. mask has shape (batch, 1, 1, n): 1 for a token, 0 for padding."""
        choice, name = self.config.attention, self.name
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        if choice.cosine:
            soft = self.softness.clamp(min=0.0).T[..., None, None] if choice.kind == FITTED else (None, None)
            pairs = zip((q, k), (self.query, self.key), soft, strict=True)
            q, k = (self._unit(model, z, part, before, c) for z, part, c in pairs)
            if choice.kind == FITTED:
                return self._weigh(model, fitted_weights(q @ k.transpose(-1, -2), self.scores, bias), v, mask)
            threshold = self.thresholds[:, None, None]
            s = q @ k.transpose(-1, -2) - (threshold if bias is None else threshold - bias).clamp(-1.0, 1.0)
        else:
            s = q @ k.transpose(-1, -2) * (1.0 / math.sqrt(q.shape[-1]))
            s = s if bias is None else s + bias
        if choice.kind == "softmax":
            probabilities = torch.softmax(s.masked_fill(mask == 0, -torch.inf), dim=-1)
            return (probabilities @ v).transpose(1, 2).flatten(2)
        scale = 0.5 if choice.cosine else 1.0  # cosine scores are in [-2, 2]
        mu: float | Tensor = self.attention["mu"] if choice.trainable else choice.mu
        if choice.kind == "relu":
            mu = 0.0
        s = s * scale
        model.see(f"{name}.scores", s.square() + (mu * scale) ** 2)
        scores = model.rule(name, "scores")
        s = s if choice.cosine else model.held(s, mu, 0.0, scores)
        return self._weigh(model, smu(s, mu * scale, 0.0, scores) ** choice.power, v, mask)

    def _weigh(self, model: UnifiedModel, r: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """R·V / ΣR, heads side by side."""
        choice, name = self.config.attention, self.name
        r = r * mask
        n = max(_SHORTEST, 2 ** math.ceil(math.log2(r.shape[-1])))
        total = (r.sum(-1, keepdim=True) + choice.floor) / n
        model.see(f"{name}.denominators", total)
        rule = model.inverse_rule(name, "denominators")
        product = (r @ v) / n
        context = product / total if rule is None else product * rule(total) ** 2
        return context.transpose(1, 2).flatten(2)

    def _unit(
        self, model: UnifiedModel, z: Tensor, part: nn.Linear, before: _Norm, soft: Tensor | None = None
    ) -> Tensor:
        """Every row divided by its norm. soft: what is added to the square of that, (heads, 1, 1)"""
        rule = model.inverse_rule(self.name, "norms", rows=True)
        if rule is None and model.probe is None:
            return F.normalize(z, dim=-1) if soft is None else z * (z.square().sum(-1, keepdim=True) + soft).rsqrt()
        if part not in model.head_bounds:
            parameters = (part.weight, part.bias, before.weight, before.bias)
            w, b, gamma, beta = (p.detach().double().numpy() for p in parameters)
            bound = torch.tensor(head_bounds(w, b, gamma, beta, self.heads), dtype=z.dtype)
            model.head_bounds[part] = bound[:, None, None]
        z = z / model.head_bounds[part]
        t = z.square().sum(-1, keepdim=True)
        if soft is not None:
            t = t + soft / model.head_bounds[part] ** 2
        model.see(f"{self.name}.norms", t)
        return z * (t.clamp(min=1e-24).rsqrt() if rule is None else rule(t))


class UnifiedModel(_Declared):
    """An encoder with its head (`models.heads`)."""

    relative_positions: Tensor | None
    pooler: nn.Linear | None
    classifier: nn.Linear | None

    def __init__(self, config: CometConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, "", but=("embeddings", "layers"))
        self.config = config
        self.dropout = nn.Dropout(dropout)
        self.embeddings = _Embeddings(config)
        self.layers = nn.ModuleList(_Layer(config, i) for i in range(config.encoder.layers))
        for name in ("relative_positions", "pooler", "classifier"):
            setattr(self, name, getattr(self, name, None))
        self.mode: Mode = "exact"
        self.probe: Probe | None = None
        self.rounds = False
        """Whether neurons round as the parties do, in a form that is certified."""
        self.head_bounds: dict[nn.Module, Tensor] = {}
        """Of the weights as they were when `use` was called."""
        self._rules: dict[str, Rule] = {}

    @classmethod
    def from_tensors(
        cls, config: CometConfig, tensors: Mapping[str, npt.NDArray[Any]], *, dropout: float = 0.0
    ) -> UnifiedModel:
        model = cls(config, dropout=dropout)
        model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in tensors.items()})
        return model

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """The parameters as a checkpoint stores them; thresholds and fitted functions as they act."""
        found = {name: value.detach().numpy().copy() for name, value in self.state_dict().items()}
        acting = {name: np.clip(v, -1, 1) if name.endswith(".thresholds") else v for name, v in found.items()}
        return dict(within_limits(self.config, acting))

    def use(self, mode: Mode, rules: Mapping[str, Rule] | None = None) -> UnifiedModel:
        """Chooses how to evaluate, with the weights as they are now: call it again when they changed.

        `served` takes the configuration's sites, or certifies now; `rules` replace some. A model whose form is not
        certified has calibrated rules for activations and scores; row quantities stay exact unless `rules` names them,
        since there a sum of approximate weights may fall below zero, where no rule holds (`comet_research.paper`).
        """
        config = self.config
        known = {name: site.rule for name, site in config.sites.items()}
        if not config.certifiable:
            known = {name: rule for name, rule in known.items() if name.endswith((".activation", ".scores"))}
        if mode == "served" and config.certifiable and not known:
            known = {name: site.rule for name, site in certify(config, self.tensors()).sites.items()}
        if mode == "steps" and config.certifiable:
            known = {name: rule for name, rule in known.items() if name not in ("norms", "denominators")}
            known |= universal_rules(config)
        self.mode, self._rules = mode, known | dict(rules or {})
        self.head_bounds = {}
        return self

    def rule(self, owner: str, site: str) -> Rule | None:
        """The rule in force at a site: the layer's own, or the universal one; None means the exact function."""
        if self.mode == "exact":
            return None
        return self._rules.get(f"{owner}.{site}" if site else owner) or self._rules.get(site)

    def inverse_rule(self, owner: str, site: str, *, rows: bool = False) -> InverseRule | None:
        """The same where 1/sqrt is taken. rows: of a quantity that `steps` takes exactly."""
        rule = None if rows and self.mode == "steps" else self.rule(owner, site)
        return None if rule is None else rule.inverse()

    def held(self, x: Tensor, mu: float | Tensor, alpha: float | Tensor, rule: Rule | None) -> Tensor:
        """x, in training held to where a calibrated rule is stable; the penalty on its range sees it as it is."""
        if rule is None or self.mode != "steps":
            return x
        m, a = (float(z.detach()) if isinstance(z, Tensor) else z for z in (mu, alpha))
        limit = math.sqrt(rule.high - m * m) / (1.0 - a)
        return x.clamp(-limit, limit)

    def see(self, site: str, t: Tensor) -> None:
        if self.probe is not None:
            self.probe(site, t)

    def normalise(self, site: str, norm: _Norm, x: Tensor) -> Tensor:
        if self.probe is not None:
            self.probe(site, (x.var(-1, unbiased=False) + norm.epsilon) * norm.shrink**3)
        result: Tensor = norm(x, self.inverse_rule(site, "", rows=True))
        return result

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Answers, and the hidden states before and after every layer. ids, mask (1 or 0), types: (batch, n).

        Of images ids are the pixels of patches, and hidden states are not normalised. Answers are logits, of texts or
        of tokens, or embeddings; scaled ones have a mean square of 1.
        """
        x, mask = self.begin(ids, mask, types)
        x = self.dropout(x)
        bias = self.position_bias(x.shape[1])
        columns = mask[:, None, None, :].to(x.dtype)
        before, hidden = self.embeddings.norm, [x]
        for layer in self.layers:
            x = layer(self, x, before, columns, bias)
            before = layer.output_norm  # type: ignore[assignment]
            hidden.append(x)
        return self.respond(self.read(norm_before(len(self.layers)), x), mask, before), hidden

    def begin(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the first layer is given, and which of its rows are there."""
        x = self.embeddings(ids, types)
        if self.config.encoder.stream:
            return x, torch.ones(x.shape[:2]).long()
        return self.normalise("embeddings.norm", self.embeddings.norm, x), mask

    def read(self, name: str, x: Tensor) -> Tensor:
        """What a part reads: of a stream what its LayerNorm `name` makes of it, and else x, which went through it."""
        norm: Any = self.get_submodule(name)
        return self.normalise(name, norm, x) if self.config.encoder.stream else x

    def added(self, name: str, x: Tensor) -> Tensor:
        """What goes on of a sum x: a stream as it is, and else what the LayerNorm `name` makes of it."""
        norm: Any = self.get_submodule(name)
        return x if self.config.encoder.stream else self.normalise(name, norm, x)

    def respond(self, x: Tensor, mask: Tensor, before: _Norm) -> Tensor:
        """The head's answers from the last hidden states, which the LayerNorm `before` gave."""
        if self.classifier is None:
            x = self.pooled(x, mask, before)
            return self._scaled(x, before) if self.config.head.unit else x
        answers: Tensor = self.classifier(self.dropout(self.pooled(x, mask, before)))
        return answers

    def pooled(self, x: Tensor, mask: Tensor, before: _Norm) -> Tensor:
        """What the classifier takes: a row for every text, or for every token."""
        head = self.config.head
        if head.kind != "tokens":
            weight = (mask / mask.sum(1, keepdim=True))[:, :, None].to(x.dtype)
            x = x[:, 0] if head.pooling == "first" else (x * weight).sum(1)
        return x if self.pooler is None else self._pooled(self.pooler, self.dropout(x), before)

    def _pooled(self, pooler: nn.Linear, x: Tensor, before: _Norm) -> Tensor:
        pooled, kind = pooler(x), self.config.pooler
        if kind in ("tanh", "relu"):
            return torch.tanh(pooled) if kind == "tanh" else torch.relu(pooled)
        if kind == "smu":
            choice = self.config.activation
            bound = activation_bounds(pooler.weight, pooler.bias, before.weight, before.bias)
            return bound * smu(pooled / bound, choice.mu, choice.alpha, self.rule("", "activation"))
        t = 1.0 + pooled.square()
        self.see("pooler", t)
        rule = self.inverse_rule("pooler", "", rows=True)
        return pooled * (torch.rsqrt(t) if rule is None else rule(t))

    def _scaled(self, x: Tensor, before: _Norm) -> Tensor:
        shrink = before.shrink
        t = (x.square().mean(-1, keepdim=True) + before.epsilon) * shrink**3
        self.see("output.norm", t)
        rule = self.inverse_rule("output.norm", "", rows=True)
        return x * shrink**1.5 * (torch.rsqrt(t) if rule is None else rule(t) / rule.gain)

    def position_bias(self, n: int) -> Tensor | None:
        """MPNet's relative position bias, (heads, n, n)."""
        if self.relative_positions is None:
            return None
        buckets = torch.from_numpy(position_buckets(n, len(self.relative_positions)))
        return F.embedding(buckets, self.relative_positions).permute(2, 0, 1)
