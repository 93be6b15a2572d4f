"""Tests of frame matching against naive implementations, and of the files that byov-align
writes.
"""

import csv
import shutil
import signal
import threading
import wave

import numpy as np
import pytest
from tests.apply.conftest import edit_config, rainbow, write_video

import byov
from byov.apply import align
from byov.apply.align import GAP, align_videos, dtw_path, middle_frames, nearest, tau
from byov.apply.align import transfer_events as transfer
from byov.cache.embeddings import read_embedding
from byov.data.dataset import Video, event_intervals
from byov.data.own_videos import format_events, read_events
from byov.data.video import FrameReader
from byov.errors import ApplyError

A_SECONDS = np.arange(6) / 10
B_SECONDS = np.array([0.0, 0.04, 0.5, 0.7, 1 / 3 + 0.7])
MATCHED = np.array([0, 1, 1, 2, 4, 3])


def draw(seed, longest=9):
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(length, 3)).astype(np.float32)
        for length in random.integers(1, longest, 2)
    ]


def distances(a, b):
    return np.linalg.norm(a[:, None].astype(float) - b[None], axis=2)


def least_cost(costs):
    """Return the smallest cost of all paths with steps of one frame in A, in B, or in both."""
    total = np.full(costs.shape, np.inf)
    for row, column in np.ndindex(costs.shape):
        before = [
            total[row - i, column - j]
            for i, j in ((1, 1), (1, 0), (0, 1))
            if row >= i and column >= j
        ]
        total[row, column] = costs[row, column] + min(before, default=0.0)
    return total[-1, -1]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("longest", [9, 60])
def test_a_dtw_path_has_the_least_cost_and_prefers_the_diagonal(seed, longest):
    same = np.zeros((4, 2), np.float32)
    assert dtw_path(same, same).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    a, b = draw(seed, longest)
    path = dtw_path(a, b)
    costs = distances(a, b)
    assert path[0].tolist() == [0, 0]
    assert path[-1].tolist() == [len(a) - 1, len(b) - 1]
    assert {tuple(step) for step in np.diff(path, axis=0).tolist()} <= {(0, 1), (1, 0), (1, 1)}
    assert costs[path[:, 0], path[:, 1]].sum() == pytest.approx(least_cost(costs), rel=1e-9)


