"""byov-align as its users meet it: what it writes is decoded again and looked at."""

import csv
import json
import shutil
import signal
import threading
from itertools import pairwise

import numpy as np
import pytest

from byov.apply.align import align_videos
from byov.apply.embedder import RunEmbedder
from byov.apply.video_writer import GAP
from byov.cache.embeddings import read_embedding
from byov.cache.runs import choose_run
from byov.data.own_videos import read_events
from byov.data.video import FrameReader

pytestmark = pytest.mark.usefixtures("nothing_left")


def decode(path):
    """(n, height, width, 3) and times of a whole video."""
    blocks = [(block.pixels.copy(), block.pts_seconds) for block in FrameReader(path).blocks()]
    return np.concatenate([pixels for pixels, _ in blocks]), np.concatenate([times for _, times in blocks])


def read_table(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["a_frame", "a_seconds", "b_frame", "b_seconds", "distance"]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def shown(pixels, left, right):
    """(n, 3) mean color of each picture between two columns, above the caption."""
    return pixels[:, : pixels.shape[1] * 3 // 4, left + 8 : right - 8].mean(axis=(1, 2))


@pytest.mark.parametrize("method", ["dtw", "nearest"])
def test_the_panels_show_a_and_the_matched_frames_of_b(byov_align, make_video, colors, tmp_path, method):
    a_colors, b_colors = colors(14), colors(23)[::-1] if method == "nearest" else colors(23)
    a = make_video(tmp_path / "a.mp4", a_colors, width=64, height=48)
    b = make_video(tmp_path / "b.mp4", b_colors, width=48, height=64)
    ran = byov_align(a, b, "-o", tmp_path / "out.mp4", "--height", 96, "--method", method)
    assert ran.code == 0, ran
    pixels, _ = decode(tmp_path / "out.mp4")
    assert pixels.shape == (14, 96, 128 + GAP + 72, 3)
    table = read_table(tmp_path / "out.csv")
    matched = table["b_frame"].astype(int)
    assert len(set(matched)) > 5
    np.testing.assert_allclose(shown(pixels, 0, 128), a_colors, atol=6)
    np.testing.assert_allclose(shown(pixels, 128 + GAP, 200 + GAP), b_colors[matched], atol=6)


def test_b_held_for_a_while_is_shown_in_step(byov_align, make_video, colors, tmp_path):
    held = [0, 0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 9, 9]
    a, b = make_video(tmp_path / "a.mp4", colors(10)), make_video(tmp_path / "b.mp4", colors(10)[held])
    ran = byov_align(b, a, "-o", tmp_path / "out.mp4")
    assert ran.code == 0, ran
    off = np.abs(read_table(tmp_path / "out.csv")["b_frame"] - held)
    assert off.max() <= 1
    assert (off == 0).mean() > 0.7


def test_the_table_says_frames_times_and_distances(byov_align, byov_embed, make_video, colors, tmp_path):
    a, b = make_video(tmp_path / "a.mp4", colors(9)), make_video(tmp_path / "b.mp4", colors(13, 1))
    assert byov_align(a, b, "-o", tmp_path / "out.mkv").code == 0
    assert byov_embed(a, b, "-o", tmp_path).code == 0
    (in_a, _), (in_b, _) = read_embedding(tmp_path / "a.h5"), read_embedding(tmp_path / "b.h5")
    table = read_table(tmp_path / "out.csv")
    matched = table["b_frame"].astype(int)
    assert table["a_frame"].tolist() == list(range(9))
    np.testing.assert_allclose(table["a_seconds"], np.arange(9) / 10, atol=1e-6)
    np.testing.assert_allclose(table["b_seconds"], matched / 10, atol=1e-6)
    np.testing.assert_allclose(table["distance"], np.linalg.norm(in_a - in_b[matched], axis=1), rtol=1e-4)
    assert all(first <= second for first, second in pairwise(matched))


@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv", "MP4"])
def test_a_plays_at_its_own_times(byov_align, make_video, colors, tmp_path, ending):
    seconds = np.array([0.0, 0.04, 0.05, 0.3, 1.3, 1.333, 2.0])
    a, b = make_video(tmp_path / "a.mkv", colors(7), seconds=seconds), make_video(tmp_path / "b.mp4", colors(5))
    assert byov_align(a, b, "-o", tmp_path / f"out.{ending}").code == 0
    _, times = decode(tmp_path / f"out.{ending}")
    np.testing.assert_allclose(times, seconds, atol=2e-3 if ending == "mkv" else 1e-4)


def test_captions_stand_below_both_panels(byov_align, make_video, tmp_path):
    gray = make_video(tmp_path / "a.mp4", np.full((3, 3), 90))
    assert byov_align(gray, gray, "-o", tmp_path / "out.mp4", "--height", 120).code == 0
    pixels, _ = decode(tmp_path / "out.mp4")
    for panel in (pixels[0, :, :160], pixels[0, :, 160 + GAP :]):
        assert (panel[-12:] > 150).any()
        assert np.ptp(panel[:100].astype(int)) < 12
    assert (pixels[0, -12:] != pixels[2, -12:]).any()  # another time


def test_a_video_with_itself_is_one_and_the_same(byov_align, videos, tmp_path):
    ran = byov_align(videos / "one.mp4", videos / "one.mp4", "-o", tmp_path / "out.mp4", "--json")
    assert ran.code == 0, ran
    assert ran.json["tau"] == {"a_in_b": 1.0, "b_in_a": 1.0}
    table = read_table(tmp_path / "out.csv")
    assert table["b_frame"].tolist() == list(range(12))
    assert table["distance"].tolist() == [0.0] * 12


def test_a_model_that_sees_places_warns_of_its_tau(byov_align, videos, runs, tmp_path):
    given = (videos / "one.mp4", videos / "two.mp4", "--overwrite", "-o", tmp_path / "out.mp4", "--runs-dir", runs)
    assert "check the output video" not in byov_align(*given).out
    config = runs / "toy" / "config.json"
    text = config.read_text().replace('"position": "none"', '"position": "interpolated"')
    config.write_text(json.dumps({name: value for name, value in json.loads(text).items() if name != "file_sha256"}))
    assert "check the output video" in byov_align(*given).out


def test_videos_of_one_frame(byov_align, videos, tmp_path):
    ran = byov_align(videos / "three.mp4", videos / "one.mp4", "-o", tmp_path / "first.mp4")
    assert "A in B undefined (only one frame); B in A undefined (the nearest frame is always the same)" in ran.out
    assert len(decode(tmp_path / "first.mp4")[0]) == 1
    ran = byov_align(videos / "three.mp4", videos / "three.mp4", "-o", tmp_path / "both.mp4", "--json")
    assert ran.json["tau"] == {"a_in_b": None, "b_in_a": None}
    assert byov_align(videos / "one.mp4", videos / "three.mp4", "-o", tmp_path / "last.mp4").code == 0
    assert len(decode(tmp_path / "last.mp4")[0]) == 12


def test_events_are_carried_over(byov_align, videos, tmp_path):
    given = (videos / "one.mp4", videos / "one.mp4", "--phases", "0.25;0.9")
    ran = byov_align(*given, "-o", tmp_path / "a.mp4", "--json")
    events = ran.json["events"]
    assert events["a_seconds"] == [0.25, 0.9]
    assert events["b_seconds"] == pytest.approx([0.3, 0.9])
    assert read_events(events["cell"], "here") == pytest.approx((0.3, 0.9), abs=2e-3)
    ran = byov_align(*given, "-o", tmp_path / "b.mp4")
    assert "events of A: 0.250 s, 0.900 s\nevents of B: 0.300 s, 0.900 s\n" in ran.out
    assert f"for one.mp4 (rounded down): {events['cell']}\n" in ran.out
    assert (decode(tmp_path / "a.mp4")[0] == decode(tmp_path / "b.mp4")[0]).all()
    assert byov_align(*given[:2], "-o", tmp_path / "c.mp4").code == 0
    with_phases, without = (decode(tmp_path / f"{name}.mp4")[0][0].astype(int) for name in "ac")
    assert (np.abs(with_phases - without)[-36:] > 100).any()  # the captions say the phase


def test_events_that_would_run_backwards_are_no_cell(byov_align, make_video, colors, tmp_path):
    a, b = make_video(tmp_path / "a.mp4", colors(12)), make_video(tmp_path / "b.mp4", colors(12)[::-1])
    given = (a, b, "--phases", "0.2;0.9", "--overwrite", "-o", tmp_path / "out.mp4")
    ran = byov_align(*given, "--method", "nearest", "--json")
    assert ran.json["tau"]["a_in_b"] < -0.9
    first, second = ran.json["events"]["b_seconds"]
    assert first > second
    assert ran.json["events"]["cell"] is None
    ran = byov_align(*given, "--method", "nearest")
    assert "are not in order" in ran.out
    assert "events column" not in ran.out
    assert byov_align(*given, "--json").json["events"]["cell"] is not None  # dtw keeps the order


def test_what_exists_is_replaced_only_if_told_so(byov_align, one_line, videos, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    given = (videos / "three.mp4", videos / "three.mp4", "-o", tmp_path / "out.mp4")
    assert one_line(byov_align(*given)).startswith(f"{tmp_path}/out.csv exists")
    assert not (tmp_path / "out.mp4").exists()
    assert byov_align(*given, "--overwrite").code == 0
    assert one_line(byov_align(*given)).startswith(f"{tmp_path}/out.mp4 exists")


def test_a_video_is_never_written_over(byov_align, one_line, videos, tmp_path):
    shutil.copy(videos / "one.mp4", tmp_path / "b.mp4")
    (tmp_path / "link.mp4").symlink_to("b.mp4")
    for out in ("b.mp4", "link.mp4"):
        message = one_line(byov_align(videos / "one.mp4", tmp_path / "b.mp4", "-o", tmp_path / out, "--overwrite"))
        assert "is one of the input videos" in message
    assert (tmp_path / "b.mp4").read_bytes() == (videos / "one.mp4").read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("one.mp4", "one.mp4", "-o", "out.avi"), "the name must end in .mp4, .mov, .mkv"),
        (("one.mp4", "one.mp4", "-o", "out"), "the name must end in .mp4, .mov, .mkv"),
        (("one.mp4", "none.mp4", "-o", "out.mp4"), "none.mp4: no such file"),
        ((".", "one.mp4", "-o", "out.mp4"), "a folder, not a video"),
        (("one.mp4", "mine.csv", "-o", "out.mp4"), "mine.csv: FFmpeg cannot open"),
        (("one.mp4", "sound.wav", "-o", "out.mp4"), "sound.wav: no video stream, only audio"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--height", "99"), "--height 99: must be even"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--phases", "3;2"), "--phases: events '3;2'. Expected increasing"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--phases", ""), "--phases: events ''"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--phases", "0.5;9"), "the event at 9 s is after the last frame of A"),
        (("one.mp4", "one.mp4", "-o", "out.mp4", "--run", "none"), "no such run"),
    ],
)
def test_mistakes_are_one_line(byov_align, one_line, videos, sound, monkeypatch, tmp_path, options, said):
    folder = tmp_path / "videos"
    shutil.copytree(videos, folder)
    sound(folder / "sound.wav")
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    assert said in one_line(byov_align(*options))
    assert sorted(folder.rglob("*")) == before


