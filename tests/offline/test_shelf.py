"""What a store drops to make room: never another's, as long as somebody has more than its share."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine.share import SERVER
from comet_mpc.offline.shelf import Kept, Shelf, forget_unused
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore

ALICE, BOB = b"alice", b"bob"


def kept(owner: bytes, *sizes: int, first: int = 0) -> list[Kept]:
    return [Kept(f"{owner.decode()}-{place}", owner, size, first + place) for place, size in enumerate(sizes)]


def test_whoever_has_more_than_its_share_loses_its_own_oldest() -> None:
    shelf = Shelf(most_bytes=1000, bytes_per_owner=100, per_owner=3)
    assert shelf.outgoing(kept(ALICE, 40, 40), 30, ALICE) == ["alice-0"]
    assert shelf.outgoing(kept(ALICE, 1, 1, 1), 1, ALICE) == ["alice-0"]
    assert shelf.outgoing(kept(ALICE, 40, 40), 30, BOB) == []


def test_a_client_that_prepares_a_lot_pushes_out_nobody_elses() -> None:
    shelf = Shelf(most_bytes=100, bytes_per_owner=80, per_owner=100)
    stored = [*kept(BOB, 30), *kept(ALICE, 10, 10, 10, 10, 10, 10, first=1)]  # Bob's is the oldest
    for _ in range(20):
        gone = shelf.outgoing(stored, 10, ALICE)
        assert "bob-0" not in gone
        stored = [one for one in stored if one.bundle_id not in gone]
        stored += [Kept(f"new-{len(stored)}-{stored[-1].stored}", ALICE, 10, stored[-1].stored + 1)]
    assert shelf.outgoing(stored, 20, BOB)[0].startswith(("alice", "new"))


def test_when_the_whole_store_is_full_the_largest_clients_oldest_bundle_is_evicted() -> None:
    """Whoever is preparing, as docs/how-to/serve.md says: also if nobody has more than its share."""
    shelf = Shelf(most_bytes=100, bytes_per_owner=80, per_owner=100)
    stored = [*kept(BOB, 10, 10), *kept(ALICE, 40, 40, first=2)]  # Bob's are the oldest
    assert shelf.outgoing(stored, 10, BOB) == ["alice-0"]
    assert shelf.outgoing(stored, 10, b"carol") == ["alice-0"]
    assert shelf.outgoing([*kept(BOB, 50), *kept(ALICE, 50, first=1)], 10, b"carol") == ["bob-0"]


@given(
    st.lists(st.tuples(st.sampled_from([ALICE, BOB, b"carol"]), st.integers(1, 50)), max_size=12),
    st.integers(1, 60),
    st.integers(60, 200),
)
def test_there_is_room_afterwards(found: list[tuple[bytes, int]], needed: int, most: int) -> None:
    stored = [Kept(str(place), owner, size, place) for place, (owner, size) in enumerate(found)]
    shelf = Shelf(most, bytes_per_owner=60, per_owner=4)
    left = [one for one in stored if one.bundle_id not in shelf.outgoing(stored, needed, ALICE)]
    assert needed + sum(one.size for one in left) <= most
    own = [one for one in left if one.owner == ALICE]
    assert len(own) < 4
    assert needed + sum(one.size for one in own) <= 60


def test_a_store_that_was_not_used_for_long_is_removed_unless_somebody_works_with_it(tmp_path: Path) -> None:
    stores = {name: BundleStore(tmp_path / f"bundles-{name}", SERVER, DEALER) for name in ("old", "busy", "new")}
    (tmp_path / "other").mkdir()
    with stores["busy"]._directory():
        for name in ("bundles-old", "bundles-busy", "other"):
            os.utime(tmp_path / name, (0, 0))
        assert forget_unused(tmp_path, "bundles-*", 60.0) == [tmp_path / "bundles-old"]
    assert {path.name for path in tmp_path.iterdir()} == {"bundles-busy", "bundles-new", "other"}
    BundleStore(tmp_path / "bundles-busy", SERVER, DEALER)  # whoever opens it uses it
    assert forget_unused(tmp_path, "bundles-*", 60.0) == []
