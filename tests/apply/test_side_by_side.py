"""What the captions of a video side by side say, and that each stands below its own frame."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from byov.apply.video_writer import GAP, Side, draw_captions, write_side_by_side
from byov.data.video import STRICT, FrameReader

pytestmark = pytest.mark.usefixtures("nothing_left")

HEIGHT, WIDTH = 240, 320
GREY = 90


def test_a_frame_at_an_event_is_of_the_new_phase():
    side = Side("B", Path("b.mp4"), np.array([0, 0.2, 0.25, 0.5, 12.346]), (0.25, 0.5))
    assert [side.caption(frame) for frame in range(5)] == [
        "B   0.00 s   phase 0",
        "B   0.20 s   phase 0",
        "B   0.25 s   phase 1",
        "B   0.50 s   phase 2",
        "B   12.35 s   phase 2",
    ]


def test_without_events_there_is_no_phase():
    assert Side("A", Path("a.mp4"), np.array([0, 1.5]), None).caption(1) == "A   1.50 s"


def read_captions(panels, texts):
    """Of each panel (height, width, 3) that of the texts whose picture it is most like."""
    drawn = [Image.new("RGB", (WIDTH, HEIGHT), (GREY,) * 3) for _ in texts]
    for image, text in zip(drawn, texts, strict=True):
        draw_captions(image, [(0, text)])
    likely = np.stack([np.asarray(image, np.float64) for image in drawn])
    return [texts[np.abs(likely - panel).mean(axis=(1, 2, 3)).argmin()] for panel in panels]


def test_each_panel_has_the_time_and_phase_of_its_own_frame(make_video, tmp_path):
    seconds = {"A": np.array([0.0, 1.1, 2.2, 3.3]), "B": np.array([0.0, 4.4, 5.5, 6.6, 7.7])}
    events = {"A": (1.1, 3.0), "B": (5.5, 7.0)}
    a, b = (
        Side(
            letter,
            make_video(tmp_path / f"{letter}.mkv", np.full((len(seconds[letter]), 3), GREY), seconds=seconds[letter]),
            seconds[letter],
            events[letter],
        )
        for letter in "AB"
    )
    matched = np.array([4, 2, 0, 0])
    write_side_by_side(tmp_path / "out.mkv", a, b, matched, height=HEIGHT, policy=STRICT, scratch=tmp_path)
    pixels = np.concatenate([block.pixels.copy() for block in FrameReader(tmp_path / "out.mkv").blocks()])
    of_a = ["A   0.00 s   phase 0", "A   1.10 s   phase 1", "A   2.20 s   phase 1", "A   3.30 s   phase 2"]
    of_b = ["B   0.00 s   phase 0", "B   4.40 s   phase 0", "B   5.50 s   phase 1", "B   6.60 s   phase 1"]
    of_b.append("B   7.70 s   phase 2")
    assert read_captions(pixels[:, :, :WIDTH], of_a + of_b) == of_a
    assert read_captions(pixels[:, :, WIDTH + GAP :], of_a + of_b) == [of_b[4], of_b[2], of_b[0], of_b[0]]
