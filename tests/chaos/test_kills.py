"""Subset of `make chaos`: kill processes at a system call, or make a system call fail."""

import signal
from pathlib import Path

import pytest
from tests.chaos import kills
from tests.processes import skip_or_fail

from byov.cache.atomic import replacing


@pytest.fixture(scope="module", autouse=True)
def strace():
    if reason := kills.why_not():
        skip_or_fail(reason)


@pytest.mark.slow
@pytest.mark.parametrize("over", [False, True], ids=["new", "over"])
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_each_kind_of_file_is_whole_or_missing(tmp_path, kind, over):
    tally = kills.writing(tmp_path, kind, over=over, most=16)
    assert (tally.tried, tally.half_written, tally.other_end) == (16, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [kills.extraction, kills.training])
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_interrupted_work_leads_to_the_same_files(tmp_path, stage, kind):
    tally = stage(tmp_path, kind, most=4)
    assert (tally.tried, tally.half_written, tally.other_end) == (4, 0, 0)


# --- the harness itself


def write_directly(folder: Path) -> None:
    """Write a file directly under its final name, which is not atomic."""
    with (folder / "a").open("wb", buffering=0) as file:
        file.write(b"first")
        file.write(b"second")


def write_atomically(folder: Path) -> None:
    with replacing(folder / "a") as partial:
        partial.write_bytes(b"firstsecond")


def test_half_written_file_is_found(tmp_path):
    whole = {"a": b"firstsecond"}
    tally = kills.try_faults("", "kill", write_directly, kills.unlike(whole), tmp_path)
    assert tally.half_written > 0


def test_leftover_temporary_file_is_found(tmp_path):
    """Do not call `remove_abandoned`, so that a temporary file remains."""
    tally = kills.try_faults(
        "", "kill", write_atomically, kills.unlike({"a": b"firstsecond"}), tmp_path
    )
    assert tally.half_written == 0
    assert tally.other_end > 0


def test_fault_happens_at_its_call(tmp_path):
    # One openat is for /dev/null.
    assert kills.calls_of(write_directly, tmp_path) == {"openat": 2, "write": 2}
    assert kills.attempt(write_directly, tmp_path, "write:signal=KILL:when=2") == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"first"
    assert kills.attempt(write_directly, tmp_path, "write:error=ENOSPC:when=1") == 1
    assert (tmp_path / "a").read_bytes() == b""
    assert kills.attempt(write_directly, tmp_path) == 0
