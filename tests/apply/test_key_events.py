import numpy as np
import pytest

from byov.apply.align import events_cell, in_order, transfer_events
from byov.data.dataset import Video
from byov.data.own_videos import read_events
from byov.errors import ApplyError

A = np.arange(6) / 10
B = np.array([0.0, 0.04, 0.5, 0.7, 1 / 3 + 0.7])
MATCHED = np.array([0, 1, 1, 2, 4, 3])


@pytest.mark.parametrize(
    ("event", "expected"),
    [(0.0, 0.0), (0.1, 0.04), (0.11, 0.04), (0.21, 0.5), (0.3, 0.5), (0.31, 1 / 3 + 0.7), (0.5, 0.7)],
)
def test_an_event_goes_to_the_match_of_the_first_frame_at_or_after_it(event, expected):
    assert transfer_events((event,), A, B, MATCHED) == (expected,)


def test_an_event_after_the_end_is_named():
    with pytest.raises(ApplyError, match=r"the event at 0\.51 s is after the last frame of A, which is at 0\.500 s"):
        transfer_events((0.1, 0.51), A, B, MATCHED)


def test_events_rise_or_not():
    assert in_order(transfer_events((0.1, 0.1, 0.4), A, B, MATCHED))
    assert not in_order(transfer_events((0.4, 0.5), A, B, MATCHED))


@pytest.mark.parametrize("fps", [10, 15, 24, 25, 29.97, 30, 59.94, 60, 120])
def test_the_cell_begins_each_phase_with_the_very_frame(fps):
    pts_seconds = np.arange(1, 400) / fps - 1 / fps  # as inexact as the times of real frames
    for frame in range(0, 399, 7):
        events = read_events(events_cell((pts_seconds[frame],)), "here")
        video = Video("v", "ego", "train", path=None, event_seconds=events)
        assert video.phases(pts_seconds).index(1) == frame


def test_the_cell_is_one_of_a_csv():
    assert events_cell((2.5, 7.1000001)) == "2.500;7.100"
