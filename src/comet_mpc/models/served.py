"""A checkpoint made ready to serve: the public model (`public`), and the weights, folded and in fixed point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.engine import Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.share import Reals
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.fold import check_fixed, fold, fold_image, fold_tables, plain_states, plain_stream_states
from comet_mpc.models.public import PublicModel, table_shapes
from comet_mpc.models.queries import Query
from comet_mpc.models.stored.checkpoints import load_checkpoint, read_tokenizer, tensors_digest
from comet_mpc.models.stored.rounding import Moved, check_moved, moved
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.transformer import (
    ANSWER_BITS,
    encode_weight,
    in_order,
)
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.threads import small_matrices


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ServedModel(PublicModel):
    """What the server holds."""

    folded: Mapping[str, Reals]
    """Weights in real numbers, by the names of `transformer.encoder_weights`. Empty where nobody asks in the clear."""
    fixed: Mapping[str, Weight]

    @staticmethod
    @small_matrices()
    def load(
        directory: Path,
        *,
        private_embeddings: bool = False,
        answer_bits: int = ANSWER_BITS,
        network: Network = USUAL_NETWORK,
        told: Callable[[int, int], None] = lambda done, total: None,
        plain: bool = True,
    ) -> ServedModel:
        """A Comet checkpoint in the certified form, its ranges proved again from the weights.

        private_embeddings  the embedding tables stay at the server; a query then starts with a one-hot product
        answer_bits         fraction bits of the logits that a client gets: fewer tell it less about the weights
        network             between clients and this server: what the bytes and rounds of its programs are weighed by
        told                how many layers are proved, which takes most of the time, and of how many
        plain               whether it is to answer in the clear too: real numbers take twice the checkpoint's memory
        """
        config, tensors = load_checkpoint(directory)
        check_ranges(config, tensors, told)
        encoded, folded, stated = dict[str, Weight](), dict[str, Reals](), tensors_digest(tensors)
        off: list[Moved] = []

        def take(part: dict[str, Reals], layer: int = -1) -> None:
            own = {name: encode_weight(name, value) for name, value in part.items()}
            encoded.update(own)
            if 0 <= layer < config.encoder.layers:
                off.append(moved(config, part, own, layer))
            if plain:
                folded.update(part)
            for name in [name for name in tensors if name.startswith(f"layers.{layer}.") and tensors[name].ndim == 2]:
                del tensors[name]  # so that there is never more than one copy of a large model

        _, value_bounds, logit_bound = fold(config, tensors, take)
        public = public_part(directory, config, tensors, value_bounds, logit_bound, stated)
        public = replace(public, private_embeddings=private_embeddings, answer_bits=answer_bits, network=network)
        if config.encoder.image is not None:
            take(fold_image(tensors["embeddings.patches"], tensors["embeddings.positions"]))
        elif private_embeddings:
            take(fold_tables(public.embeddings, config.encoder.first_position))
        fixed = in_order(public.shape, encoded)
        check_fixed(public.shape, public.rules, fixed)
        check_moved(public.rules, public.shape.hidden, off)
        return ServedModel(**vars(public), folded=folded, fixed=fixed)

    def weights(self) -> dict[str, Weight]:
        return dict(self.fixed)

    def public(self) -> PublicModel:
        known = {field.name: getattr(self, field.name) for field in fields(PublicModel)}
        return PublicModel(**known | {"embeddings": self.public_tables()})

    def plain_logits(self, query: Query, *, exact: bool = False) -> Reals:
        """The model in the clear, in real arithmetic: through the rules of the protocol, or with exact functions."""
        return self.plain_states(query, exact=exact)[-1]

    def plain_states(self, query: Query, *, exact: bool = False) -> list[Reals]:
        """The same with what is on the way: the normalised rows after every layer, then the logits."""
        if self.image is not None:
            first, rest = self.folded["embeddings.positions"][:1], self.folded["embeddings.positions"][1:]
            patches = query.rows @ self.folded["embeddings.weight"].T + rest
            stream = np.concatenate([np.repeat(first[None], query.batch, axis=0), patches], axis=1)
            return plain_stream_states(stream, self.shape, self.rules, self.folded, exact=exact)
        if self.private_embeddings:
            split = self.config.encoder.vocabulary
            types = query.rows[..., split:].argmax(axis=-1) if self.config.encoder.types else None
            ids = query.rows[..., :split].argmax(axis=-1)
            query = replace(query, rows=self.embed(ids, np.zeros_like(ids) if types is None else types))
        return plain_states(query.rows, query.mask, self.shape, self.rules, self.folded, exact=exact)


def public_part(
    directory: Path,
    config: CometConfig,
    tensors: Tensors,
    value_bounds: tuple[float, ...],
    logit_bound: float,
    stated: str = "",
) -> PublicModel:
    """What of a checkpoint's directory a client is given; tables in half precision, as they travel.

    stated: the digest of all tensors, if they are not all there any more
    """
    tokenizer = None
    if config.encoder.image is None:
        tokenizer = TextTokenizer.load(read_tokenizer(directory), Path(directory) / "tokenizer.json")
        tokenizer.check_fits(config.encoder.vocabulary)
    return PublicModel(
        stated=stated or tensors_digest(tensors),
        config=_without_data(config),
        value_bounds=tuple(map(_rounded_up, value_bounds)),
        logit_bound=_rounded_up(logit_bound),
        tokenizer=tokenizer,
        embeddings={
            name: tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32) for name in table_shapes(config)
        },
    )


def _without_data(config: CometConfig) -> CometConfig:
    """The configuration without what calibration has seen, and what it scored: that is the server's business."""
    sites = {name: msgspec.structs.replace(site, seen=()) for name, site in config.sites.items()}
    return msgspec.structs.replace(config, sites=sites, scores={})


def _rounded_up(bound: float) -> float:
    """To 24 bits: machines whose processors add up in another order still make the same package."""
    mantissa, exponent = math.frexp(bound)
    return math.ldexp(math.ceil(math.ldexp(mantissa, 24)), exponent - 24)
