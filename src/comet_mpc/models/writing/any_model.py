"""A Comet checkpoint of any kind, as a server loads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from comet_mpc.engine.costs import Network
from comet_mpc.models.served import ServedModel
from comet_mpc.models.transformer import ANSWER_BITS
from comet_mpc.models.writing.decoder import Decoder
from comet_mpc.models.writing.stored import is_decoder, load_decoder
from comet_mpc.offline.cheapest import USUAL_NETWORK


def load_model(
    directory: Path,
    *,
    private_embeddings: bool = False,
    answer_bits: int | None = None,
    network: Network = USUAL_NETWORK,
    told: Callable[[int, int], None] = lambda done, total: None,
    plain: bool = False,
) -> ServedModel | Decoder:
    """A model that answers or one that writes. The arguments are those of `ServedModel.load`.

    answer_bits: None: as is usual for a model of its kind
    """
    if is_decoder(directory):
        return load_decoder(
            directory, private_embeddings=private_embeddings, answer_bits=answer_bits, network=network, told=told
        )
    return ServedModel.load(
        directory, private_embeddings=private_embeddings, answer_bits=answer_bits or ANSWER_BITS, network=network,
        told=told, plain=plain,
    )  # fmt: skip