def test_the_middle_of_the_matching_frames_is_taken():
    a = np.arange(5, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    b = a[[0, 0, 0, 1, 2, 3, 3, 4]]
    assert middle_frames(dtw_path(a, b)).tolist() == [1, 3, 4, 5, 7]
    assert middle_frames(dtw_path(b, a)).tolist() == [0, 0, 0, 1, 2, 3, 3, 4]


def test_too_many_pairs_of_frames_are_refused(monkeypatch):
    monkeypatch.setattr(align, "MAX_CELLS", 11)
    with pytest.raises(ApplyError, match=r"4 and 3 frames.*--method nearest"):
        dtw_path(np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("seed", range(20))
def test_nearest_frames(seed):
    a, b = draw(seed, longest=30)
    assert nearest(a, b).tolist() == distances(a, b).argmin(axis=1).tolist()


def test_tau_of_the_order():
    assert [tau(np.array(matched)) for matched in ([0, 1, 4], [4, 1, 0], [2, 2, 2], [3])] == [
        1.0,
        -1.0,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("event", "expected"),
    [(0.0, 0.0), (0.1, 0.04), (0.11, 0.04), (0.21, 0.5), (0.31, 1 / 3 + 0.7), (0.5, 0.7)],
)
def test_an_event_goes_to_the_match_of_the_first_frame_at_or_after_it(event, expected):
    assert transfer((event,), A_SECONDS, B_SECONDS, MATCHED) == [expected]


def test_events_after_the_last_frame_or_out_of_order_in_b():
    with pytest.raises(ApplyError, match=r"0\.51 s is after the last frame of A \(0\.500 s"):
        transfer((0.1, 0.51), A_SECONDS, B_SECONDS, MATCHED)
    with pytest.raises(ApplyError, match="--method dtw"):
        transfer((0.4, 0.5), A_SECONDS, B_SECONDS, MATCHED)


@pytest.mark.parametrize("fps", [10, 24, 25, 29.97, 30, 59.94, 120])
def test_a_cell_of_events_starts_each_phase_with_its_frame(fps):
    assert format_events((2.5, 7.1000001)) == "2.500;7.100"
    pts_seconds = np.arange(1, 400) / fps - 1 / fps  # inexact, like real frame times
    for frame in range(0, 399, 7):
        events = read_events(format_events((pts_seconds[frame],)), "here")
        video = Video("v", "ego", "train", path=None, intervals=event_intervals(events))
        assert video.phases(pts_seconds).index(1) == frame


def decode(path):
    """Decode a video to pixels (n, height, width, 3) and frame times (n,)."""
    blocks = [(block.pixels.copy(), block.pts_seconds) for block in FrameReader(path).blocks()]
    return np.concatenate([pixels for pixels, _ in blocks]), np.concatenate(
        [times for _, times in blocks]
    )


def read_table(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def mean_colors(pixels, left, right):
    """Return the mean color (n, 3) between two columns, above the captions."""
    return pixels[:, : pixels.shape[1] * 3 // 4, left + 8 : right - 8].mean(axis=(1, 2))


@pytest.mark.parametrize(("method", "suffix"), [("dtw", "MP4"), ("nearest", "mov")])
def test_the_panels_show_a_and_the_matching_frames_of_b(byov_align, tmp_path, method, suffix):
    a_colors = rainbow(14)
    b_colors = rainbow(23)[::-1] if method == "nearest" else rainbow(23)
    seconds = np.array([0.0, 0.04, 0.05, 0.3, 1.3, 1.333, *range(2, 10)])
    a = write_video(tmp_path / "a.mkv", a_colors, seconds=seconds, width=64, height=48)
    b = write_video(tmp_path / "b.mp4", b_colors, width=48, height=64)
    out = tmp_path / f"out.{suffix}"
    ran = byov_align(a, b, "-o", out, "--height", 96, "--method", method)
    assert ran.code == 0, ran
    pixels, times = decode(out)
    assert pixels.shape == (14, 96, 128 + GAP + 72, 3)
    np.testing.assert_allclose(times, seconds, atol=1e-4)
    matched = read_table(tmp_path / "out.csv")["b_frame"].astype(int)
    assert len(set(matched)) > 5
    np.testing.assert_allclose(mean_colors(pixels, 0, 128), a_colors, atol=6)
    np.testing.assert_allclose(mean_colors(pixels, 128 + GAP, 200 + GAP), b_colors[matched], atol=6)


def test_the_table_has_frames_times_and_distances(byov_align, byov_embed, tmp_path):
    a = write_video(tmp_path / "a.mp4", rainbow(9))
    b = write_video(tmp_path / "b.mp4", rainbow(13, 1))
    assert byov_align(a, b, "-o", tmp_path / "out.mkv").code == 0
    assert byov_embed(a, b, "-o", tmp_path).code == 0
    (in_a, _) = read_embedding(tmp_path / "a.h5")
    (in_b, _) = read_embedding(tmp_path / "b.h5")
    table = read_table(tmp_path / "out.csv")
    assert list(table) == ["a_frame", "a_seconds", "b_frame", "b_seconds", "distance"]
    matched = table["b_frame"].astype(int)
    assert table["a_frame"].tolist() == list(range(9))
    np.testing.assert_allclose(table["a_seconds"], np.arange(9) / 10, atol=1e-6)
    np.testing.assert_allclose(table["b_seconds"], matched / 10, atol=1e-6)
    np.testing.assert_allclose(
        table["distance"], np.linalg.norm(in_a - in_b[matched], axis=1), rtol=1e-4
    )
    assert (np.diff(matched) >= 0).all()


def test_a_video_aligned_with_itself(byov_align, videos, tmp_path):
    given = (videos / "one.mp4", videos / "one.mp4", "--phases", "0.25;0.9")
    ran = byov_align(*given, "-o", tmp_path / "a.mp4", "--json")
    assert ran.json["tau"] == {"a_in_b": 1.0, "b_in_a": 1.0}
    table = read_table(tmp_path / "a.csv")
    assert table["b_frame"].tolist() == list(range(12))
    assert table["distance"].tolist() == [0.0] * 12
    events = ran.json["events"]
    assert events["a_seconds"] == [0.25, 0.9]
    assert events["b_seconds"] == pytest.approx([0.3, 0.9])
    assert read_events(events["cell"], "here") == pytest.approx((0.3, 0.9), abs=2e-3)
    ran = byov_align(*given, "-o", tmp_path / "b.mp4")
    assert events["cell"] in ran.out
    assert byov_align(*given[:2], "-o", tmp_path / "c.mp4").code == 0
    with_phases, without = (decode(tmp_path / f"{name}.mp4")[0][0].astype(int) for name in "ac")
    assert (np.abs(with_phases - without)[-36:] > 100).any()  # the captions show the phase


def test_tau_of_a_model_with_positions_comes_with_a_warning(byov_align, videos, runs, tmp_path):
    given = (
        videos / "one.mp4",
        videos / "two.mp4",
        "--overwrite",
        "-o",
        tmp_path / "out.mp4",
        "--runs-dir",
        runs,
    )
    before = byov_align(*given).out
    edit_config(runs / "toy", settings={"position": "interpolated"})
    assert len(byov_align(*given).out.splitlines()) > len(before.splitlines())


def test_existing_outputs_and_inputs_are_not_overwritten(byov_align, videos, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    given = (videos / "three.mp4", videos / "three.mp4", "-o", tmp_path / "out.mp4")
    assert f"{tmp_path}/out.csv" in byov_align(*given).error()
    assert not (tmp_path / "out.mp4").exists()
    assert byov_align(*given, "--overwrite").code == 0
    shutil.copy(videos / "one.mp4", tmp_path / "b.mp4")
    (tmp_path / "link.mp4").symlink_to("b.mp4")
    byov_align(
        videos / "one.mp4", tmp_path / "b.mp4", "-o", tmp_path / "link.mp4", "--overwrite"
    ).error()
    assert (tmp_path / "b.mp4").read_bytes() == (videos / "one.mp4").read_bytes()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("one.mp4", "one.mp4", "-o", "out.avi"), ".mp4, .mov, .mkv"),
        (("one.mp4", "none.mp4", "-o", "out.mp4"), "none.mp4"),
        ((".", "one.mp4", "-o", "out.mp4"), "directory"),
        (("one.mp4", "mine.csv", "-o", "out.mp4"), "mine.csv"),
        (("one.mp4", "sound.wav", "-o", "out.mp4"), "sound.wav"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--height", "99"), "--height 99"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--phases", "3;2"), "'3;2'"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--phases", "0.5;9"), "9 s"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--run", "none"), "none"),
    ],
)
def test_mistakes_are_one_line(byov_align, videos, monkeypatch, tmp_path, options, fact):
    folder = tmp_path / "videos"
    shutil.copytree(videos, folder)
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    assert fact in byov_align(*options).error()
    assert sorted(folder.rglob("*")) == before


