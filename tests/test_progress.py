import io
import logging
import sys

import pytest
from tqdm import tqdm

from byov.cli.terminal import PROGRESS, show_log
from byov.progress import NO_PROGRESS, track

LOGGER = logging.getLogger("byov.tests")


@pytest.fixture
def terminal(monkeypatch):
    """terminal(): replace standard error by a terminal and return it."""

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


def test_bars_on_a_terminal(terminal):
    stream = terminal()
    work(PROGRESS)
    for text in ("counting: 100%", "3/3", "5/5", "loss=0.5"):
        assert text in stream.getvalue()


def test_brief_bars_are_hidden_if_the_task_finishes_quickly(terminal):
    stream = terminal()
    assert list(track(range(3), PROGRESS, "counting", unit="thing", brief=True)) == [0, 1, 2]
    assert "counting" not in stream.getvalue()
