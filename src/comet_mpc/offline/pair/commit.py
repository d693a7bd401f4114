"""How the two parties prepare bundles between themselves, on a connection of their own, and keep them: both or neither.

    client                                server
    keys, transfers, products     <->     the same                   prepare.Preparer
    writes its part, sealed               writes its part, sealed    on disk, but nobody takes it yet
    the bundles' ids               ->
                                          commits
                                  <-      the bundles' ids
    commits

What the client keeps, the server has kept before. If the client's end breaks after that, the server holds a bundle
that is never named to it, and drops it when it needs the room. A fault at any other moment leaves nothing at either:
a part that is not committed is removed, and masks, keys and transfers are forgotten with the connection.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import CometError, ConfigurationError, PeerError, PeerGaveUp
from comet_mpc.net.channel import Traffic
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.source import Progress
from comet_mpc.offline.store import BundleStore, BundleWriter

_log = logging.getLogger(__name__)

_PARTING_SECONDS = 1.0


def prepare_stored(
    preparer: Preparer,
    bundle_ids: Sequence[str],
    plan: Plan,
    store: BundleStore,
    progress: Progress | None = None,
    *,
    owner: str = "",
) -> Traffic:
    """More bundles for the plan in this party's store, by agreement with the other. Any error ends the connection.

    owner: at the server, the name of the client's certificate. No other client can run the bundle.
    Returns what it took on the wire, the last two messages apart: what `costs.preparation_traffic` says.
    """
    channel, preparer.scratch = preparer.channel, store.directory
    writers: list[BundleWriter] = []
    before = channel.traffic
    try:
        prepared = preparer.prepare(len(bundle_ids), progress)
        traffic = channel.traffic - before
        spent, names = _bytes(traffic) // len(bundle_ids), bytes.fromhex("".join(bundle_ids))
        with contextlib.ExitStack() as stack:
            for bundle_id, one in zip(bundle_ids, prepared, strict=True):
                writers.append(store.add(bundle_id, plan.digest, one.seed, spent=spent, owner=owner))
                stack.enter_context(writers[-1])
                for piece in one.packed():
                    writers[-1].write(piece)
                writers[-1].seal()
            if preparer.party == CLIENT:
                channel.exchange([names], 0)
                _confirmed(channel.exchange([], len(names)), names)
            else:
                _confirmed(channel.exchange([], len(names)), names)
                for writer in writers:
                    writer.commit()
                channel.exchange([names], 0)
    except PeerGaveUp as error:
        raise PeerError("the server could not store its part of the bundle: its disk may be full") from error
    except BaseException as error:
        if isinstance(error, ConfigurationError) and preparer.party != CLIENT:
            channel.give_up(_PARTING_SECONDS)  # the client, which waits for this side's word, is told
        channel.close()
        for writer in writers:
            writer.retract()  # a bundle that had the same id before stays
        if isinstance(error, CometError | KeyboardInterrupt | SystemExit):
            raise
        if preparer.party != CLIENT:  # nobody has foreseen it: its operator is told where it was
            _log.error("an error while preparing a bundle", exc_info=error)
        raise PeerError("the preparation of a bundle failed; nothing of it is kept") from error
    return traffic


def _bytes(traffic: Traffic) -> int:
    return traffic.sent + traffic.received


def _confirmed(data: memoryview, names: bytes) -> None:
    if data.tobytes() != names:
        raise PeerError("the other side has prepared another bundle; nothing of it is kept")
