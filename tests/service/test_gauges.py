"""What a server measures of its bundles: by size and by owner, without a name, and with few labels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from comet_mpc.models.served import ServedModel
from comet_mpc.net.expiry import expiry_gauges
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.metrics import Gauge
from comet_mpc.offline.header import owned_by
from comet_mpc.offline.sources import PAIR
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.hosting.gauges import server_gauges

Samples = dict[tuple[str, ...], float]


def deployed(model: ServedModel, identities: dict[str, TlsIdentity], state: Path, **limits: int) -> Deployment:
    return Deployment(model, PAIR, identities["server"], state, ServiceLimits(**limits))  # type: ignore[arg-type]


def stored(deployment: Deployment, owner: str, size: int, digest: str = "0" * 64) -> None:
    with deployment.store.add(new_bundle_id(), digest, os.urandom(16), owner=owner) as writer:
        writer.write(bytes(size))


def measured(deployment: Deployment) -> dict[str, Samples]:
    found: list[Gauge] = list(server_gauges(Catalogue({"model": deployment}), 2))
    return {one.name: {tuple(labels.values()): value for labels, value in one.samples} for one in found}


def test_the_largest_owners_are_told_apart_and_the_rest_is_one(
    tiny_model: ServedModel, identities: dict[str, TlsIdentity], tmp_path: Path
) -> None:
    own = deployed(tiny_model, identities, tmp_path)
    for number in range(13):
        stored(own, f"client-{number}", 1000 * (number + 1))
    stored(own, "client-12", 5)
    found = measured(own)
    owners = found["owner_bundles"]
    assert list(found["bundle_owners"].values()) == [13]
    assert len(owners) == 11
    assert owners["others",] == 3  # client-0 to client-2
    assert owners[own.pseudonym(owned_by("client-12")),] == 2
    total = sum(one.size for one in own.store.kept())
    assert sum(found["owner_bundle_bytes"].values()) == sum(found["bundle_bytes"].values()) == total
    assert sum(owners.values()) == sum(found["bundles"].values()) == next(iter(found["bundles_ready"].values())) == 14
    assert not any("client" in label for samples in found.values() for labels in samples for label in labels)


def test_a_size_is_told_once_it_is_planned(
    tiny_model: ServedModel, identities: dict[str, TlsIdentity], tmp_path: Path
) -> None:
    own = deployed(tiny_model, identities, tmp_path)
    stored(own, "alice", 10, own.programs.plan(2, 16).digest)
    stored(own, "alice", 10, "f" * 64)
    assert measured(own)["bundles"] == {("model", "2", "16"): 1, ("model", "other", "other"): 1}
    again = deployed(tiny_model, identities, tmp_path)  # from the plans that are kept
    assert measured(again)["bundles"] == {("model", "2", "16"): 1, ("model", "other", "other"): 1}


def test_a_pseudonym_stays_with_a_server_and_cannot_be_guessed_from_the_name(
    tiny_model: ServedModel, identities: dict[str, TlsIdentity], tmp_path: Path
) -> None:
    first = deployed(tiny_model, identities, tmp_path / "first")
    again = deployed(tiny_model, identities, tmp_path / "first")
    other = deployed(tiny_model, identities, tmp_path / "other")
    names = [one.pseudonym(owned_by("alice")) for one in (first, again, other)]
    assert names[0] == names[1] != names[2]
    assert first.pseudonym(owned_by("bob")) != names[0]


def test_what_is_evicted_is_counted(
    tiny_model: ServedModel, identities: dict[str, TlsIdentity], tmp_path: Path
) -> None:
    own = deployed(tiny_model, identities, tmp_path, client_bundles=2)
    for _ in range(5):
        stored(own, "alice", 10)
    assert own.counters.total("bundles_evicted_total") == 3


def test_expiry_is_that_of_the_files_as_they_are(identities: dict[str, TlsIdentity], tmp_path: Path) -> None:
    own = identities["server"]
    gauges = {one.name: one.samples for one in expiry_gauges(own)}
    ends = {labels["certificate"]: end for labels, end in gauges["certificate_expiry_timestamp_seconds"]}
    assert ends.keys() == {"own", "authority"}
    assert ends["own"] == pytest.approx(Path(own.certificate).stat().st_mtime + 365 * 86_400, abs=2 * 86_400)
    missing = TlsIdentity(tmp_path / "none.pem", own.key, own.authority)
    gauges = {one.name: one.samples for one in expiry_gauges(missing)}
    assert [labels for labels, _ in gauges["certificate_expiry_timestamp_seconds"]] == [{"certificate": "authority"}]
