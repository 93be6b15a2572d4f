"""LeRobot dataset reader for v2.0 and v2.1 (one file per episode and camera) and v3.0 (many
episodes per file).

One camera is the ego view and another the exo view; the two videos of an episode are a pair. Videos
have no labels.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byov.data.dataset import WHOLE_FILE, Dataset, FileSegment, Video, require_views
from byov.data.own_videos import path_inside
from byov.data.video import FrameReader
from byov.data.video_folder import DEFAULT_SPLIT_FRACTIONS, assign_splits, log_skipped
from byov.errors import DatasetError, VideoError
from byov.records import VIEWS, View

LOGGER = logging.getLogger(__name__)
VERSIONS = ("v2.0", "v2.1", "v3.0")
# A video counts as black if no pixel is brighter than this; above 0, since compression adds noise.
BLACK = 24


@dataclass(frozen=True, eq=False)  # hashed by identity
class Episode:
    """An episode: its tasks, and the video file and segment of each camera."""

    index: int
    tasks: tuple[str, ...]
    videos: Mapping[str, tuple[Path, FileSegment]]

    @property
    def name(self) -> str:
        return f"episode_{self.index:06d}"


def read_lerobot(
    name: str,
    root: Path,
    ego: str | None,
    exo: str | None,
    task: str | None = None,
    fractions: Sequence[float] | None = None,
) -> Dataset:
    """Read a LeRobot dataset with one camera as the ego view and another as the exo view.

    Args:
        name: Dataset name.
        root: Folder that contains meta/info.json.
        ego: Key of the camera that moves with the robot, such as "observation.images.wrist".
        exo: Key of a camera that films the robot from outside.
        task: Task whose episodes to read, or a unique part of its text; required if there are
            several tasks.
        fractions: Fractions of train, val and test episodes. Episodes are assigned at random with a
            fixed seed.

    Raises:
        DatasetError: If the dataset cannot be read, or a camera or the task is missing. Unusable
            videos are skipped.
    """
    info, cameras = _read_info(root)
    listed = ", ".join(f"{key} ({size})" for key, size in cameras.items())
    if len(cameras) == 1:
        raise DatasetError(
            f"{root} has only one camera, {listed}. byov needs an ego and an exo camera."
        )
    unknown = [f"no camera {key!r}. " for key in (ego, exo) if key and key not in cameras]
    if unknown or ego is None or exo is None or ego == exo:
        raise DatasetError(
            f"{root}: {''.join(unknown[:1])}Choose two cameras with --ego KEY and --exo KEY from "
            f"{listed}."
        )
    keys: dict[View, str] = {"ego": ego, "exo": exo}
    episodes = _of_task(root, list(read_episodes(root, info, tuple(keys.values()))), task)
    usable = _usable_videos(root, episodes)
    views = {
        episode: [view for view in VIEWS if (episode, keys[view]) in usable] for episode in episodes
    }
    shuffled = [episodes[index] for index in np.random.default_rng(0).permutation(len(episodes))]
    # Episodes with both views come first, because the first episode always goes to train.
    order = sorted(filter(views.get, shuffled), key=lambda episode: -len(views[episode]))
    splits = dict(
        zip(order, assign_splits(len(order), fractions or DEFAULT_SPLIT_FRACTIONS), strict=True)
    )
    videos = []
    for episode in sorted(order, key=lambda episode: episode.index):
        pair = episode.name if len(views[episode]) == len(VIEWS) else None
        for view in views[episode]:
            path, segment = episode.videos[keys[view]]
            split = splits[episode]
            videos.append(
                Video(f"{episode.name}-{view}", view, split, path, pair=pair, segment=segment)
            )
    counts = Counter(splits.values())
    LOGGER.info(
        f"{root}: {', '.join(f'{counts[split]} {split}' for split in counts)} episodes of "
        f"{len(episodes)}"
    )
    dataset = Dataset(name, root, tuple(videos))
    require_views(dataset, ("train",))
    return dataset


def _read_info(root: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return meta/info.json and a dict of camera keys and frame sizes such as "640x480", without
    depth cameras.
    """
    path = root / "meta" / "info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        version, template, _, features = (
            info[key] for key in ("codebase_version", "video_path", "fps", "features")
        )
        cameras = {}
        for key, feature in features.items():
            details = feature.get("info") or feature.get("video_info") or {}
            if feature["dtype"] == "video" and not details.get("video.is_depth_map"):
                size = dict(
                    zip(feature.get("names") or (), feature.get("shape") or (), strict=False)
                )
                cameras[key] = f"{size.get('width', '?')}x{size.get('height', '?')}"
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{root}: no meta/info.json. Pass the root folder of a LeRobot dataset."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: not readable as LeRobot metadata ({error!r}). Download it again."
        ) from None
    if version not in VERSIONS or not template:
        problem = f"version {version}" if template else "episodes without videos"
        raise DatasetError(
            f"{root}: {problem}. byov reads the videos of LeRobot {', '.join(VERSIONS)}; convert "
            "it."
        )
    if not cameras:
        raise DatasetError(f"{root}: none of its features is a video")
    return info, cameras


