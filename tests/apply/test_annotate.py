"""Tests of byov-annotate: labels transferred to other videos, long recordings and moments."""

import csv
import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from tests.apply.conftest import FPS, rainbow, write_video
from tests.processes import signal_and_end

import byov
from byov.apply.annotate import (
    LabeledFrames,
    given_phases,
    phase_probabilities,
    probability_near,
)
from byov.apply.annotation_files import label_next, to_vtt
from byov.apply.occurrences import find_occurrences
from byov.apply.references import Estimate, training_progress
from byov.cli.align import main as align_main
from byov.cli.annotate import main as annotate_main
from byov.cli.extract import main as extract_main
from byov.errors import ApplyError

EVENTS = (0.3, 0.7)  # of all videos, in normalized time
NAMES = ("start", "pour", "put down")


def events_of(frames):
    return [round(event * frames) for event in EVENTS]


def events_cell(frames):
    pour, put_down = events_of(frames)
    return f"{pour}f pour;{put_down}f put down"


@pytest.fixture(scope="module")
def labels_root(tmp_path_factory):
    """Folder with a run that was trained on unlabeled videos, and new videos."""
    root = tmp_path_factory.mktemp("annotate")
    lines = ["path,view,split"]
    for index in range(6):
        view = ("ego", "exo")[index % 2]
        write_video(root / "train" / view / f"{index}.mp4", rainbow(30 + 2 * index, index))
        lines.append(f"{view}/{index}.mp4,{view},train")
    (root / "train" / "toy.csv").write_text("\n".join(lines) + "\n")
    for index, frames in enumerate((36, 44)):
        view = ("ego", "exo")[index]
        write_video(root / "new" / view / f"new-{index}.mp4", rainbow(frames, 10 + index))
    write_video(root / "one.mp4", rainbow(40, 20))
    (root / "one.csv").write_text(f"path,events\none.mp4,{events_cell(40)}\n")
    byov.extract_features(
        manifest=root / "train" / "toy.csv", encoder="random/tiny", features_dir=root / "features"
    )
    byov.train_run(
        "toy",
        method="timeline",
        epochs=40,
        frames=16,
        clips=4,
        features_dir=root / "features",
        runs_dir=root / "runs",
    )
    return root


@pytest.fixture
def folders(labels_root, monkeypatch):
    """Make commands use the folders of `labels_root`."""
    monkeypatch.setenv("BYOV_RUNS", str(labels_root / "runs"))
    monkeypatch.setenv("BYOV_FEATURES", str(labels_root / "features"))


@pytest.fixture
def annotate(folders, call):  # noqa: ARG001
    return lambda *arguments: call(annotate_main, "byov-annotate", *arguments)


def read_rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_one_labeled_video_labels_videos_of_both_views(annotate, labels_root, tmp_path, call):
    ran = annotate(
        labels_root / "new", "--labels", labels_root / "one.csv", "-o", tmp_path / "out", "--json"
    )
    assert ran.code == 0, ran
    rows = read_rows(tmp_path / "out" / "annotations.csv")
    assert [row["path"] for row in rows] == ["ego/new-0.mp4", "exo/new-1.mp4"]
    assert [row["view"] for row in rows] == ["ego", "exo"]
    for row, frames in zip(rows, (36, 44), strict=True):
        found = [FPS * float(event) for event in row["events"].split(";")]
        np.testing.assert_allclose(found, events_of(frames), atol=3.5)
        assert row["phases"] == ";".join(NAMES)
    frames = read_rows(tmp_path / "out" / "frames.csv")
    assert len(frames) == 36 + 44
    progress = np.array([float(row["progress"]) for row in frames[:36]])
    assert np.abs(progress - np.linspace(0, 1, 36)).mean() < 0.2
    assert [row["phase"] for row in (frames[0], frames[35])] == ["start", "put down"]
    captions = (tmp_path / "out" / "captions" / "new-0.vtt").read_text()
    assert captions.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:0")
    summary = json.loads((tmp_path / "out" / "annotations.json").read_text())
    assert ran.json["videos"] == summary["videos"]
    assert summary["run"] == "toy"
    assert summary["label_next"] in ("new-0", "new-1")
    # The table of events works as labels and as a dataset.
    table = tmp_path / "out" / "annotations.csv"
    again = annotate(labels_root / "new", "--labels", table, "-o", tmp_path / "again", "--json")
    assert [video["confidence"] for video in again.json["videos"]] == [1, 1]
    ran = call(
        *(extract_main, "byov-extract", "--manifest", table, "--videos", labels_root / "new"),
        *("--encoder", "random/tiny", "--features-dir", tmp_path / "features", "--json"),
    )
    assert (ran.code, ran.json["extracted_videos"]) == (0, 2), ran


