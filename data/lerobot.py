"""LeRobot dataset reader for v2.0 and v2.1 (one file per episode and camera) and v3.0 (many
episodes per file).

One camera is the ego view and another the exo view; the two videos of an episode are a pair. A
single camera can be read, too. Videos have no labels.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from byov.data.dataset import WHOLE_FILE, Dataset, FileSegment, Video, require_views
from byov.data.own_videos import path_inside
from byov.data.reader import DatasetReader, Fractions
from byov.data.video import FrameReader
from byov.data.video_folder import DEFAULT_SPLIT_FRACTIONS, assign_splits, log_skipped
from byov.errors import DatasetError, VideoError
from byov.files import read_bytes, read_text
from byov.progress import NO_PROGRESS, Progress
from byov.records import VIEWS, Record, View, problem

LOGGER = logging.getLogger(__name__)
VERSIONS = ("v2.0", "v2.1", "v3.0")
_SIDES = ("width", "height")
# A video counts as black if no pixel is brighter than this; above 0, since compression adds noise.
BLACK = 24


# Fields of video_path; numbers may be padded to at most 9 digits.
_FIELD = re.compile(
    r"\{(video_key|episode_chunk|episode_index|chunk_index|file_index)(?::0(\d)d)?\}"
)
_Index = Annotated[int, Field(ge=0, lt=10**9)]


class _Metadata(Record, extra="ignore"):
    """Part of a dataset's metadata, which may come from anyone."""


class _Feature(_Metadata):
    dtype: str
    shape: list[Any] | None = None
    names: list[Any] | dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    video_info: dict[str, Any] | None = None  # the name of `info` in v2.0

    @property
    def is_camera(self) -> bool:
        details = self.info or self.video_info or {}
        return self.dtype == "video" and not details.get("video.is_depth_map")

    @property
    def frame_size(self) -> str:
        """Width and height, such as "640x480"."""
        pairs = list(zip(self.names or (), self.shape or (), strict=False))
        sizes = (next((size for name, size in pairs if name == side), "?") for side in _SIDES)
        return "x".join(map(str, sizes))


class LeRobotInfo(_Metadata):
    """Contents of meta/info.json."""

    codebase_version: str | None
    video_path: Annotated[str, Field(max_length=1000)] | None
    fps: Annotated[float, Field(gt=0)]
    chunks_size: Annotated[int, Field(gt=0)] = 1000
    features: dict[str, _Feature]

    @property
    def cameras(self) -> dict[str, str]:
        """Frame sizes by camera key, without depth cameras."""
        cameras = {key: feature for key, feature in self.features.items() if feature.is_camera}
        return {key: feature.frame_size for key, feature in cameras.items()}

    @property
    def listed_cameras(self) -> str:
        """Camera keys with their frame sizes, for error messages."""
        return ", ".join(f"{key} ({size})" for key, size in self.cameras.items())


class _Clip(_Metadata):
    chunk_index: _Index
    file_index: _Index
    from_timestamp: Annotated[float, Field(ge=0)]


class _EpisodeRow(_Metadata):
    episode_index: _Index
    tasks: list[str] | None = None
    length: Annotated[int, Field(ge=1)]  # number of frames
    clips: dict[str, _Clip] = Field({})  # by camera key, in v3.0


@dataclass(frozen=True, eq=False)  # hashed by identity
class Episode:
    """An episode: its tasks and number of frames, and the video file and segment of each camera."""

    index: int
    tasks: tuple[str, ...]
    length: int
    videos: Mapping[str, tuple[Path, FileSegment]]

    @property
    def name(self) -> str:
        return f"episode_{self.index:06d}"