def test_a_video_that_breaks_off_leaves_nothing_unless_told_to_keep_it(byov_align, make_video, colors, tmp_path):
    path = make_video(tmp_path / "long.mkv", colors(60))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran = byov_align(path, path, "-o", tmp_path / "out.mp4")
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "error: nothing to align without A and B"
    assert f"failed: {path}: truncated after" in ran.err
    assert not (tmp_path / "out.mp4").exists()
    assert byov_align(path, path, "-o", tmp_path / "out.mp4", "--on-truncated", "keep").code == 0
    assert 1 < len(decode(tmp_path / "out.mp4")[0]) < 60


def test_pixels_that_are_not_square_are_shown_as_they_should_be(byov_align, make_video, colors, tmp_path):
    a = make_video(tmp_path / "a.mp4", colors(3), width=48, height=48, pixel_aspect=2)
    b = make_video(tmp_path / "b.mp4", colors(3), width=48, height=48)
    assert byov_align(a, b, "-o", tmp_path / "out.mp4", "--height", 100).code == 0
    assert decode(tmp_path / "out.mp4")[0].shape[1:3] == (100, 200 + GAP + 100)


def test_very_wide_and_very_tall_videos_fit_their_panels(byov_align, make_video, colors, tmp_path):
    wide = make_video(tmp_path / "wide.mp4", colors(3), width=640, height=16)
    tall = make_video(tmp_path / "tall.mp4", colors(3), width=16, height=320)
    assert byov_align(wide, tall, "-o", tmp_path / "out.mp4", "--height", 64).code == 0
    pixels, _ = decode(tmp_path / "out.mp4")
    assert pixels.shape == (3, 64, 256 + GAP + 32, 3)
    assert pixels[:, :20, :256].max() < 20  # borders above the wide one
    assert pixels[:, 30:34, 8:248].min() > 20


def test_as_a_library_it_runs_in_a_thread_and_says_nothing(byov_align, trained, videos, tmp_path, capfd):
    a, b = videos / "one.mp4", videos / "four.mp4"
    assert byov_align(a, b, "-o", tmp_path / "out.mp4", "--phases", "0.5").code == 0
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    (tmp_path / "scratch").mkdir()
    capfd.readouterr()

    def align() -> None:
        embedder = RunEmbedder(choose_run(trained / "runs"))
        aligned = align_videos(embedder, a, b, tmp_path / "scratch", events=(0.5,))
        aligned.write_video(tmp_path / "library.mp4", tmp_path / "scratch")
        aligned.write_table(tmp_path / "library.csv")

    thread = threading.Thread(target=align)
    thread.start()
    thread.join()
    assert capfd.readouterr() == ("", "")
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    for ending in ("mp4", "csv"):
        assert (tmp_path / f"library.{ending}").read_bytes() == (tmp_path / f"out.{ending}").read_bytes()
