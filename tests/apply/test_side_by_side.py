import resource

import numpy as np
import pytest
from PIL import Image
from tests.apply.conftest import write_video as write_colors

from byov.apply.align import GAP, AlignedVideos, caption
from byov.apply.embedder import EmbeddedVideo
from byov.apply.side_by_side import draw_captions, write_video
from byov.data.video import FrameReader

HEIGHT = 240
WIDTH = 320
GRAY = 90


def noise(count):
    random = np.random.default_rng(0)
    return (random.integers(0, 256, (64, 96, 3), np.uint8) for _ in range(count))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # Equal and unordered times.
        ([0.0, 0.1, 0.1, 0.05, 0.2, 0.3], [0.0, 0.1, 0.1, 0.1, 0.2, 0.3]),
        ([0.0, 20_000.0], [0.0, 20_000.0]),  # a gap of hours
        ([5.0, 5.5, 6.5], [0.0, 0.5, 1.5]),
    ],
)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_frames_keep_their_times(tmp_path, suffix, seconds, expected):
    path = tmp_path / f"a{suffix}"
    write_video(path, noise(len(seconds)), np.array(seconds))
    times = np.concatenate([block.pts_seconds for block in FrameReader(path).blocks()])
    np.testing.assert_allclose(times, expected, atol=2e-3)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("fraction", [0.3, 0.999])
def test_a_full_disk_leaves_nothing(tmp_path, suffix, fraction):
    path = tmp_path / f"a{suffix}"
    write_video(path, noise(20), np.arange(20) / 10)
    size = path.stat().st_size
    path.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size * fraction), before[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            write_video(path, noise(20), np.arange(20) / 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_captions_have_the_time_and_the_phase():
    captions = [caption("B", seconds, (0.25, 0.5)) for seconds in (0, 0.2, 0.25, 12.346)]
    expected = ["0.00 s   phase 0", "0.20 s   phase 0", "0.25 s   phase 1", "12.35 s   phase 2"]
    assert captions == [f"B   {text}" for text in expected]
    assert caption("A", 1.5, None) == "A   1.50 s"


def read_captions(panels, texts):
    """Return the text whose rendering is most similar to each panel (height, width, 3)."""
    rendered = []
    for text in texts:
        image = Image.new("RGB", (WIDTH, HEIGHT), (GRAY,) * 3)
        draw_captions(image, [(0, text)])
        rendered.append(np.asarray(image, np.float64))
    return [
        texts[np.abs(np.stack(rendered) - panel).mean(axis=(1, 2, 3)).argmin()] for panel in panels
    ]


def test_each_panel_has_the_caption_of_its_frame(tmp_path):
    seconds = {"A": np.array([0.0, 1.1, 2.2, 3.3]), "B": np.array([0.0, 4.4, 5.5, 6.6, 7.7])}
    events = {"A": (1.1, 3.0), "B": (5.5, 7.0)}
    videos = []
    captions = []
    for letter, times in seconds.items():
        path = write_colors(
            tmp_path / f"{letter}.mkv", np.full((len(times), 3), GRAY), seconds=times
        )
        videos.append(EmbeddedVideo(path, np.zeros((len(times), 2)), times, None))
        captions.append([caption(letter, second, events[letter]) for second in times])
    matched = [4, 2, 0, 0]
    aligned = AlignedVideos(*videos, np.array(matched), None, None, *events.values())
    aligned.write_video(tmp_path / "out.mkv", height=HEIGHT)
    pixels = np.concatenate(
        [block.pixels.copy() for block in FrameReader(tmp_path / "out.mkv").blocks()]
    )
    captions_a, captions_b = captions
    assert read_captions(pixels[:, :, :WIDTH], captions_a + captions_b) == captions_a
    assert read_captions(pixels[:, :, WIDTH + GAP :], captions_a + captions_b) == [
        captions_b[frame] for frame in matched
    ]