class LeRobot(DatasetReader):
    """Reader of LeRobot datasets, with one camera as the ego view, the exo view or one as each."""

    name = "lerobot"
    summary = "Folder of a LeRobot dataset (v2.0, v2.1 or v3.0)."
    takes_folder = True

    ego: str | None = Field(
        default=None,
        description='Key of the camera that moves with the robot, such as "cam.wrist".',
    )
    exo: str | None = Field(
        default=None, description="Key of a camera that films the robot from outside."
    )
    task: str | None = Field(
        default=None,
        description="Task, or a unique part of its text; required if there are several.",
    )
    # Episodes are assigned at random with a fixed seed.
    split: Fractions | None = Field(
        default=None, description="Fractions of train, val and test videos."
    )

    def read(self, folder: Path, _progress: Progress = NO_PROGRESS) -> Dataset:
        """Read the episodes with a usable video; unusable videos are skipped."""
        root = folder
        info = read_info(root)
        chosen: dict[View, str | None] = {"ego": self.ego, "exo": self.exo}
        keys = {view: key for view, key in chosen.items() if key is not None}
        unknown = [f"no camera {key!r}. " for key in keys.values() if key not in info.cameras]
        if unknown or not keys or self.ego == self.exo:
            raise DatasetError(
                f"{root}: {''.join(unknown[:1])}Choose a camera with --ego KEY or --exo KEY, or "
                f"one with each, from {info.listed_cameras}."
            )
        episodes = of_task(root, list(read_episodes(root, info, tuple(keys.values()))), self.task)
        usable = usable_videos(root, episodes)
        views = {
            episode: [view for view, key in keys.items() if (episode, key) in usable]
            for episode in episodes
        }
        shuffled = [
            episodes[index] for index in np.random.default_rng(0).permutation(len(episodes))
        ]
        # Episodes with both views come first, because the first episode always goes to train.
        order = sorted(filter(views.get, shuffled), key=lambda episode: -len(views[episode]))
        splits = dict(
            zip(
                order, assign_splits(len(order), self.split or DEFAULT_SPLIT_FRACTIONS), strict=True
            )
        )
        videos = []
        for episode in sorted(order, key=lambda episode: episode.index):
            pair = episode.name if len(views[episode]) == len(VIEWS) else None
            for view in views[episode]:
                path, segment = episode.videos[keys[view]]
                split = splits[episode]
                videos.append(
                    Video(
                        f"{episode.name}-{view}",
                        view,
                        split,
                        path,
                        pair=pair,
                        group=episode.name,
                        segment=segment,
                    )
                )
        counts = Counter(splits.values())
        LOGGER.info(
            f"{root}: {', '.join(f'{counts[split]} {split}' for split in counts)} episodes of "
            f"{len(episodes)}"
        )
        dataset = Dataset(root.resolve().name, root, tuple(videos))
        if len(keys) == len(VIEWS):
            require_views(dataset, ("train",))
        return dataset


def read_info(root: Path) -> LeRobotInfo:
    """Read meta/info.json, and check that the videos can be read."""
    path = root / "meta" / "info.json"
    try:
        info = LeRobotInfo.model_validate_json(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{root}: no meta/info.json. Pass the root folder of a LeRobot dataset."
        ) from None
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path}: not readable as LeRobot metadata ({_reason(error)}). Download it again."
        ) from None
    if info.codebase_version not in VERSIONS or not info.video_path:
        kind = f"version {info.codebase_version}" if info.video_path else "episodes without videos"
        raise DatasetError(
            f"{root}: {kind}. byov reads the videos of LeRobot {', '.join(VERSIONS)}; convert it."
        )
    if not info.cameras:
        raise DatasetError(f"{root}: none of its features is a video")
    return info


def read_episodes(root: Path, info: LeRobotInfo, keys: Sequence[str]) -> Iterator[Episode]:
    """Yield all episodes with their videos from the given cameras, without checking that the files
    exist.
    """
    is_packed = info.codebase_version == "v3.0"
    for row in _packed_rows(root, keys) if is_packed else _rows(root / "meta" / "episodes.jsonl"):
        videos = {}
        for key in keys:
            segment = WHOLE_FILE
            fields = {"video_key": key, "episode_index": row.episode_index}
            if is_packed:
                clip = row.clips[key]
                fields |= {"chunk_index": clip.chunk_index, "file_index": clip.file_index}
                # Do not use to_timestamp: it may be the time of the last frame or the start of the
                # next episode.
                start = clip.from_timestamp
                segment = FileSegment(start, start + row.length / info.fps)
            else:
                chunk = row.episode_index // info.chunks_size
                fields |= {"episode_chunk": chunk, "chunk_index": chunk}
            name = _expand(info.video_path or "", fields, root)
            videos[key] = path_inside(root, name, f"{root}: video_path"), segment
        yield Episode(row.episode_index, tuple(row.tasks or ()), row.length, videos)