def read_episodes(root: Path, info: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Episode]:
    """Yield all episodes with their videos from the given cameras, without checking that the files
    exist.
    """
    is_packed = info["codebase_version"] == "v3.0"
    for row in _packed_rows(root, keys) if is_packed else _rows(root / "meta" / "episodes.jsonl"):
        index = int(row["episode_index"])
        videos = {}
        for key in keys:
            segment = WHOLE_FILE
            fields = {"video_key": key, "episode_index": index}
            if is_packed:
                fields |= {
                    field: row[f"videos/{key}/{field}"] for field in ("chunk_index", "file_index")
                }
                # Do not use to_timestamp: it may be the time of the last frame or the start of the
                # next episode.
                start = row[f"videos/{key}/from_timestamp"]
                segment = FileSegment(start, start + row["length"] / info["fps"])
            else:
                chunk = index // int(info.get("chunks_size") or 1000)
                fields |= {"episode_chunk": chunk, "chunk_index": chunk}
            try:
                name = info["video_path"].format(**fields)
            except (KeyError, ValueError, IndexError) as error:
                raise DatasetError(
                    f"{root}: video_path {info['video_path']!r} has an unknown field {error}"
                ) from None
            videos[key] = path_inside(root, name, f"{root}: video_path"), segment
        yield Episode(index, tuple(row.get("tasks") or ()), videos)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Read the episodes of a v2.0 or v2.1 dataset from episodes.jsonl."""
    try:
        rows = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
        return [row for row in rows if row["episode_index"] >= 0]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path}: missing or not a list of episodes ({error!r}). Download it again."
        ) from None


def _packed_rows(root: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read the episodes of a v3.0 dataset from meta/episodes/**.parquet, with only the columns that
    locate videos.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DatasetError(
            f"{root}: LeRobot v3.0 needs pyarrow. Run pip install 'byov-egoexo[lerobot]'."
        ) from None
    fields = ("chunk_index", "file_index", "from_timestamp")
    columns = [
        "episode_index",
        "tasks",
        "length",
        *(f"videos/{key}/{field}" for key in keys for field in fields),
    ]
    paths = sorted((root / "meta" / "episodes").rglob("*.parquet"))
    if not paths:
        raise DatasetError(
            f"{root / 'meta' / 'episodes'}: no .parquet file. Download the dataset again."
        )
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            table = parquet.ParquetFile(path).read(columns=columns)
        except (OSError, pyarrow.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise DatasetError(
                f"{path}: not readable ({reason}). Download the dataset again."
            ) from None
        if missing := [column for column in columns if column not in table.column_names]:
            raise DatasetError(f"{path}: no column {missing[0]!r}")
        rows += table.to_pylist()
    return sorted(rows, key=lambda row: int(row["episode_index"]))


def _of_task(root: Path, episodes: list[Episode], task: str | None) -> list[Episode]:
    """Return the episodes of a task; `task` may be None if there is only one task."""
    counts = Counter(each for episode in episodes for each in episode.tasks)
    if task is None and not counts:
        return episodes
    chosen = [each for each in counts if each == task] or [
        each for each in counts if task is None or task.lower() in each.lower()
    ]
    if len(chosen) == 1:
        return [episode for episode in episodes if chosen[0] in episode.tasks]
    listed = "; ".join(f"{each!r} ({count} episodes)" for each, count in counts.items())
    problem = (
        f"task {task!r} matches none or several of its tasks" if task else "it has several tasks"
    )
    raise DatasetError(f"{root}: {problem}. Choose one with --task: {listed}.")


def _usable_videos(root: Path, episodes: Sequence[Episode]) -> set[tuple[Episode, str]]:
    """Return (episode, camera key) of each video that exists and is not black; log the others."""
    videos = [(episode, key) for episode in episodes for key in episode.videos]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda video: _problem(*video[0].videos[video[1]]), videos)
        problems = dict(zip(videos, results, strict=True))
    for reason in ("missing", "black"):
        skipped = [video for video, problem in problems.items() if problem == reason]
        log_skipped(reason, [episode.videos[key][0].relative_to(root) for episode, key in skipped])
    usable = {video for video, problem in problems.items() if not problem}
    if not usable:
        raise DatasetError(
            f"{root}: all of its {len(videos)} videos are missing or black. Download the dataset "
            "again."
        )
    return usable


def _problem(path: Path, segment: FileSegment) -> str:
    """Return "missing", "black", or "" if neither.

    Decoding errors are ignored here; extraction reports them.
    """
    if not path.is_file():
        return "missing"
    with suppress(VideoError):
        if all(image.max() <= BLACK for image, _ in FrameReader(path, segment=segment).images()):
            return "black"
    return ""
