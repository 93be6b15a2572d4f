"""A part of `make chaos`: processes killed at their system calls, or told there that the disk is full."""

import signal
from pathlib import Path

import pytest
from tests.chaos import kills, stages

from byov.cache.atomic import replacing

LACKING = kills.why_not()
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)


@pytest.mark.slow
@pytest.mark.parametrize("over", [False, True], ids=["new", "over"])
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_each_kind_of_file_is_whole_or_not_there(tmp_path, kind, over):
    tally = stages.writing(tmp_path, kind, over=over, most=16)
    assert (tally.tried, tally.half_written, tally.other_end) == (16, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [stages.extraction, stages.training])
@pytest.mark.parametrize("kind", ["kill", "fail"])
def test_a_stage_goes_on_to_the_same_bytes(tmp_path, stage, kind):
    tally = stage(tmp_path, kind, most=4)
    assert (tally.tried, tally.half_written, tally.other_end) == (4, 0, 0)


# --- the harness finds what it looks for


def plainly(folder: Path) -> None:
    """As one should not: a file under its final name from its first byte on."""
    with (folder / "a").open("wb", buffering=0) as file:
        file.write(b"first")
        file.write(b"second")


def with_care(folder: Path) -> None:
    with replacing(folder / "a") as partial:
        partial.write_bytes(b"firstsecond")


def test_what_is_written_under_its_final_name_is_found_half_written(tmp_path):
    whole = {"a": b"firstsecond"}
    tally = kills.try_faults("", "kill", plainly, stages.in_some_version(whole), tmp_path)
    assert tally.half_written > 0


def test_what_is_left_behind_is_found(tmp_path):
    """Without remove_abandoned, temporary files stay."""
    tally = kills.try_faults("", "kill", with_care, stages.in_some_version({"a": b"firstsecond"}), tmp_path)
    assert tally.half_written == 0
    assert tally.other_end > 0


def test_a_fault_comes_at_the_call_it_is_meant_for(tmp_path):
    assert kills.calls_of(plainly, tmp_path) == {"openat": 2, "write": 2}  # one: its standard error
    assert kills.attempt(plainly, tmp_path, "write:signal=KILL:when=2") == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"first"
    assert kills.attempt(plainly, tmp_path, "write:error=ENOSPC:when=1") == 1
    assert (tmp_path / "a").read_bytes() == b""
    assert kills.attempt(plainly, tmp_path) == 0
