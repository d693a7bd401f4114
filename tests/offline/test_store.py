"""Bundles on disk: complete or invisible, taken once, also across crashes and processes."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from comet_mpc.engine.correlations import BitProducts, Correlation, Mask, encode_correlations, program_digest
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import ConfigurationError, ForeignRandomness, RandomnessDamaged, RandomnessError, RandomnessSpent
from comet_mpc.offline.header import Header
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore, new_bundle_id
from support.waiting import PATIENCE

PROGRAM: tuple[Correlation, ...] = (Mask((100,), 64), BitProducts(100, 64))
DIGEST = program_digest(PROGRAM)
OTHER: tuple[Correlation, ...] = (BitProducts(100, 64),)
SEED = b"a seed, 16 bytes"
CORRECTIONS = bytes(range(200)) * 4


@pytest.fixture
def store(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "bundles", SERVER, DEALER)


def put(store: BundleStore, digest: str = DIGEST, seed: bytes = SEED) -> str:
    name = new_bundle_id()
    with store.add(name, digest, seed) as writer:
        if store.party == SERVER:
            writer.write(CORRECTIONS[:300])
            writer.write(memoryview(CORRECTIONS)[300:])
    return name


def test_what_is_taken_is_what_was_put(store: BundleStore) -> None:
    name = put(store)
    store.verify(name)
    bundle = store.take(name, DIGEST, PROGRAM)
    assert (bundle.party, bundle.seed, bundle.correlations) == (SERVER, SEED, PROGRAM)
    assert bundle.stored is not None
    assert bundle.stored.read(10) + bundle.stored.read(10_000) == CORRECTIONS
    assert bundle.stored.read(1) == b""
    assert not any(store.directory.iterdir())


def test_a_clients_bundle_is_a_seed(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles", CLIENT, DEALER)
    bundle = store.take(put(store), DIGEST, PROGRAM)
    assert (bundle.party, bundle.seed) == (CLIENT, SEED)
    assert bundle.stored is not None
    assert bundle.stored.read(1) == b""
    name = new_bundle_id()
    with store.add(name, DIGEST, SEED) as writer:
        writer.write(b"x")
    with pytest.raises(RandomnessError, match="has 1 bytes, the program needs 0"):
        store.take(name, DIGEST, PROGRAM)


def test_a_bundle_is_gone_from_the_directory_before_it_is_handed_out(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(store)
    events = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        events.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), store._path(name).exists()))

    monkeypatch.setattr(os, "fsync", watched)
    store.take(name, DIGEST, PROGRAM)
    assert events
    assert all(is_directory and not exists for is_directory, exists in events)


@pytest.fixture
def on_disk(store: BundleStore, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names that the store's directory is sure to have after a crash: those at its last fsync."""
    names, fsync = set[str](), os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            names.clear()
            names.update(os.listdir(descriptor))

    monkeypatch.setattr(os, "fsync", watched)
    return names


def test_after_every_step_the_disk_has_what_the_directory_has(store: BundleStore, on_disk: set[str]) -> None:
    """Else a crash brings a name back, `.taken-…` too: a file with a seed and masks that have been sent."""
    first, second = put(store), put(store)
    assert on_disk == {f"{first}.bundle", f"{second}.bundle"}
    store.take(first, DIGEST, PROGRAM)
    assert on_disk == {f"{second}.bundle"}
    store.discard(second)
    assert on_disk == set()
    (store.directory / f".taken-{first}-0").write_bytes(b"remains")
    BundleStore(store.directory, SERVER, DEALER)
    assert on_disk == set()
    with store.add(new_bundle_id(), DIGEST, SEED) as writer:
        writer.write(CORRECTIONS)
        writer.commit()
        assert len(on_disk) == 1
        writer.retract()
    assert on_disk == set()


