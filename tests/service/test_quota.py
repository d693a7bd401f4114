"""Queries of a day: counted for each certificate, by all workers together, and also after a restart."""

from __future__ import annotations

import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.errors import ConfigurationError, QuotaExceeded
from comet_mpc.net.authority import issue
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service.client import Client
from comet_mpc.service.quota import Quota
from support.processes import server_process
from support.waiting import PATIENCE

DAY = 86_400.0
NOON = 20_000.5 * DAY  # 2024-10-04 12:00 UTC
TEXT = "the film is good"


class Time:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def test_texts_are_counted_by_name_and_day(tmp_path: Path) -> None:
    time = Time()
    quota = Quota(tmp_path, 10, time)
    quota.charge("alice", 8)
    quota.check("alice", 2)
    with pytest.raises(QuotaExceeded, match=r"10 texts a day.* 2 of them are left.*2024-10-05 00:00 UTC.*fewer texts"):
        quota.charge("alice", 4)
    quota.charge("alice", 2)
    for ask in (quota.check, quota.charge):
        with pytest.raises(QuotaExceeded, match=r"ask again at 2024-10-05 00:00 UTC$"):
            ask("alice", 1)
    quota.charge("bob", 10)
    time.now += DAY / 2
    quota.charge("alice", 10)


def test_a_restart_and_a_clock_that_is_put_back_give_nobody_more(tmp_path: Path) -> None:
    time = Time()
    Quota(tmp_path, 3, time).charge("alice", 3)
    again = Quota(tmp_path, 3, time)
    for moved in (0.0, -10 * DAY):
        time.now = NOON + moved
        with pytest.raises(QuotaExceeded, match="2024-10-05"):
            again.charge("alice", 1)
    Quota(tmp_path, 4, time).charge("alice", 1)  # the operator may raise it


def test_workers_share_the_count(tmp_path: Path) -> None:
    quotas = [Quota(tmp_path, 50, Time()) for _ in range(4)]

    def ask(place: int) -> bool:
        try:
            quotas[place % 4].charge("alice", 1)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(80))) == 50


def test_without_a_limit_nothing_is_written(tmp_path: Path) -> None:
    quota = Quota(tmp_path / "queries", 0)
    quota.check("alice", 10**9)
    quota.charge("alice", 10**9)
    assert not (tmp_path / "queries").exists()
    with pytest.raises(ConfigurationError):
        Quota(tmp_path, -1)


def test_a_count_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    quota = Quota(tmp_path, 5, Time())
    quota.charge("../../etc/passwd", 5)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(b"{}")
    with pytest.raises(ConfigurationError, match="ask its operator"):
        quota.charge("../../etc/passwd", 1)


@pytest.mark.service
def test_a_server_holds_each_certificate_to_its_queries(
    keys: Path, shared_dealer: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Over TLS, with two workers, through a restart; and a refusal costs no more than itself."""
    own = shutil.copytree(keys, tmp_path / "keys")
    issue(own, "bob", "client", [])
    alice, bob = (TlsIdentity.find(own, "client"), TlsIdentity(own / "bob.pem", own / "bob.key", own / "authority.pem"))

    def ask(address: str, identity: TlsIdentity, texts: int) -> int:
        with Client(address, identity=identity, cache=tmp_path / str(id(identity)), ready=0, batch=1) as client:
            return len(client.classify([TEXT] * texts))

    options: dict[str, Any] = {"limits": {"queries_per_day": 2}, "workers": 2}
    with server_process(own, tiny_checkpoint, shared_dealer, tmp_path / "state", **options) as server:
        assert ask(server.address, alice, 2) == 2
        with pytest.raises(QuotaExceeded, match=r"2 texts a day.*ask again at"):
            ask(server.address, alice, 1)
        assert ask(server.address, bob, 1) == 1
        event = server.logged("a request was refused", error="QuotaExceeded")
        assert event["request"] == "Prepare"  # before anything is prepared for it
        text = urllib.request.urlopen(server.metrics, timeout=PATIENCE).read().decode()
        assert 'comet_refusals_total{reason="quota"} 1' in text
        assert 'comet_errors_total{class="QuotaExceeded"} 1' in text
    with server_process(own, tiny_checkpoint, shared_dealer, tmp_path / "state", **options) as server:
        with pytest.raises(QuotaExceeded):
            ask(server.address, alice, 1)
        assert ask(server.address, bob, 1) == 1
