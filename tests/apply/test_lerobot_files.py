"""Tests of byov-annotate --lerobot: progress and subtasks of the episodes of a dataset."""

import json

import numpy as np
import pytest
from pyarrow import parquet
from tests.apply.conftest import rainbow
from tests.factories import read_files, write_video
from tests.lerobot import TOP, WRIST, write_data, write_lerobot, write_table

import byov
from byov.apply.lerobot_files import LeRobotAnnotations, find_subtasks, list_episodes
from byov.cli.annotate import main as annotate_main
from byov.cli.extract import main as extract_main
from byov.errors import ApplyError

LENGTHS = (30, 34, 38, 42)
PACKED_EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def images_of(length, seed):
    return [np.tile(color, (48, 64, 1)).astype(np.uint8) for color in rainbow(length, seed)]


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """Folder with a dataset, and a run that was trained on one of its cameras."""
    root = tmp_path_factory.mktemp("lerobot")
    episodes = [images_of(length, seed) for seed, length in enumerate(LENGTHS)]
    for version in ("v2.1", "v3.0"):
        write_lerobot(root / version, version, episodes)
        write_data(root / version, dict(enumerate(LENGTHS)))
    (root / "labels.csv").write_text(
        f"path,events\nvideos/chunk-000/{TOP}/episode_000000.mp4,9f pour;21f put down\n"
    )
    (root / "packed-labels.csv").write_text(
        f"path,start,end,events\nvideos/{TOP}/chunk-000/file-000.mp4,0,3,9f pour;21f put down\n"
    )
    folders = {"features_dir": root / "features"}
    byov.extract_features(lerobot=root / "v2.1", exo=TOP, encoder="random/tiny", **folders)
    options = {"epochs": 40, "frames": 16, "clips": 4}
    byov.train_run("arm", method="timeline", runs_dir=root / "runs", **folders, **options)
    return root


@pytest.fixture
def annotate(robot, monkeypatch, call):
    monkeypatch.setenv("BYOV_RUNS", str(robot / "runs"))
    monkeypatch.setenv("BYOV_FEATURES", str(robot / "features"))
    return lambda *arguments: call(annotate_main, "byov-annotate", *arguments)


@pytest.fixture
def run(robot):
    return byov.load_run("arm", runs_dir=robot / "runs", features_dir=robot / "features")


@pytest.mark.parametrize(("version", "labels"), [("v2.1", "labels"), ("v3.0", "packed-labels")])
def test_files_for_lerobot(annotate, robot, tmp_path, version, labels):
    before = read_files(robot / version)
    out = tmp_path / "out"
    ran = annotate(
        *("--lerobot", robot / version, "-o", out, "--json"),
        *("--labels", robot / f"{labels}.csv"),
    )
    assert ran.code == 0, ran
    assert f"camera: {TOP}" in ran.err
    assert read_files(robot / version) == before
    table = parquet.read_table(out / "progress.parquet")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    data = parquet.read_table(robot / version / "data")
    for name in ("index", "episode_index", "frame_index"):
        np.testing.assert_array_equal(columns[name], data[name].to_numpy())
    assert table.schema.metadata[b"reward_model_path"] == b"arm"
    assert columns["progress_sparse"].dtype == np.float32
    for episode, length in enumerate(LENGTHS):
        progress = columns["progress_sparse"][columns["episode_index"] == episode]
        assert np.abs(progress - np.linspace(0, 1, length)).mean() < 0.2
    if version == "v3.0":
        original = parquet.read_table(robot / version / PACKED_EPISODES)
        episodes = parquet.read_table(out / PACKED_EPISODES)
        assert episodes.select(original.column_names) == original
        rows = episodes.to_pylist()
    else:
        lines = (out / "meta" / "episodes.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
    assert rows[0]["sparse_subtask_names"] == ["start", "pour", "put down"]
    assert rows[0]["sparse_subtask_start_frames"] == [0, 9, 21]
    assert rows[0]["sparse_subtask_end_frames"] == [9, 21, 30]
    assert rows[0]["sparse_subtask_start_times"] == pytest.approx([0, 0.9, 2.1])
    for row, length in zip(rows, LENGTHS, strict=True):
        starts = row["sparse_subtask_start_frames"]
        np.testing.assert_allclose(starts, np.array([0, 0.3, 0.7]) * length, atol=4)
        assert row["sparse_subtask_end_frames"] == [*starts[1:], length]
    proportions = json.loads((out / "meta" / "temporal_proportions_sparse.json").read_text())
    assert list(proportions) == ["start", "pour", "put down"]
    assert sum(proportions.values()) == pytest.approx(1, abs=1e-5)
    assert ran.json["lerobot"]["annotated"] == 4


def test_episodes_without_an_estimate_are_nan(annotate, tmp_path):
    root = write_lerobot(tmp_path / "robot", "v2.1", [images_of(30, seed) for seed in range(4)])
    folder = root / f"videos/chunk-000/{TOP}"
    (folder / "episode_000001.mp4").unlink()
    (folder / "episode_000002.mp4").write_bytes(b"no video")
    ran = annotate("--lerobot", root, "-o", tmp_path / "out")
    assert ran.code == 1
    assert "skipped (missing)" in ran.err
    assert "episode_000002.mp4" in ran.err
    assert "progress of 2 episodes of 4" in ran.out
    table = parquet.read_table(tmp_path / "out" / "progress.parquet")
    progress = table["progress_sparse"].to_numpy()
    np.testing.assert_array_equal(table["index"].to_numpy(), np.arange(120))
    np.testing.assert_array_equal(np.isnan(progress), np.repeat([False, True, True, False], 30))
    assert not (tmp_path / "out" / "meta").exists()  # there are no phases


def frame_columns(video, count):
    return {
        "video": video,
        "frame": np.arange(count),
        "progress": np.linspace(0, 1, count),
        "phase": np.full(count, "", object),
    }


def test_lengths_may_differ_by_one_frame(robot, run, tmp_path):
    episodes = list_episodes(run, robot / "v2.1", TOP)
    annotations = LeRobotAnnotations(episodes)
    annotations.add(frame_columns("episode_000000", 29))
    annotations.add(frame_columns("episode_000001", 35))
    annotations.write(tmp_path, "arm")
    progress = parquet.read_table(tmp_path / "progress.parquet")["progress_sparse"].to_numpy()
    np.testing.assert_allclose(progress[:30], [*np.linspace(0, 1, 29), 1], atol=1e-6)
    np.testing.assert_allclose(progress[30:64], np.linspace(0, 1, 35)[:34], atol=1e-6)
    with pytest.raises(ApplyError, match=r"episode_000002: the video has 40 frames.*has 38"):
        annotations.add(frame_columns("episode_000002", 40))


def test_the_index_is_that_of_the_data(run, tmp_path):
    root = write_lerobot(tmp_path / "robot", "v2.1", [images_of(4, seed) for seed in range(3)])
    write_data(root, {1: 4}, first=10)
    frames = list_episodes(run, root, TOP).frames
    assert [(each.first, each.length) for each in frames] == [(0, 4), (10, 4), (14, 4)]
    write_data(root, {1: 4}, first=2)
    with pytest.raises(ApplyError, match="episode 1 starts at index 2, but the previous one ends"):
        list_episodes(run, root, TOP)
    path = root / "data/chunk-000/file-000.parquet"
    rows = [{"episode_index": 0, "frame_index": frame, "index": frame} for frame in (0, 2, 3)]
    write_table(path, rows)
    with pytest.raises(ApplyError, match="episode 0 are not numbered consecutively"):
        list_episodes(run, root, TOP)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ApplyError, match=r"file-000\.parquet: not readable"):
        list_episodes(run, root, TOP)