def test_a_bundle_leaves_the_disk_before_its_seed_is_read(
    store: BundleStore, on_disk: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then may it be handed out: the header that is looked at before is thrown away."""
    name = put(store)
    read, seen = Header.read, list[set[str]]()

    def watched(file: BinaryIO, bundle_id: str) -> Header:
        seen.append(set(on_disk))
        return read(file, bundle_id)

    monkeypatch.setattr(Header, "read", staticmethod(watched))
    store.take(name, DIGEST, PROGRAM)
    assert seen == [{f"{name}.bundle"}, set()]


def test_a_bundle_is_taken_once(store: BundleStore) -> None:
    name = put(store)
    store.take(name, DIGEST, PROGRAM)
    for taken in (name, new_bundle_id()):
        with pytest.raises(RandomnessSpent):
            store.take(taken, DIGEST, PROGRAM)


def test_another_programs_bundle_is_refused_and_kept(store: BundleStore) -> None:
    name = put(store)
    with pytest.raises(ForeignRandomness, match="another program"):
        store.take(name, program_digest(OTHER), OTHER)
    assert store.list(DIGEST) == (name,)
    assert store.list(program_digest(OTHER)) == ()
    store.take(name, DIGEST, PROGRAM)


def test_a_bundle_of_the_other_party_is_refused(store: BundleStore) -> None:
    name = put(store)
    client = BundleStore(store.directory, CLIENT, DEALER)
    assert client.list(DIGEST) == ()
    with pytest.raises(ForeignRandomness, match="another bundle"):
        client.take(name, DIGEST, PROGRAM)


def test_a_bundle_under_another_name_is_refused(store: BundleStore) -> None:
    """A copy under a new name would be a second use."""
    name, copy = put(store), new_bundle_id()
    (store.directory / f"{copy}.bundle").write_bytes((store.directory / f"{name}.bundle").read_bytes())
    with pytest.raises(ForeignRandomness, match="another bundle"):
        store.take(copy, DIGEST, PROGRAM)
    assert store.list(DIGEST) == (name,)


@pytest.mark.parametrize("place", [0, 8, 20, 60, 70, 90, 140])
def test_a_damaged_header_is_refused(store: BundleStore, place: int) -> None:
    name = put(store)
    path = store.directory / f"{name}.bundle"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(RandomnessDamaged, match="damaged"):
        store.take(name, DIGEST, PROGRAM)
    assert store.list(DIGEST) == ()
    assert not path.exists()


@pytest.mark.parametrize("change", [-1, 1, -len(CORRECTIONS), -len(CORRECTIONS) - 1])
def test_a_wrong_length_is_refused(store: BundleStore, change: int) -> None:
    name = put(store)
    path = store.directory / f"{name}.bundle"
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(RandomnessError, match="damaged"):
        store.take(name, DIGEST, PROGRAM)


def test_a_damaged_correction_is_found_by_verify(store: BundleStore) -> None:
    name = put(store)
    with (store.directory / f"{name}.bundle").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(RandomnessError, match="does not check"):
        store.verify(name)


@pytest.mark.parametrize("place", [-800, -300, -1])
def test_a_damaged_correction_is_found_before_the_last_one_is_handed_out(store: BundleStore, place: int) -> None:
    name = put(store)
    path = store.directory / f"{name}.bundle"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    bundle = store.take(name, DIGEST, PROGRAM)
    assert bundle.stored is not None
    bundle.stored.read(len(CORRECTIONS) - 1)
    with pytest.raises(RandomnessDamaged, match="does not check"):
        bundle.stored.read(1)
    assert not any(store.directory.iterdir())


def test_a_bundle_that_the_disk_cannot_read_is_a_damaged_one(store: BundleStore) -> None:
    bundle = store.take(put(store), DIGEST, PROGRAM)
    assert bundle.stored is not None

    def failing(size: int) -> bytes:
        raise OSError(5, "Input/output error")

    bundle.stored._file = SimpleNamespace(read=failing, close=bundle.stored.close)  # type: ignore[attr-defined]
    with pytest.raises(RandomnessDamaged, match="cannot be read: Input/output error"):
        bundle.stored.read(1)


def test_too_few_corrections_for_the_program_are_refused(store: BundleStore) -> None:
    name = new_bundle_id()
    with store.add(name, DIGEST, SEED) as writer:
        writer.write(CORRECTIONS[:-1])
    with pytest.raises(RandomnessError, match="799 bytes"):
        store.take(name, DIGEST, PROGRAM)


def test_half_a_bundle_is_never_visible(store: BundleStore) -> None:
    name = new_bundle_id()
    writer = store.add(name, DIGEST, SEED)
    writer.write(CORRECTIONS)
    assert store.list(DIGEST) == ()
    writer.seal()
    assert store.list(DIGEST) == ()
    BundleStore(store.directory, SERVER, DEALER)  # does not sweep away what is being written
    writer.commit()
    assert store.list(DIGEST) == (name,)
    writer.discard()
    assert store.list(DIGEST) == (name,)


def test_an_error_while_writing_leaves_nothing(store: BundleStore) -> None:
    def fail() -> None:
        with store.add(new_bundle_id(), DIGEST, SEED) as writer:
            writer.write(CORRECTIONS)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not any(store.directory.iterdir())


def test_an_id_is_stored_once(store: BundleStore) -> None:
    name = put(store)
    with pytest.raises(RandomnessError, match="already"), store.add(name, DIGEST, bytes(16)) as writer:
        writer.write(CORRECTIONS)
    assert store.take(name, DIGEST, PROGRAM).seed == SEED
    assert not any(store.directory.iterdir())


def test_remains_of_a_crash_are_removed(store: BundleStore) -> None:
    name = put(store)
    for prefix in (".writing-", ".taken-"):
        (store.directory / f"{prefix}{new_bundle_id()}").write_bytes(b"remains")
    BundleStore(store.directory, SERVER, DEALER)
    assert [path.name for path in store.directory.iterdir()] == [f"{name}.bundle"]


def test_bundles_are_listed_oldest_first_and_can_be_discarded(store: BundleStore) -> None:
    names = [put(store) for _ in range(3)]
    for age, name in enumerate(names):
        os.utime(store.directory / f"{name}.bundle", (1000 - age, 1000 - age))
    assert store.list(DIGEST) == tuple(reversed(names))
    store.discard(names[0])
    store.discard(names[0])
    assert store.list(DIGEST) == (names[2], names[1])


def test_modes_keep_others_out(store: BundleStore, tmp_path: Path) -> None:
    name = put(store)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.directory / f"{name}.bundle").stat().st_mode) == 0o600
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        BundleStore(tmp_path / "open", SERVER, DEALER)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot use"):
        BundleStore(tmp_path / "file", SERVER, DEALER)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "F" * 32, "0" * 31, "0" * 33, "0" * 31 + "\n"])
def test_an_id_is_hexadecimal_and_nothing_else(store: BundleStore, name: str) -> None:
    for action in (
        lambda: store.add(name, DIGEST, SEED),
        lambda: store.take(name, DIGEST, PROGRAM),
        lambda: store.verify(name),
        lambda: store.discard(name),
    ):
        with pytest.raises(ForeignRandomness, match="32 hexadecimal"):
            action()


def test_a_seed_is_not_printed(store: BundleStore) -> None:
    writer = store.add(new_bundle_id(), DIGEST, SEED)
    assert repr(SEED)[2:-1] not in repr(writer._header) + repr(writer)
    writer.discard()


# Several processes. Each use appends the bundle's seed to a log with one write, as a query would send a mask.

_USER = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from comet_mpc.engine.correlations import decode_correlations, program_digest
from comet_mpc.errors import RandomnessSpent
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore
directory, log = sys.argv[1:3]
program = tuple(decode_correlations(sys.argv[3].encode()))
digest = program_digest(program)
store = BundleStore(Path(directory), 1, DEALER)
uses = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
print("ready", flush=True)
sys.stdin.readline()
for name in store.list(digest):
    try:
        bundle = store.take(name, digest, program)
    except RandomnessSpent:
        continue
    os.write(uses, bundle.seed.hex().encode() + b"\\n")
    assert len(bundle.stored.read(10_000)) == 800
print("over", flush=True)
"""


def start_user(store: BundleStore, log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _USER, str(store.directory), str(log), encode_correlations(PROGRAM).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=PATIENCE)


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(count)]