def test_a_truncated_video_is_kept_on_request(byov_align, tmp_path):
    path = write_video(tmp_path / "long.mkv", rainbow(60))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    given = (path, path, "-o", tmp_path / "out.mp4")
    assert "--on-truncated keep" in byov_align(*given).error()
    assert byov_align(*given, "--on-truncated", "keep").code == 0
    assert 1 < len(decode(tmp_path / "out.mp4")[0]) < 60


@pytest.mark.parametrize(
    ("a", "b", "height", "widths"),
    [
        (
            {"width": 48, "height": 48, "pixel_aspect": 2},
            {"width": 48, "height": 48},
            100,
            (200, 100),
        ),
        ({"width": 640, "height": 16}, {"width": 16, "height": 320}, 64, (256, 32)),
    ],
)
def test_panels_of_unusual_shapes(byov_align, tmp_path, a, b, height, widths):
    first = write_video(tmp_path / "a.mp4", rainbow(3), **a)
    second = write_video(tmp_path / "b.mp4", rainbow(3), **b)
    assert byov_align(first, second, "-o", tmp_path / "out.mp4", "--height", height).code == 0
    pixels, _ = decode(tmp_path / "out.mp4")
    assert pixels.shape == (3, height, widths[0] + GAP + widths[1], 3)
    if a["height"] == 16:
        assert pixels[:, :20, : widths[0]].max() < 20  # black border above the wide panel
        assert pixels[:, 30:34, 8 : widths[0] - 8].min() > 20


def test_the_library_works_in_a_thread_without_output(byov_align, trained, videos, tmp_path, capfd):
    a = videos / "one.mp4"
    b = videos / "four.mp4"
    assert byov_align(a, b, "-o", tmp_path / "out.mp4", "--phases", "0.5").code == 0
    handler = signal.getsignal(signal.SIGINT)
    capfd.readouterr()

    def work() -> None:
        aligned = align_videos(byov.load_run("toy", runs_dir=trained / "runs"), a, b, events=(0.5,))
        aligned.write_video(tmp_path / "library.mp4")
        aligned.write_table(tmp_path / "library.csv")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is handler
    assert (tmp_path / "library.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    (pixels, times) = decode(tmp_path / "library.mp4")
    (expected, expected_times) = decode(tmp_path / "out.mp4")
    np.testing.assert_array_equal(times, expected_times)
    # The last bits of x264's output vary between runs.
    assert np.abs(pixels.astype(int) - expected).mean(axis=(1, 2, 3)).max() < 1