def _expand(template: str, fields: Mapping[str, Any], root: Path) -> str:
    """Fill in the fields of a video_path such as "{video_key}/episode_{episode_index:06d}.mp4".

    str.format would also follow attributes, and pad to any width.
    """
    unknown = re.findall(r"[{}]", _FIELD.sub("", template)) or [
        field for field, _ in _FIELD.findall(template) if field not in fields
    ]
    if unknown:
        raise DatasetError(
            f"{root}: video_path {template!r} has an unknown field. Expected "
            f"{', '.join(f'{{{field}}}' for field in fields)}, optionally padded as in "
            "{episode_index:06d}."
        )
    return _FIELD.sub(lambda match: f"{fields[match[1]]}".zfill(int(match[2] or 0)), template)


def _rows(path: Path) -> list[_EpisodeRow]:
    """Read the episodes of a v2.0 or v2.1 dataset from episodes.jsonl."""
    try:
        lines = read_text(path).splitlines()
        return [_EpisodeRow.model_validate_json(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path}: missing or not a list of episodes ({_reason(error)}). Download it again."
        ) from None


def _packed_rows(root: Path, keys: Sequence[str]) -> list[_EpisodeRow]:
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
    columns = [
        "episode_index",
        "tasks",
        "length",
        *(f"videos/{key}/{field}" for key in keys for field in _Clip.model_fields),
    ]
    paths = sorted((root / "meta" / "episodes").rglob("*.parquet"))
    if not paths:
        raise DatasetError(
            f"{root / 'meta' / 'episodes'}: no .parquet file. Download the dataset again."
        )
    rows: list[_EpisodeRow] = []
    for path in paths:
        try:
            table = parquet.ParquetFile(path).read(columns=columns)
        except (OSError, pyarrow.ArrowException) as error:
            raise DatasetError(
                f"{path}: not readable ({_reason(error)}). Download the dataset again."
            ) from None
        if missing := [column for column in columns if column not in table.column_names]:
            raise DatasetError(f"{path}: no column {missing[0]!r}")
        try:
            for row in table.to_pylist():
                clips = {
                    key: {field: row[f"videos/{key}/{field}"] for field in _Clip.model_fields}
                    for key in keys
                }
                rows.append(_EpisodeRow.model_validate(row | {"clips": clips}))
        except (ValueError, pyarrow.ArrowException) as error:
            raise DatasetError(
                f"{path}: not a list of episodes ({_reason(error)}). Download the dataset again."
            ) from None
    return sorted(rows, key=lambda row: row.episode_index)


def _reason(error: Exception) -> str:
    return problem(error) if isinstance(error, ValidationError) else str(error).partition("\n")[0]


def of_task(root: Path, episodes: list[Episode], task: str | None) -> list[Episode]:
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
    reason = (
        f"task {task!r} matches none or several of its tasks" if task else "it has several tasks"
    )
    raise DatasetError(f"{root}: {reason}. Choose one with --task: {listed}.")


def usable_videos(root: Path, episodes: Sequence[Episode]) -> set[tuple[Episode, str]]:
    """Return (episode, camera key) of each video that exists and is not black; log the others."""
    videos = [(episode, key) for episode in episodes for key in episode.videos]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda video: _problem(*video[0].videos[video[1]]), videos)
        problem_of = dict(zip(videos, results, strict=True))
    for reason in ("missing", "black"):
        skipped = [video for video, found in problem_of.items() if found == reason]
        names = [os.path.relpath(episode.videos[key][0], root) for episode, key in skipped]
        log_skipped(reason, names)
    usable = {video for video, found in problem_of.items() if not found}
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