@pytest.mark.service
def test_of_several_processes_one_gets_each_bundle(store: BundleStore, tmp_path: Path) -> None:
    seeds = numbered(150)
    for seed in seeds:
        put(store, seed=seed)
    log = tmp_path / "uses"
    users = [start_user(store, log) for _ in range(3)]
    for user in users:
        wait_ready(user)
    for user in users:
        go(user)
    for user in users:
        finish(user)
        assert user.returncode == 0
    uses = log.read_text().split()
    assert sorted(uses) == sorted(seed.hex() for seed in seeds)


@pytest.mark.service
def test_a_killed_process_never_leads_to_a_second_use(store: BundleStore, tmp_path: Path) -> None:
    """SIGKILL at random moments of taking and using, and the next process goes on with what is left."""
    generator = random.Random(11)
    seeds = numbered(400)
    for seed in seeds:
        put(store, seed=seed)
    log = tmp_path / "uses"
    log.touch()
    killed = 0
    waiting = [start_user(store, log) for _ in range(8)]
    for round_number, user in enumerate(waiting):
        wait_ready(user)
        go(user)
        if round_number < len(waiting) - 1:
            enough = log.stat().st_size + generator.randint(0, 30) * 33
            while log.stat().st_size < enough and user.poll() is None:
                pass
            for _ in range(generator.randint(0, 500)):  # and a random moment more
                log.stat()
            user.send_signal(signal.SIGKILL)
        finish(user)
        killed += user.returncode == -signal.SIGKILL
    uses = Counter(log.read_text().split())
    assert max(uses.values()) == 1
    assert killed >= 2
    # A kill between consuming and using loses that bundle, and no other.
    assert len(seeds) - killed <= len(uses) <= len(seeds)
    assert store.list(DIGEST) == ()
    BundleStore(store.directory, SERVER, DEALER)
    assert not any(store.directory.iterdir())


def test_a_full_disk_is_named_before_anything_is_prepared(store: BundleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.check_disk(1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 19))
    with pytest.raises(ConfigurationError, match="the disk of the server is full"):
        store.check_disk(1000)


def test_a_directory_that_is_lost_is_named_before_anything_is_prepared(tmp_path: Path) -> None:
    for party, name in ((SERVER, "the state directory of the server"), (CLIENT, "cache")):
        store = BundleStore(tmp_path / "cache", party, DEALER)
        store.directory.rmdir()
        with pytest.raises(ConfigurationError, match=f"{name} is not writable") as refused:
            store.check_disk(1)
        assert (str(tmp_path) in str(refused.value)) == (party == CLIENT)  # a client does not learn the server's paths


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ConfigurationError, match="not writable"):
        BundleStore(tmp_path / "bundles", SERVER, DEALER)