def test_without_labels_only_progress_is_written(annotate, labels_root, tmp_path):
    for name in ("frames.csv", "frames.parquet"):
        ran = annotate(labels_root / "new" / "ego", "-o", tmp_path / name)
        assert ran.code == 0, ran
    rows = read_rows(tmp_path / "frames.csv")
    table = parquet.read_table(tmp_path / "frames.parquet").to_pylist()
    assert {row["phase"] for row in rows} == {""}
    np.testing.assert_allclose(
        [row["progress"] for row in table], [float(row["progress"]) for row in rows], atol=1e-4
    )
    assert not (tmp_path / "annotations.csv").exists()


def test_features_are_kept_for_the_next_call(annotate, labels_root, tmp_path):
    new = shutil.copytree(labels_root / "new", tmp_path / "new")
    assert annotate(new, "-o", tmp_path / "out").code == 0
    cached = sorted((tmp_path / "out" / "cache").rglob("*.h5"))
    assert len(cached) == 2
    before = [path.stat().st_mtime_ns for path in cached]
    ran = annotate(new, "-o", tmp_path / "out")
    assert "exists. Pass --overwrite" in ran.err
    labels = ("--labels", labels_root / "one.csv")
    assert annotate(new, "-o", tmp_path / "out", *labels, "--overwrite").code == 0
    assert [path.stat().st_mtime_ns for path in cached] == before


def test_unreadable_videos_are_reported_and_skipped(annotate, labels_root, tmp_path):
    new = shutil.copytree(labels_root / "new", tmp_path / "new")
    (new / "ego" / "broken.mp4").write_bytes(b"no video")
    ran = annotate(new, "-o", tmp_path / "out")
    assert ran.code == 1
    assert "broken.mp4" in ran.err
    assert len(read_rows(tmp_path / "out" / "annotations.csv")) == 2


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ("path,events\none.mp4,\n", "no video is labeled"),
        ("path\none.mp4\n", "no video is labeled"),
        ("path,events\nnone.mp4,1;2\n", "none.mp4"),
        ("path,events\none.mp4,1 pour;9 put down\n", "after its last frame"),
        ("path,events\none.mp4,1 pour;2 stir\n../x.mp4,1;2\n", "outside"),
        ("path,events\none.mp4,1 a;2 b\nnew/ego/new-0.mp4,1 a;2 c\n", "events"),
    ],
)
def test_bad_labels_are_one_line(annotate, labels_root, tmp_path, table, fact):
    (labels_root / "bad.csv").write_text(table)
    ran = annotate(labels_root / "new", "--labels", labels_root / "bad.csv", "-o", tmp_path / "out")
    assert ran.code == 2, ran
    assert fact in ran.err.splitlines()[-1]
    assert not (tmp_path / "out" / "annotations.csv").exists()


def test_bad_arguments_are_one_line(annotate, labels_root, tmp_path):
    new = labels_root / "new"
    (tmp_path / "empty").mkdir()
    for arguments, fact in (
        ((tmp_path / "empty", "-o", tmp_path / "out"), "no videos"),
        ((tmp_path / "none.mp4", "-o", tmp_path / "out"), "no such file"),
        ((new, "-o", labels_root / "one.mp4"), "is a file, not a folder"),
        ((new, "-o", tmp_path / "out", "--find", "a.mp4"), "expected a video and a time"),
        ((new, "-o", tmp_path / "out", "--find", "a.mp4@2s"), "not a video file"),
        ((new, "-o", tmp_path / "out", "--features-dir", tmp_path / "x"), "no such file"),
        ((new, "-o", tmp_path / "out", "--encoder", "nope"), "nope"),
    ):
        ran = annotate(*arguments)
        assert ran.code == 2, ran
        assert fact in ran.err.splitlines()[-1]


