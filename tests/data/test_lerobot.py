"""Tests of LeRobot datasets: synthetic ones, and real ones if they are in ../shared."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tests.factories import gray_images, write_video
from tests.lerobot import CAMERA, TOP, WRIST, write_lerobot

from byov.data.dataset import WHOLE_FILE, FileSegment
from byov.data.lerobot import LeRobot, read_episodes, read_info
from byov.data.video import FrameReader, probe
from byov.errors import DatasetError

SHARED = Path(__file__).parents[3] / "shared" / "lerobot"
FRAMES = 5  # number of frames per episode


@pytest.fixture
def make(tmp_path):
    """Return a function that writes a dataset with one episode per task; v3.0 packs all episodes
    into one file.
    """

    def write(version, tasks=("pour",) * 5, **changes):
        images = 2 * gray_images(20)
        episodes = [images[i * FRAMES : (i + 1) * FRAMES] for i in range(len(tasks))]
        return write_lerobot(tmp_path / "robot", version, episodes, tasks, **changes)

    return write


def read(root, **settings):
    return LeRobot(**({"ego": WRIST, "exo": TOP} | settings)).read(root)


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_episodes_are_pairs_of_the_two_cameras(make, version):
    root = make(version)
    videos = {video.id: video for video in read(root).videos}
    assert list(videos) == [f"episode_{i:06d}-{view}" for i in range(5) for view in ("ego", "exo")]
    for i in range(5):
        ego = videos[f"episode_{i:06d}-ego"]
        exo = videos[f"episode_{i:06d}-exo"]
        assert (ego.pair, ego.split) == (exo.pair, exo.split) == (f"episode_{i:06d}", ego.split)
        assert (WRIST in str(ego.path), TOP in str(exo.path)) == (True, True)
        grays = [
            round((image.mean() - 20) / 10)
            for image, _ in FrameReader(ego.path, segment=ego.segment).images()
        ]
        first = FRAMES * i % 20
        assert grays == list(range(first, first + FRAMES))
        assert probe(ego.path, ego.segment).frames == FRAMES
        assert ego.segment == (FileSegment(i / 2, (i + 1) / 2) if version == "v3.0" else WHOLE_FILE)
    splits = [videos[f"episode_{i:06d}-ego"].split for i in range(5)]
    assert sorted(splits) == ["test", "train", "train", "train", "val"]
    # The assignment is deterministic.
    assert splits == [video.split for video in read(root).videos[::2]]


@pytest.mark.parametrize("view", ["ego", "exo"])
def test_one_camera_is_enough(make, view):
    root = make("v2.1")
    videos = read(root, **({"ego": None, "exo": None} | {view: TOP})).videos
    assert [video.id for video in videos] == [f"episode_{i:06d}-{view}" for i in range(5)]
    assert {(video.view, video.pair) for video in videos} == {(view, None)}
    assert sorted(video.split for video in videos) == ["test", "train", "train", "train", "val"]


def test_a_task_is_chosen_by_its_text(make):
    root = make("v2.1", ["pour milk", "open the door", "open the door", "pour water"])
    with pytest.raises(
        DatasetError,
        match=r"several tasks.*--task: 'pour milk' \(1 episodes\); 'open the door' \(2",
    ):
        read(root)
    with pytest.raises(DatasetError, match="task 'pour' matches none or several"):
        read(root, task="pour")
    assert {video.pair for video in read(root, task="Door").videos} == {
        "episode_000001",
        "episode_000002",
    }


def test_missing_and_black_videos_are_skipped_and_logged(make, caplog):
    caplog.set_level("INFO")
    root = make("v2.1")
    (root / f"videos/chunk-000/{TOP}/episode_000003.mp4").unlink()
    write_video(
        root / f"videos/chunk-000/{WRIST}/episode_000001.mp4", [np.zeros((48, 64, 3), np.uint8)] * 3
    )
    videos = {video.id: video.pair for video in read(root).videos}
    assert len(videos) == 8
    assert videos["episode_000001-exo"] is None
    assert f"skipped (missing): videos/chunk-000/{TOP}/episode_000003.mp4" in caplog.text
    assert f"skipped (black): videos/chunk-000/{WRIST}/episode_000001.mp4" in caplog.text


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({}, {"ego": None, "exo": None}, rf"from {WRIST} \(64x48\), {TOP} \(64x48\)\."),
        ({}, {"exo": "top"}, f"no camera 'top'.*{TOP}"),
        ({}, {"exo": WRIST}, "Choose a camera"),
        ({"codebase_version": "v1.6"}, {}, r"version v1\.6\. byov reads .*v2\.0, v2\.1, v3\.0"),
        ({"codebase_version": None}, {}, "convert it"),
        ({"video_path": None}, {}, "without videos"),
        ({"video_path": "videos/{episode}.mp4"}, {}, "unknown field"),
        ({"video_path": "../{video_key}/{episode_index}.mp4"}, {}, "outside of"),
        ({"features": {"action": {"dtype": "float32"}}}, {}, "none of its features is a video"),
        ({"features": None}, {}, "Download it again"),
        ({"video_path": "clips/{episode_index}.mp4"}, {}, "all of its 10 videos are missing"),
    ],
)
def test_what_cannot_be_read_is_one_line(make, changes, settings, message):
    with pytest.raises(DatasetError, match=message) as error:
        read(make("v2.1", **changes), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"video_path": "{episode_index:>3000000000}"}, "unknown field"),
        ({"video_path": "{episode_index.__class__}/{video_key[0]}"}, "unknown field"),
        ({"video_path": "{episode_index!r}"}, "unknown field"),
        ({"video_path": "{file_index}.mp4"}, "unknown field"),
        ({"video_path": "{video_key}/{"}, "unknown field"),
        ({"video_path": "x" * 2000}, "video_path is .*at most 1000 characters"),
        ({"video_path": ["videos"]}, "video_path is .*valid string"),
        ({"fps": float("inf")}, "fps is inf.*finite"),
        ({"fps": "10"}, "fps is '10'"),
        ({"fps": 0}, "fps is 0.*above 0"),
        ({"chunks_size": 1e3}, "chunks_size is 1000.0"),
        ({"chunks_size": 0}, "chunks_size is 0.*above 0"),
        ({"features": [WRIST]}, "features is "),
        ({"features": {WRIST: CAMERA, TOP: CAMERA | {"shape": 5}}}, "shape is 5"),
        ({"features": {WRIST: CAMERA, TOP: CAMERA | {"info": [1]}}}, "info is"),
        ({"features": {WRIST: CAMERA, TOP: CAMERA | {"names": [["width"]]}}}, None),
    ],
)
def test_metadata_is_validated(make, changes, message):
    root = make("v2.1", **changes)
    if message is None:
        assert len(read(root).videos) == 10
    else:
        with pytest.raises(DatasetError, match=message) as error:
            read(root)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "row", ['{"episode_index": 1e1}', '{"episode_index": 0, "tasks": 3}', "[" * 100_000]
)
def test_episodes_are_validated(make, row):
    root = make("v2.1")
    (root / "meta/episodes.jsonl").write_text(row + "\n")
    with pytest.raises(DatasetError, match=r"episodes\.jsonl: missing or not a list"):
        read(root)


@pytest.mark.parametrize(
    "change", [{"length": 0}, {"tasks": 3}, {f"videos/{TOP}/from_timestamp": -1.0}]
)
def test_packed_episodes_are_validated(make, change):
    root = make("v3.0")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = [row | change for row in parquet.read_table(path).to_pylist()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(DatasetError, match=r"file-000\.parquet: not a list of episodes"):
        read(root)


@pytest.mark.parametrize("place", ["other/../robot", "link"])
def test_root_may_contain_dots_or_links(make, tmp_path, caplog, place):
    caplog.set_level("INFO")
    root = make("v2.1")
    (root / f"videos/chunk-000/{TOP}/episode_000003.mp4").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(root)
    assert len(read(tmp_path / place).videos) == 9
    assert f"skipped (missing): videos/chunk-000/{TOP}/episode_000003.mp4" in caplog.text


def test_links_may_leave_the_folder(make, tmp_path):
    """The cache of the Hugging Face Hub consists of such links."""
    root = make("v2.1")
    (root / "videos").rename(tmp_path / "blobs")
    (root / "videos").symlink_to(tmp_path / "blobs")
    assert len(read(root).videos) == 10


def test_damaged_metadata(make):
    root = make("v3.0")
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    episodes.write_bytes(episodes.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"file-000\.parquet: not readable"):
        read(root)
    episodes.unlink()
    with pytest.raises(DatasetError, match=r"episodes: no \.parquet file"):
        read(root)
    (root / "meta/info.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"info\.json: not readable"):
        read(root)
    with pytest.raises(DatasetError, match=r"no meta/info\.json"):
        read(root / "meta")
    root = make("v2.1")
    (root / "meta/episodes.jsonl").write_text("[1]\n")
    with pytest.raises(DatasetError, match=r"episodes\.jsonl: missing or not a list"):
        read(root)


# --- real datasets


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the datasets in ../shared")
@pytest.mark.parametrize(
    ("name", "key", "episode", "frames"),
    [
        ("banana_v21", TOP, 1, 215),
        ("cloth_v21", "observation.images.cam1", 2, 274),
        ("box_v30", "image", 3, 429),
    ],
)
def test_real_episodes(name, key, episode, frames):
    root = SHARED / name
    episodes = {each.index: each for each in read_episodes(root, read_info(root), [key])}
    path, segment = episodes[episode].videos[key]
    assert probe(path, segment).frames == frames
    assert (
        sum(len(block.pixels) for block in FrameReader(path, segment=segment, threads=2).blocks())
        == frames
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the datasets in ../shared")
def test_real_pairs():
    videos = read(
        SHARED / "cloth_v21", ego="observation.images.cam0", exo="observation.images.cam1"
    ).videos
    # The ego video of the first episode is black.
    numbers = ["0-exo", "1-ego", "1-exo", "2-ego", "2-exo"]
    assert [video.id for video in videos] == [f"episode_00000{number}" for number in numbers]
