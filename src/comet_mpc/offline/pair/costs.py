"""What preparing a program costs two parties without a third: bytes and rounds, exactly, before anything is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from comet_mpc.engine.correlations import (
    BitProducts,
    Correlation,
    Monomials,
    SquareSums,
    TableTransfers,
    WeightScale,
    repeated,
)
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT
from comet_mpc.net.channel import FRAME_HEADER, Traffic
from comet_mpc.offline.ot.extension import CHUNK, bit_products_traffic, extension_bytes, set_up_traffic
from comet_mpc.offline.ot.tables import table_traffic
from comet_mpc.offline.pair.arrangement import (
    grouped,
    matrix_products,
    monomial_plan,
    packing_of,
    scale_plan,
    scales_alone,
    square_plan,
    terms_per_sum,
)
from comet_mpc.offline.pair.units import units
from comet_mpc.offline.rlwe.products import together
from comet_mpc.offline.rlwe.public_key import PublicKey
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.slots import SlotPlan
from comet_mpc.offline.source import Progress

_SEEDS = SEED_BYTES + FRAME_HEADER
_KEYS = Traffic(_SEEDS + PublicKey.SIZE + FRAME_HEADER, _SEEDS, 2)
"""Two seeds at once, then the client's public key and its proof."""
_STEADY_RATE = 50e6
"""Bytes a second that are encrypted, multiplied element by element, answered and sent, beside matrix products."""


def preparation_traffic(program: Sequence[Correlation], *, first: bool = True, count: int = 1) -> Traffic:
    """What `Preparer.prepare` sends and receives, and in how many rounds, as the client counts it.

    first: with the keys and base transfers, which later bundles on the same connection share
    count: of bundles that are prepared together
    """
    parts = preparation_parts(program, count)
    if not first:
        del parts["keys"]
    return sum(parts.values(), Traffic())


def preparation_parts(once: Sequence[Correlation], count: int = 1) -> dict[str, Traffic]:
    """The same by what it is spent on, in the order of first use."""
    parts: dict[str, Traffic] = {}
    for name, traffic, _ in _stages(once, count):
        parts[name] = parts.get(name, Traffic()) + traffic
    return parts


def watcher(
    once: Sequence[Correlation], told: Progress, before: Traffic, *, first: bool = True, count: int = 1
) -> Callable[[Traffic], None]:
    """For a channel on which a preparation begins: tells how far it is, in proportion to the time that it takes.

    Bytes of matrix products take the longest, and come first. So what is told are not the bytes that have passed, but
    those that would have, if each took as long as any other: of them the time left follows.
    """
    passed, spent = [0], [0.0]
    for name, traffic, seconds in _stages(once, count):
        if first or name != "keys":
            size = traffic.sent + traffic.received
            passed.append(passed[-1] + size)
            spent.append(spent[-1] + seconds + size / _STEADY_RATE)

    def watch(now: Traffic) -> None:
        done = now - before
        part = float(np.interp(done.sent + done.received, passed, spent)) / spent[-1]
        told(int(part * passed[-1]), passed[-1])

    return watch


def _stages(once: Sequence[Correlation], count: int) -> Iterator[tuple[str, Traffic, float]]:
    """What is done one after the other, and about how many seconds that takes beside those for its bytes."""
    program = repeated(once, count)
    yield "agreement", Traffic(32 + FRAME_HEADER, 32 + FRAME_HEADER, 1), 0.0  # the program's digest
    yield "keys", _KEYS + set_up_traffic(), 0.0
    if keys := packing_of(once).key_bytes:
        yield "keys", Traffic(keys + FRAME_HEADER, 0, 1), 0.0
    for products in matrix_products(program, count):
        tiling, batch = products.tiling, products.batch
        yield "matrix products", _jobs(batch, tiling.upload_bytes, tiling.response_bytes), batch * tiling.seconds
    for (width, modulus), bits in grouped(program, BitProducts):
        padded = sum(-(-entry.count // 8) * 8 for _, entry in bits)
        yield "bits of truncation", bit_products_traffic(CLIENT, padded, width, modulus), 0.0
    for unit in units(program):
        yield "products in odd rings", _run([(job.upload_bytes, job.response_bytes) for job in unit.jobs]), 0.0
    for correlation in program:
        if isinstance(correlation, TableTransfers):
            yield "look-ups", table_traffic(correlation.count, correlation.entries), 0.0
    for terms, monomials in grouped(program, Monomials):
        width = max(term.width for term in terms)
        if plan := monomial_plan([term.powers for term in terms], width):
            yield "monomials", _slots(plan, sum(math.prod(entry.shape) for _, entry in monomials), width), 0.0
    for (columns, width), sums in grouped(program, SquareSums):
        rows = sum(entry.rows for _, entry in sums)
        added = terms_per_sum(rows, columns, width)
        yield "sums of squares", _slots(square_plan(added, width), rows * -(-columns // added), width), 0.0
    for width, scales in grouped(scales_alone(program, count), WeightScale):
        total = sum(entry.rows * entry.size for _, entry in scales)
        yield "scales", _slots(scale_plan(width), total, width), 0.0


def _jobs(count: int, upload: int, response: int) -> Traffic:
    """`Homomorphic.run` of jobs of one size."""
    return _run([(upload, response)] * count)


def _run(sizes: Sequence[tuple[int, int]]) -> Traffic:
    """`Homomorphic.run` of jobs with these uploads and responses."""
    messages = len(together([upload for upload, _ in sizes]))
    sent, received = (sum(size[side] for size in sizes) + messages * FRAME_HEADER for side in (0, 1))
    return Traffic(sent, received, messages + 1 if messages else 0)


def _slots(plan: SlotPlan, count: int, width: int) -> Traffic:
    """`slot_sums`, and the products of a bit and a word after it."""
    total = _jobs(-(-count // DEGREE), plan.upload_bytes, plan.response_bytes)
    elements = count * len(plan.sums)
    chunks = [min(CHUNK, elements - start) for start in range(0, elements, CHUNK)]
    asked = sum(extension_bytes(size) + (size + 7) // 8 + FRAME_HEADER for size in chunks)
    answered = sum((size * width + 7) // 8 + FRAME_HEADER for size in chunks)
    return total + Traffic(asked, answered, len(chunks) + 1)
