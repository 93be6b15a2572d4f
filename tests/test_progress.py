import io
import logging
import sys

import pytest
from tqdm import tqdm

from byov.cli.terminal import PROGRESS, show_log
from byov.progress import NO_PROGRESS, track

LOGGER = logging.getLogger("byov.tests")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work(progress):
    done = []
    for item in track(range(3), progress, "counting", unit="thing"):
        done.append(item)
        LOGGER.info(f"at {item}\x1b[2J")
    with progress.bar("steps", unit="step", total=5, done=2) as bar:
        bar.advance(3, latest="loss=0.5")
    assert done == [0, 1, 2]


def test_a_library_says_nothing_unless_it_is_asked_to(capfd):
    work(NO_PROGRESS)
    assert capfd.readouterr() == ("", "")


def test_a_command_shows_what_libraries_log_and_bars_only_on_a_terminal(capfd):
    with show_log():
        work(PROGRESS)
    assert capfd.readouterr() == ("", "at 0\\x1b[2J\nat 1\\x1b[2J\nat 2\\x1b[2J\n")
    LOGGER.info("after")
    assert capfd.readouterr() == ("", "")


def test_bars_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work(PROGRESS)
    shown = terminal.getvalue()
    assert "counting: 100%" in shown
    assert "3/3" in shown
    assert "5/5" in shown
    assert "loss=0.5" in shown


def test_a_brief_bar_does_not_show_work_that_is_over_at_once(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for _ in track(range(3), PROGRESS, "counting", unit="thing", brief=True):
        pass
    assert "counting" not in terminal.getvalue()


@pytest.fixture(autouse=True)
def _no_bar_is_left():
    yield
    assert not list(getattr(tqdm, "_instances", []))
