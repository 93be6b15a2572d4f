"""Progress when standard error is not a terminal."""

import pytest

from byov.cli import terminal
from byov.cli.terminal import PROGRESS


@pytest.fixture
def lines(capsys):
    return lambda: capsys.readouterr().err.splitlines()


def test_short_tasks_print_nothing(lines):
    with PROGRESS.bar("reading", unit="video", total=2) as bar:
        bar.advance(latest="a")
        bar.advance(0)
    assert lines() == []


def test_long_tasks_print_lines(lines, monkeypatch):
    monkeypatch.setattr(terminal, "LOG_INTERVAL_SECONDS", 1e-9)
    with (
        PROGRESS.bar("videos", unit="video", total=4, done=1) as videos,
        PROGRESS.bar("frames", unit="frame", brief=True) as frames,
    ):
        frames.advance(20)
        videos.advance(latest="a\x1b[2J")
    frame_line, video_line, last_line = lines()
    assert frame_line.startswith("frames: 20frame [")
    for line in (video_line, last_line):
        assert line.startswith("videos:  50%")
        assert "2/4" in line
        assert "a\\x1b[2J" in line


@pytest.mark.parametrize("brief", [False, True])
def test_result_is_printed_at_once_unless_brief(lines, brief):
    with PROGRESS.bar("training", unit="step", total=4, brief=brief) as bar:
        bar.advance(latest="loss=1")
        assert lines() == []
        bar.advance(0, latest="val both=0.7")
    assert [line.endswith("val both=0.7]") for line in lines()] == ([] if brief else [True])
