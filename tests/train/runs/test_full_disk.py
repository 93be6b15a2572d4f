"""A full disk is a one-line error, and the run can be resumed."""

import contextlib
import os
import subprocess

import pytest
from tests.train.runs.run_files import RESUME, START, contents

pytestmark = pytest.mark.usefixtures("cache")


def test_a_file_size_limit_is_one_line(byov_train, refused, tiny, reference, run):
    largest = (reference / "model.safetensors").stat().st_size * 2  # less than a checkpoint
    assert "step-000000004.safetensors: File too large" in refused(*START, *tiny, largest_file=largest, code=1)
    assert list((run / "checkpoint").iterdir()) == []
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)


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
@pytest.mark.parametrize("point", [("metrics.jsonl", 2), ("step-", 2), ("model-last.safetensors", 1)])
def test_a_full_disk_is_one_line(start_train, byov_train, tiny, reference, run, disk, point):
    command = start_train(*START, *tiny, pause_before=point)
    assert command.paused()
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    ran = command.finish()
    assert (ran.code, ran.out) == (1, "")
    assert "No space left on device" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    (disk / "filler").unlink()
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)
