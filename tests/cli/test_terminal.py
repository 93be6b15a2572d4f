"""Log lines and notes, with a clock that the test sets."""

import logging

import pytest

from byov.cli.terminal import HUB_LOGGER, LogProgress, show_log


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines():
    return []


@pytest.fixture
def progress(lines, clock):
    return LogProgress(lines.append, clock)


def test_a_line_every_30_seconds_with_rate_and_time_left(progress, lines, clock):
    with progress.bar("frames", unit="frame", total=1200) as bar:
        for _ in range(59):
            clock.now += 1
            bar.advance(10)
    assert lines == ["frames: 300 of 1,200 (25%), 10.0 frames/s, 2 min left"]


def test_short_tasks_print_nothing(progress, lines, clock):
    for _ in range(5):
        with progress.bar("reading", unit="video", total=1) as bar:
            clock.now += 20
            bar.advance()
    assert lines == []


def test_concurrent_tasks_share_a_line(progress, lines, clock):
    with progress.bar("videos", unit="video", total=3) as videos, progress.bar("frames", unit="frame") as frames:
        videos.advance(latest="a")
        clock.now += 40
        frames.advance(20)
    assert lines == ["videos: 1 of 3 (33%), 40.0 s/video, 80 s left, a; frames: 20, 2.0 s/frame"]


def test_rate_counts_only_new_work(progress, lines, clock):
    with progress.bar("training", unit="step", total=400, done=300) as bar:
        clock.now += 30
        bar.advance(60, latest="epoch=36")
    assert lines == ["training: 360 of 400 (90%), 2.0 steps/s, 20 s left, epoch=36"]


@pytest.mark.parametrize("brief", [False, True])
def test_message_without_progress_is_printed_at_once_unless_brief(progress, lines, clock, brief):
    with progress.bar("training", unit="step", total=4, brief=brief) as bar:
        clock.now += 1
        bar.advance(latest="loss=1")
        bar.advance(0)
        assert lines == []
        bar.advance(0, latest="val both=0.7")
    assert lines == ([] if brief else ["training: 1 of 4 (25%), 1.0 steps/s, 3 s left, val both=0.7"])


def test_more_than_the_total(progress, lines, clock):
    with progress.bar("frames", unit="frame", total=10) as bar:
        clock.now += 30
        bar.advance(12)
    assert lines == ["frames: 12 of 10 (100%), 2.5 s/frame"]


def test_hub_retries_are_one_line(capsys, caplog):
    with caplog.at_level(logging.WARNING, HUB_LOGGER.name), show_log():
        for attempt in range(1, 6):
            HUB_LOGGER.warning("'[Errno 111] Connection refused' thrown while requesting HEAD https://huggingface.co/x")
            HUB_LOGGER.warning(f"Retrying in {attempt}s [Retry {attempt}/5].")
        HUB_LOGGER.warning("something else")
    assert capsys.readouterr().err.count("does not answer") == 1
    assert [record.getMessage() for record in caplog.records] == ["something else"]
    assert HUB_LOGGER.filters == []
