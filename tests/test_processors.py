"""How many cores this process may use, and which threads numeric libraries start."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from comet_mpc.processors import cores, quota, settle_threads

_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


class Groups:
    """Control groups in files, as the kernel shows them."""

    def __init__(self, home: Path) -> None:
        self.membership, self.root = home / "membership", home / "cgroup"

    def belong(self, *lines: str) -> None:
        self.membership.write_text("".join(f"{line}\n" for line in lines))

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")

    @property
    def quota(self) -> float:
        return quota(self.membership, self.root)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_without_control_groups_there_is_no_limit(groups: Groups) -> None:
    assert groups.quota == math.inf
    groups.belong("0::/")
    assert groups.quota == math.inf
    groups.write("cpu.max", "max 100000")
    assert groups.quota == math.inf


def test_a_container_sees_its_own_group(groups: Groups) -> None:
    groups.belong("0::/")
    groups.write("cpu.max", "150000 100000")
    assert groups.quota == 1.5


def test_of_a_group_and_those_above_it_the_smallest_counts(groups: Groups) -> None:
    groups.belong("0::/system.slice/comet-server.service")
    groups.write("system.slice/comet-server.service/cpu.max", "400000 100000")
    assert groups.quota == 4.0
    groups.write("system.slice/cpu.max", "100000 50000")
    assert groups.quota == 2.0
    groups.write("system.slice/comet-server.service/cpu.max", "50000 100000")
    assert groups.quota == 0.5


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpu"])
def test_version_1(groups: Groups, mounted: str) -> None:
    groups.belong("5:memory:/docker/abc", "4:cpu,cpuacct:/docker/abc", "0::/")
    groups.write(f"{mounted}/docker/abc/cpu.cfs_quota_us", "-1")
    groups.write(f"{mounted}/docker/abc/cpu.cfs_period_us", "100000")
    assert groups.quota == math.inf
    groups.write(f"{mounted}/docker/abc/cpu.cfs_quota_us", "300000")
    assert groups.quota == 3.0


def test_a_group_outside_of_what_a_container_sees_counts_by_the_root(groups: Groups) -> None:
    groups.belong("4:cpu:/docker/abc", "0::/../../other")
    groups.write("cpu/cpu.cfs_quota_us", "200000")
    groups.write("cpu/cpu.cfs_period_us", "100000")
    assert groups.quota == 2.0
    groups.write("cpu.max", "100000 100000")
    assert groups.quota == 1.0


@pytest.mark.parametrize("content", ["", "nonsense", "1 2 3", "100000 0", "x 100000"])
def test_what_cannot_be_read_limits_nothing(groups: Groups, content: str) -> None:
    groups.belong("0::/", "", "rubbish")
    groups.write("cpu.max", content)
    assert groups.quota == math.inf


def test_a_process_that_may_use_one_core_uses_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from comet_mpc.processors import cores, settle_threads\n"
        "chosen = {}; settle_threads(chosen); print(cores(), chosen['OMP_NUM_THREADS'])"
    )
    assert _python(code, {}).split() == ["1", "1"]


@pytest.mark.parametrize(("allowed", "used"), [(0.2, 1), (1.5, 2), (1e6, len(os.sched_getaffinity(0)))])
def test_cores_are_those_that_there_is_time_for(allowed: float, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet_mpc.processors.quota", lambda: allowed)
    assert cores() == min(used, len(os.sched_getaffinity(0)))


def test_what_the_environment_says_is_left_as_it_is() -> None:
    chosen: dict[str, str] = {}
    settle_threads(chosen)
    usual = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(cores()), "OMP_WAIT_POLICY": "PASSIVE"}
    assert chosen == usual
    for told, more in (
        ({"OMP_NUM_THREADS": "7"}, {"OMP_WAIT_POLICY": "PASSIVE"}),  # numpy goes by it as well
        ({"OPENBLAS_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": str(cores()), "OMP_WAIT_POLICY": "PASSIVE"}),
        ({"GOTO_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": str(cores()), "OMP_WAIT_POLICY": "PASSIVE"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(cores())}),
        ({"GOMP_SPINCOUNT": "9"}, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(cores())}),
    ):
        chosen = dict(told)
        settle_threads(chosen)
        assert chosen == told | more


def test_the_command_settles_threads_before_numpy_is_loaded() -> None:
    """The choice itself imports nothing of weight: `comet --version` stays quick."""
    code = (
        "import os, sys\n"
        "from comet_mpc.cli import start\n"
        "assert not {'numpy', 'threadpoolctl', 'typer', 'torch'} & set(sys.modules)\n"
        "start.import_module = lambda name: sys.exit(print(os.environ['OPENBLAS_NUM_THREADS']))\n"
        "start.run()"
    )
    assert _python(code, {}).split() == ["1"]


def _numpy_threads(environment: dict[str, str], within: str) -> list[int]:
    code = (
        "import numpy\n"
        "from threadpoolctl import threadpool_info\n"
        "from comet_mpc.threads import small_matrices\n"
        f"with {within}:\n"
        "    print(*(one['num_threads'] for one in threadpool_info() if one['user_api'] == 'blas'))"
    )
    return [int(count) for count in _python(code, environment).split()]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core: nothing to choose")
def test_small_matrices_take_one_thread_unless_somebody_says_otherwise() -> None:
    """For programs that import numpy before this package."""
    assert set(_numpy_threads({}, "small_matrices()")) == {1}
    assert set(_numpy_threads({"OPENBLAS_NUM_THREADS": "2"}, "small_matrices()")) == {2}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core: nothing to choose")
def test_a_model_is_loaded_with_one_thread(tiny_checkpoint: Path) -> None:
    """Its ranges are proved by many small products."""
    code = (
        "from pathlib import Path\n"
        "from threadpoolctl import threadpool_info\n"
        "from comet_mpc.models.served import ServedModel\n"
        "threads = lambda: {one['num_threads'] for one in threadpool_info() if one['user_api'] == 'blas'}\n"
        "seen, before = set(), threads()\n"
        f"ServedModel.load(Path({str(tiny_checkpoint)!r}), told=lambda done, total: seen.update(threads()))\n"
        "assert threads() == before\n"
        "print(*seen)"
    )
    assert _python(code, {}).split() == ["1"]


def _python(code: str, environment: dict[str, str]) -> str:
    bare = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code], env=bare | environment, check=True, capture_output=True, text=True
    ).stdout
