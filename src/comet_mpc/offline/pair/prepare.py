"""Correlated randomness without a third party: the two parties prepare it between themselves.

Every correlation of a program becomes products of what the client knows with what the server knows, each kind by a
preparer of its own (`offline.kinds` lists them). Masks take nothing: each party's part comes from a seed of its own.
But what ciphertexts define of them is the client's part, and is stored.

Correlations of one kind are prepared together, so that small tensors share ciphertexts. The order of the stages follows
from the program alone. Their messages are in flight together (`offline.streaming`). Nothing is handed out before
everything is prepared. Reveals nothing: every step says so for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import Correlation, Mask, program_digest, repeated
from comet_mpc.engine.seeds import new_seed
from comet_mpc.errors import ProtocolMismatch, RandomnessError
from comet_mpc.net.channel import Channel
from comet_mpc.offline.allocation import give_back
from comet_mpc.offline.ot.extension import Transfers, set_up_transfers
from comet_mpc.offline.pair.costs import watcher
from comet_mpc.offline.pair.matrices import key_limbs, packing_of
from comet_mpc.offline.pair.shares import PairRandomness, Prepared, layouts
from comet_mpc.offline.pair.stages import arranged
from comet_mpc.offline.pair.workbench import HeldShares, Scratch, Workbench
from comet_mpc.offline.rlwe.products import Homomorphic
from comet_mpc.offline.source import Progress
from comet_mpc.offline.streaming import converse


class Preparer:
    """One party's side of a connection on which bundles for one program are prepared, one after the other or together.

    Keys and base transfers are set up with the first bundle and serve the others too. The server gives its weights.
    """

    def __init__(
        self,
        channel: Channel,
        party: int,
        correlations: Sequence[Correlation],
        weights: Mapping[str, Weight] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.channel, self.party, self.correlations = channel, party, tuple(correlations)
        self.weights, self._threads = weights or {}, threads
        self.scratch: Path | None = None
        """A directory for what waits until all is prepared (`Scratch`); without it, that is in memory."""
        self._tools: tuple[Homomorphic, Transfers] | None = None
        if any(isinstance(correlation, Mask) and correlation.shift for correlation in correlations):
            raise RandomnessError(
                "two parties alone cannot truncate and open in one round: plan with the abilities of their source"
            )

    @property
    def fresh(self) -> bool:
        """Whether keys and transfers are still to be set up."""
        return self._tools is None

    def set_up(self) -> None:
        """Keys and base transfers, unless they are there. Otherwise the first bundle begins with them."""
        if self._tools is None:
            engine = Homomorphic(self.channel, self.party, threads=self._threads)
            transfers = set_up_transfers(self.channel, self.party)
            engine.set_up_packing(packing_of(self.correlations), key_limbs(self.correlations))
            self._tools = engine, transfers

    def prepare(self, count: int = 1, progress: Progress | None = None) -> list[Prepared]:
        """The next bundles, together: small tensors of several share ciphertexts. Both parties ask for as many.

        progress: is told how far it is, in proportion to the time that it takes, in bytes
        """
        if progress is not None:
            before, first = self.channel.traffic, self.fresh
            self.channel.watcher = watcher(self.correlations, progress, before, first=first, count=count)
        try:
            return self._prepare(count)
        finally:
            self.channel.watcher = None

    def _prepare(self, count: int) -> list[Prepared]:
        program = repeated(self.correlations, count)
        digest = bytes.fromhex(program_digest(program))
        theirs = self.channel.exchange([digest], len(digest)).tobytes()
        if theirs != digest:
            self.channel.close()
            raise ProtocolMismatch("the program", got=theirs.hex()[:16], expected=digest.hex()[:16])
        self.set_up()
        assert self._tools is not None
        layout, size = layouts(self.party, self.correlations), len(self.correlations)
        scratch = None if self.scratch is None else Scratch(self.scratch)
        held = HeldShares(lambda index: layout(index % size), scratch)
        bench = Workbench(*self._tools, program, [new_seed() for _ in range(count)], self.weights, held)
        stages = arranged(self.correlations, count)
        converse(self.channel, self.party, (stage.work(program, stage.run(bench)) for stage in stages))
        give_back()
        return [
            Prepared(self.party, seed, self.correlations, held.part(copy * size, (copy + 1) * size))
            for copy, seed in enumerate(bench.seeds)
        ]


def prepare_bundle(
    channel: Channel,
    party: int,
    correlations: Sequence[Correlation],
    weights: Mapping[str, Weight] | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> PairRandomness:
    """One bundle. Both parties call it with the same program, planned for this source; the server with its weights."""
    return Preparer(channel, party, correlations, weights, threads=threads).prepare(progress=progress)[0].open()
