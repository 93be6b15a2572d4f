"""Ctrl-C against the real commands."""

import signal
import sys
from pathlib import Path

import pytest
from tests.processes import signal_and_end


@pytest.mark.slow
@pytest.mark.parametrize("command", ["byov-embed", "byov-align"])
def test_ctrl_c_leaves_nothing_half_done(command, trained, make_video, colors, start_paused, tmp_path):
    a, b = (make_video(tmp_path / f"{name}.mp4", colors(40)) for name in "ab")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = (Path(sys.executable).parent / command, a, b, "--runs-dir", trained / "runs", "-o", tmp_path / "out.mp4")
    process = start_paused(words, before=".h5", TMPDIR=str(scratch))
    assert list(scratch.rglob("*.h5.*.partial"))
    _, err = signal_and_end(process, signal.SIGINT)
    assert process.returncode == 128 + signal.SIGINT, err
    assert err.splitlines()[-1] == "interrupted; finished output files are complete"
    assert list(scratch.glob("byov-*")) == []  # beside what PyTorch keeps there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4", "scratch"]
