"""Tests of progress and log records, with and without a terminal."""

import io
import logging
import sys

import pytest
from tqdm import tqdm

from byov.cli import terminal
from byov.cli.terminal import PROGRESS, show_log
from byov.progress import NO_PROGRESS, track

LOGGER = logging.getLogger("byov.tests")


@pytest.fixture
def make_terminal(monkeypatch):
    """Replace standard error with a fake terminal and return it.

    Call it in the test, not in a fixture.
    """

    def replace():
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    yield replace
    assert not list(getattr(tqdm, "_instances", []))


def work(progress):
    done = []
    for item in track(range(3), progress, "counting", unit="thing"):
        done.append(item)
        LOGGER.info(f"at {item}\x1b[2J")
    with progress.bar("steps", unit="step", total=5, done=2) as bar:
        bar.advance(3, latest="loss=0.5")
    assert done == [0, 1, 2]


def test_libraries_print_nothing_by_default(capfd):
    work(NO_PROGRESS)
    assert capfd.readouterr() == ("", "")


def test_commands_print_log_records_and_no_bars_without_a_terminal(capfd):
    with show_log():
        work(PROGRESS)
    LOGGER.info("after")
    assert capfd.readouterr() == ("", "at 0\\x1b[2J\nat 1\\x1b[2J\nat 2\\x1b[2J\n")


def test_bars_on_a_terminal(make_terminal):
    stream = make_terminal()
    work(PROGRESS)
    for text in ("counting: 100%", "3/3", "5/5", "loss=0.5"):
        assert text in stream.getvalue()


def test_brief_bars_are_hidden_if_the_task_finishes_quickly(make_terminal):
    stream = make_terminal()
    assert list(track(range(3), PROGRESS, "counting", unit="thing", brief=True)) == [0, 1, 2]
    assert "counting" not in stream.getvalue()


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
