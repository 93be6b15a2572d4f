"""No room for what a run writes."""

import contextlib
import os
import subprocess

import pytest

START = ("--ratio", 0.3, "--run", "toy")
RESUME = ("--run", "toy", "--resume")

pytestmark = pytest.mark.usefixtures("cache")


def test_a_file_that_grows_too_large_is_one_line_and_the_run_goes_on_later(
    byov_train, refused, tiny, reference, contents, run
):
    """A limit on file size stops the writing of a checkpoint as a full disk does."""
    largest = (reference / "model.safetensors").stat().st_size * 2
    message = refused(*START, *tiny, largest_file=largest, code=1)
    assert message.endswith("step-000000004.safetensors: File too large")
    assert list((run / "checkpoint").iterdir()) == []
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)


def fill(path):
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MiB at tmp_path/runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.parametrize("point", ["metrics.jsonl", "step-", "model-last.safetensors"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
    start_train, byov_train, tiny, reference, contents, run, disk, point
):
    command = start_train(*START, *tiny, pause_before=(point, 1 if point.startswith("model") else 2))
    assert command.paused()
    fill(disk / "filler")
    ran = command.finish()
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1].startswith("error: ")
    assert "No space left on device" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    (disk / "filler").unlink()
    again = byov_train(*RESUME)
    assert again.code == 0, again
    assert contents(run) == contents(reference)
