"""Clients need nothing that only Linux has: one asks a server without it.

It stands in for a client on macOS, which nobody has tried. docs/reference/platforms.md says what is missing there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from comet_mpc.net.authority import issue, revoke
from support.operated import serving

ELSEWHERE = """
import fcntl, os, select, socket, sys
for module, names in {
    os: ["sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open", "splice", "O_TMPFILE",
         "O_PATH", "getrandom", "posix_fadvise", "posix_fallocate", "copy_file_range", "fork"],
    select: ["epoll"],
    socket: ["SOCK_NONBLOCK", "SOCK_CLOEXEC", "accept4"],
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
fcntl.F_FULLFSYNC = 51  # refused here, as by some file systems there

def opened(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "there is no such file system", str(arguments[0]))

sys.addaudithook(opened)
"""
RUN = "from comet_mpc.cli.start import run; run()"


def without_linux(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ELSEWHERE + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "os.sched_getaffinity(0)",
        "os.memfd_create('x')",
        "open('/proc/self/status')",
        "import pathlib; pathlib.Path('/sys/fs').joinpath('cgroup').read_bytes()",
    ],
)
def test_what_only_linux_has_is_not_to_be_had(code: str) -> None:
    assert without_linux(code).returncode == 1


@pytest.mark.service
def test_a_client_asks_without_what_only_linux_has(tmp_path: Path, keys: Path, tiny_checkpoint: Path) -> None:
    """With a list of revoked certificates, which OpenSSL reads from a file."""
    own = tmp_path / "keys"
    shutil.copytree(keys, own)
    issue(own, "gone", "client")
    revoke(own, "gone")
    with serving(own, tmp_path / "state", str(tiny_checkpoint)) as server:
        options = ["--keys", str(own), "--cache", str(tmp_path / "cache"), "--json", "-"]
        done = without_linux(RUN, "query", server.address, "the film is good", "--ready", "1", *options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["label"]
        assert list((tmp_path / "cache").rglob("*.bundle"))
        refused = without_linux(RUN, "query", server.address, "the film is good", "--name", "gone", *options)
        assert refused.returncode != 0
        assert "revoked" in refused.stderr