def test_a_moment_is_found_in_videos_of_both_views(annotate, labels_root, tmp_path):
    ran = annotate(
        *(labels_root / "new", "-o", tmp_path, "--json"),
        *("--find", f"{labels_root / 'one.mp4'}@2.0s"),  # in the middle
    )
    assert ran.code == 0, ran
    query, *moments = ran.json["moments"]
    assert (query["frame"], query["confidence"]) == (20, 1.0)
    assert sorted(moment["video"] for moment in moments) == ["new-0", "new-1"]
    for moment in moments:
        middle = {"new-0": 18, "new-1": 22}[moment["video"]]
        assert abs(moment["frame"] - middle) <= 5
        assert 0 < moment["confidence"] <= 1
    assert [row["video"] for row in read_rows(tmp_path / "moments.csv")][1:] == [
        moment["video"] for moment in moments
    ]
    with Image.open(tmp_path / "moments.jpg") as sheet:
        assert sheet.size == (3 * 240, 180)


def test_occurrences_of_a_long_recording_are_found(annotate, labels_root, tmp_path):
    idle = np.tile([250, 250, 250], (25, 1))
    parts = [idle, rainbow(34, 30), idle, rainbow(38, 31), idle]
    write_video(tmp_path / "long" / "a.mp4", np.concatenate(parts))
    ran = annotate(
        *(tmp_path / "long", "-o", tmp_path / "out", "--repeat", "--json"),
        *("--labels", labels_root / "one.csv"),
    )
    assert ran.code == 0, ran
    (video,) = ran.json["videos"]
    bounds = [(each["start"], each["end"]) for each in video["occurrences"]]
    np.testing.assert_allclose(bounds, [(25, 59), (84, 122)], atol=5)
    frames = read_rows(tmp_path / "out" / "frames.csv")
    assert {frames[index]["phase"] for index in (5, 70, 140)} == {""}
    rows = read_rows(tmp_path / "out" / "annotations.csv")
    assert [row["id"] for row in rows] == ["a-0", "a-1"]
    assert [float(row["start"]) for row in rows] == pytest.approx([2.5, 8.4], abs=0.5)


def test_videos_that_do_not_show_the_action_are_flagged(annotate, tmp_path):
    colors = rainbow(40, 12)
    unlike = np.tile([[20, 250, 250], [250, 20, 250]], (20, 1))
    for name, frames in (("whole", colors), ("reversed", colors[::-1]), ("unlike", unlike)):
        write_video(tmp_path / "new" / f"{name}.mp4", frames)
    ran = annotate(tmp_path / "new", "-o", tmp_path / "out", "--json")
    problems = {video["video"]: bool(video["problems"]) for video in ran.json["videos"]}
    assert problems == {"whole": False, "reversed": True, "unlike": True}


@pytest.mark.usefixtures("folders")
def test_aligned_videos_are_checked_too(labels_root, tmp_path, call):
    a = labels_root / "one.mp4"
    b = write_video(tmp_path / "b.mp4", rainbow(40, 12)[::-1])
    ran = call(align_main, "byov-align", a, b, "-o", tmp_path / "out.mp4")
    assert ran.code == 0, ran
    assert "B may not show the action of the training videos: " in ran.out
    assert "A may not" not in ran.out


@pytest.mark.slow
def test_an_interrupted_call_resumes(annotate, labels_root, tmp_path, start_paused):
    new = shutil.copytree(labels_root / "new", tmp_path / "new")
    folders = {"runs": labels_root / "runs", "features": labels_root / "features"}
    words = (
        *(Path(sys.executable).parent / "byov-annotate", new, "-o", tmp_path / "out"),
        *("--runs-dir", folders["runs"], "--features-dir", folders["features"]),
    )
    process = start_paused(words, before=".h5")
    _, err = signal_and_end(process, signal.SIGINT)
    assert "run the same command to resume" in err
    assert not (tmp_path / "out" / "annotations.csv").exists()
    assert annotate(new, "-o", tmp_path / "out").code == 0
    assert len(read_rows(tmp_path / "out" / "annotations.csv")) == 2


