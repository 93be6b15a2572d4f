"""Progress in the log of a machine that nobody watches, by a clock that the test turns."""

import logging

import pytest

from byov.cli.hub_retries import SPEAKER, retries_said_once
from byov.cli.progress_lines import ProgressLines
from byov.text import format_duration


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def lines(said, clock):
    return ProgressLines(said.append, clock)


def test_a_line_every_thirty_seconds_with_rate_and_time_left(lines, said, clock):
    with lines.bar("frames", unit="frame", total=1200) as bar:
        for _ in range(59):
            clock.now += 1
            bar.advance(10)
    assert said == ["frames: 300 of 1,200 (25%), 10.0 frames/s, 2 min left"]


def test_work_that_is_short_has_no_line(lines, said, clock):
    for _ in range(5):
        with lines.bar("looking", unit="video", total=1) as bar:
            clock.now += 20
            bar.advance()
    assert said == []


def test_work_at_once_shares_a_line(lines, said, clock):
    with lines.bar("videos", unit="video", total=3) as videos, lines.bar("frames", unit="frame") as frames:
        videos.advance(latest="a")
        clock.now += 40
        frames.advance(20)
    assert said == ["videos: 1 of 3 (33%), 40.0 s/video, 80 s left, a; frames: 20, 2.0 s/frame"]


def test_what_was_done_before_is_no_part_of_the_rate(lines, said, clock):
    with lines.bar("training", unit="step", total=400, done=300) as bar:
        clock.now += 30
        bar.advance(60, latest="epoch=36")
    assert said == ["training: 360 of 400 (90%), 2.0 steps/s, 20 s left, epoch=36"]


def test_a_word_without_units_is_said_at_once(lines, said, clock):
    with lines.bar("training", unit="step", total=4) as bar:
        clock.now += 1
        bar.advance(latest="loss=1")
        bar.advance(0)
        assert said == []
        bar.advance(0, latest="val both=0.7")
    assert said == ["training: 1 of 4 (25%), 1.0 steps/s, 3 s left, val both=0.7"]


def test_a_word_on_brief_work_waits_for_its_time(lines, said, clock):
    with lines.bar("scoring", unit="task", total=4, brief=True) as bar:
        bar.advance(0, latest="retrieval")
        assert not said
        clock.now += 31
        bar.advance(0, latest="tau")
    assert said == ["scoring: 0 of 4 (0%), tau"]


def test_a_total_that_was_too_low_promises_nothing(lines, said, clock):
    with lines.bar("frames", unit="frame", total=10) as bar:
        clock.now += 30
        bar.advance(12)
    assert said == ["frames: 12 of 10 (100%), 2.5 s/frame"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (89, "89 s"), (400, "7 min"), (40000, "11.1 h")])
def test_times_for_people(seconds, text):
    assert format_duration(seconds) == text


def test_retries_of_the_hub_are_one_line(said, caplog):
    speaker = logging.getLogger(SPEAKER)
    with caplog.at_level(logging.WARNING, SPEAKER), retries_said_once(said.append):
        for attempt in range(1, 6):
            speaker.warning("'[Errno 111] Connection refused' thrown while requesting HEAD https://huggingface.co/x")
            speaker.warning(f"Retrying in {attempt}s [Retry {attempt}/5].")
        speaker.warning("something else")
    assert len(said) == 1
    assert "does not answer" in said[0]
    assert [record.getMessage() for record in caplog.records] == ["something else"]
    assert speaker.filters == []
