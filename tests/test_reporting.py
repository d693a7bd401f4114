"""What is skipped is said at the end, and fails the run where it may not be."""

from __future__ import annotations

import pytest

from support.reporting import group_of, unexpected

SKIPS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_training(number):
    pytest.skip("the extra [train] is not installed (torch)")

@pytest.mark.skipif(True, reason="ray is not installed")
def test_cluster():
    pass
"""


@pytest.mark.parametrize(("reason", "name"), [
    ("the extra [train] is not installed (torch)", "train"),
    ("crypten is not installed: see comet_research/crypten.py", "crypten"),
    ("set COMET_GLUE to a directory of GLUE TSV files", "data"),
    ("needs curl", "machine"),
    ("not today", ""),
])  # fmt: skip
def test_a_skip_has_a_name_by_what_is_missing(reason: str, name: str) -> None:
    assert group_of(reason) == name
    assert unexpected(iter([reason]), None) == set()
    assert unexpected(iter([reason]), "cluster") == {reason}
    assert unexpected(iter([reason]), f"cluster,{name}") == (set() if name else {reason})


@pytest.mark.parametrize(("options", "code"), [
    ([], 0),
    (["--only-skip", "train,cluster"], 0),
    (["--only-skip", "cluster"], 1),
    (["--only-skip", ""], 1),
])  # fmt: skip
def test_skips_are_counted_by_reason_and_may_fail_the_run(
    pytester: pytest.Pytester, options: list[str], code: int
) -> None:
    pytester.makepyfile(SKIPS)
    done = pytester.runpytest_inprocess("-p", "support.reporting", "-p", "no:cacheprovider", *options)
    assert done.ret == code
    said = done.stdout.str()
    assert "3  " in said
    assert "the extra [train] is not installed (torch)  (test_skips" in said
    assert ("NOT ALLOWED HERE: the extra [train]" in said) == (code == 1)


def test_a_file_that_is_skipped_as_a_whole_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile('import pytest\npytest.importorskip("nothing", reason="the extra [train] is not installed")')
    assert pytester.runpytest_inprocess("-p", "support.reporting", "--only-skip", "cluster").ret == 1
    assert pytester.runpytest_inprocess("-p", "support.reporting", "--only-skip", "train").ret == 5  # no tests


def test_an_unknown_name_of_skips_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="trian"):
        unexpected(iter(()), "trian")


def test_the_costliest_tests_are_shown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_cheap():\n    pass\n\ndef test_dear():\n    sum(range(3_000_000))")
    said = pytester.runpytest_inprocess("-p", "support.reporting", "--cpu", "1").stdout.str()
    assert "test_dear" in said
    assert "test_cheap" not in said