def test_segments_in_any_order_label_frames(annotate, labels_root, tmp_path):
    (labels_root / "segments.csv").write_text(
        "path,segments\none.mp4,0f-12f reach; 12f-28f pour; 28f-40f reach\n"
    )
    ran = annotate(
        *(labels_root / "new", "-o", tmp_path / "out", "--json"),
        *("--labels", labels_root / "segments.csv"),
    )
    assert ran.code == 0, ran
    assert ran.json["phases"] == ["reach", "pour"]
    assert [video["occurrences"][0]["events"] for video in ran.json["videos"]] == [[], []]
    frames = read_rows(tmp_path / "out" / "frames.csv")
    assert [frames[index]["phase"] for index in (2, 18, 34)] == ["reach", "pour", "reach"]


def test_few_labels_do_not_change_the_progress_of_the_other_videos(labels_root):
    run = byov.load_run("toy", runs_dir=labels_root / "runs", features_dir=labels_root / "features")
    videos = run.embeddings("train")
    unlabeled = training_progress(run, videos)
    labeled = tuple(np.searchsorted(events_of(30), np.arange(30), side="right").tolist())
    videos.videos["0"] = replace(videos.videos["0"], labels=labeled)
    anchored = training_progress(run, videos)
    for name in set(videos) - {"0"}:
        np.testing.assert_array_equal(anchored[name], unlabeled[name])
    # Labels anchor the scale: at its events, the labeled video keeps the progress of the others.
    for event in events_of(30):
        assert anchored["0"][event] == pytest.approx(unlabeled["0"][event], abs=1e-6)


def test_labels_must_show_every_phase():
    with pytest.raises(ApplyError, match="'pour'"):
        LabeledFrames(np.zeros((2, 3), np.float32), np.array([0, -1]), ("start", "pour"))


def test_phases_that_are_not_shown_start_with_the_next_one():
    found = given_phases(np.array([0, 0, 2, 2]), 4)
    assert found.events.tolist() == [2, 2, 3]


def test_disorder_is_zero_for_steady_progress():
    zeros = np.zeros(11)
    assert Estimate(np.linspace(0, 1, 11), zeros, zeros).disorder == 0
    reversed_video = Estimate(np.linspace(1, 0, 11), zeros, zeros)
    assert reversed_video.disorder > 0.2
    assert reversed_video.problems() == [
        "the action does not advance steadily",
        "it starts at 100% of the action",
        "it ends at 0% of the action",
    ]


def test_phase_probabilities_follow_from_the_events():
    posteriors = np.array([[0.5, 0.5, 0, 0], [0, 0, 1, 0]])
    np.testing.assert_allclose(
        phase_probabilities(posteriors), [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]]
    )
    assert probability_near(posteriors[0], 0) == 1
    assert probability_near(posteriors[1], 0) == 0


def test_subtitles_are_escaped_and_skip_unlabeled_frames(labels_root):
    run = byov.load_run("toy", runs_dir=labels_root / "runs", features_dir=labels_root / "features")
    features = byov.load_features(features_dir=labels_root / "features")
    annotator = byov.Annotator(run)
    (annotation,) = annotator.annotate(features["0"], np.arange(30) / 10)
    assert to_vtt([annotation]) == "WEBVTT\n"
    phases = np.array([-1] + 9 * [0] + 20 * [1])
    marked = replace(annotation, phases=phases, phase_names=("a <b>", "c"))
    assert to_vtt([marked]) == (
        "WEBVTT\n\n00:00:00.100 --> 00:00:01.000\na &lt;b&gt;\n\n00:00:01.000 --> 00:00:03.900\nc\n"
    )


def test_the_next_video_to_label_is_uncertain_but_usual():
    def video(name, confidence, *problems, labeled=False):
        return {
            "video": name,
            "confidence": confidence,
            "problems": problems,
            "labeled": labeled,
        }

    videos = [
        video("unlike", 0.1, "its frames look unlike the training videos"),
        video("labeled", 0.2, labeled=True),
        video("uncertain", 0.3, "uncertain time of 'pour'"),
        video("certain", 0.9),
    ]
    assert label_next(videos) == "uncertain"
    assert label_next(videos[:2]) is None
    assert label_next(videos, has_phases=False) == "certain"


def test_windows_with_a_large_mismatch_are_no_occurrences():
    assert find_occurrences(200, 50, lambda *_: 3.0) == []
    assert find_occurrences(10, 50, lambda start, end: float(10 - end + start)) == [(0, 10)]
