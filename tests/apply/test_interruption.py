"""Ctrl-C against the real commands."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("command", ["byov-embed", "byov-align"])
def test_ctrl_c_leaves_nothing_half_done(command, trained, make_video, colours, tmp_path):
    a, b = (make_video(tmp_path / f"{name}.mp4", colours(900)) for name in "ab")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [Path(sys.executable).parent / command, a, b, "--runs-dir", trained / "runs", "-o", tmp_path / "out.mp4"],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(scratch.rglob("*.partial")):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, err
    assert err.splitlines()[-1] == "interrupted; files that were written before are whole"
    assert not list(scratch.rglob("*.h5")) + list(scratch.glob("byov-*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4", "scratch"]