def test_a_camera_is_chosen_if_it_is_unambiguous(robot, run, tmp_path):
    videos = list_episodes(run, robot / "v2.1").videos
    assert {video.path.parent.name for video in videos} == {TOP}  # that of the run
    images = [images_of(4, 0)]
    only = write_lerobot(tmp_path / "only", "v2.1", images, cameras=["front"])
    assert len(list_episodes(run, only).videos) == 1
    other = write_lerobot(tmp_path / "other", "v2.1", images, cameras=["front", "back"])
    for camera in (None, "top"):
        with pytest.raises(ApplyError, match=r"Choose one with --camera from front \(64x48\), ba"):
            list_episodes(run, other, camera)


def test_mistakes_are_one_line(annotate, robot, tmp_path):
    dataset = ("--lerobot", robot / "v2.1")
    video = write_video(tmp_path / "a.mp4")
    for arguments, fact in (
        (("-o", tmp_path / "out"), "no videos"),
        ((*dataset, video, "-o", tmp_path / "out"), "VIDEOS cannot be combined with --lerobot"),
        ((video, "--camera", TOP, "-o", tmp_path / "out"), "--camera and --task need --lerobot"),
        ((*dataset, "--find", "a.mp4@2s", "-o", tmp_path / "out"), "--find cannot be combined"),
        ((*dataset, "-o", tmp_path / "progress.parquet"), "Pass a folder"),
        ((*dataset, "-o", robot / "v2.1"), "inside of the dataset"),
        ((*dataset, "-o", robot / "v2.1" / "new"), "inside of the dataset"),
        ((*dataset, "--task", "wipe", "-o", tmp_path / "out"), "'pour' (4 episodes)"),
        (("--lerobot", robot / "runs", "-o", tmp_path / "out"), "no meta/info.json"),
    ):
        ran = annotate(*arguments)
        assert ran.code == 2, ran
        assert fact in ran.error()
        assert not (tmp_path / "out").exists()


def test_subtasks_are_the_parts_with_the_same_phase():
    found = find_subtasks(np.array(["", "a", "a", "b", "", "a"], object), fps=2)
    assert found == {
        "names": ["a", "b", "a"],
        "start_times": [0.5, 1.5, 2.5],
        "end_times": [1.5, 2.0, 3.0],
        "start_frames": [1, 3, 5],
        "end_frames": [3, 4, 6],
    }


def test_one_camera_can_be_extracted(robot, tmp_path, call):
    ran = call(
        *(extract_main, "byov-extract", "--lerobot", robot / "v3.0", "--ego", WRIST, "--json"),
        *("--encoder", "random/tiny", "--features-dir", tmp_path / "features"),
    )
    assert (ran.code, ran.json["extracted_videos"]) == (0, 4), ran
