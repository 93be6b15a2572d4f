"""Annotate the episodes of a LeRobot dataset, and write files that LeRobot reads.

progress.parquet                        progress of every frame, as RA-BC reads it
meta/episodes/ (v2.x: episodes.jsonl)   copy of the episodes, with phases as subtasks
meta/temporal_proportions_sparse.json   mean fraction of an episode that each subtask takes

The files of the dataset itself are never changed.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import byov
from byov.cache.atomic import replacing, write_text
from byov.cache.layout import PROGRESS_NAME, manifest_path
from byov.cache.manifest import read_sources
from byov.data.dataset import Video
from byov.data.lerobot import Episode, LeRobotInfo, of_task, read_episodes, read_info, usable_videos
from byov.errors import ApplyError
from byov.files import parse_json, read_text
from byov.records import View

LOGGER = logging.getLogger(__name__)
SUBTASKS = "sparse_subtask_"  # start of the names of the columns with subtasks
PROPORTIONS_NAME = "temporal_proportions_sparse.json"
INDEX_COLUMNS = ("episode_index", "frame_index", "index")


@dataclass(frozen=True)
class EpisodeFrames:
    """Frames of an episode, which are consecutive in the table of all frames of the dataset."""

    episode: int
    first: int  # index of its first frame in the whole dataset
    length: int


@dataclass(frozen=True)
class LeRobotVideos:
    """Videos of one camera of a LeRobot dataset.

    Attributes:
        root: Folder of the dataset.
        info: Contents of meta/info.json.
        frames: Frames of all episodes in order, including those without a usable video.
        videos: Usable videos.
        episodes: Dict mapping the id of each video to the index of its episode.
    """

    root: Path
    info: LeRobotInfo
    frames: tuple[EpisodeFrames, ...]
    videos: tuple[Video, ...]
    episodes: Mapping[str, int]


def list_episodes(
    run: "byov.Run",
    root: Path,
    camera: str | None = None,
    task: str | None = None,
    view: View = "ego",
) -> LeRobotVideos:
    """List the videos of one camera of a LeRobot dataset; missing and black ones are skipped.

    Args:
        run: Run that annotates the videos.
        root: Folder of the dataset.
        camera: Key of the camera. Default: the only one of the dataset, or the only one of them
            that the run was trained on.
        task: Task, or a unique part of its text; required if there are several.
        view: View of the camera.
    """
    info = read_info(root)
    camera = _choose_camera(run, root, info, camera)
    every = sorted(read_episodes(root, info, [camera]), key=lambda episode: episode.index)
    usable = {episode.index for episode, _ in usable_videos(root, of_task(root, every, task))}
    videos = {}
    for episode in every:
        if episode.index in usable:
            path, segment = episode.videos[camera]
            video = Video(episode.name, view, "train", path, group=episode.name, segment=segment)
            videos[episode.index] = video
    return LeRobotVideos(
        root,
        info,
        tuple(_list_frames(root, every)),
        tuple(videos.values()),
        {video.id: index for index, video in videos.items()},
    )


def _choose_camera(run: "byov.Run", root: Path, info: LeRobotInfo, camera: str | None) -> str:
    """Return the chosen camera or, without a choice, the only possible one."""
    if camera in info.cameras:
        return camera
    known = list(info.cameras)
    if len(known) > 1:
        # The key of a camera is a folder in the paths of its videos.
        sources = read_sources(manifest_path(run.features_dir, run.dataset).parent)
        folders = {folder for path in sources.values() for folder in path.parts}
        known = [key for key in known if key in folders]
    if camera is None and len(known) == 1:
        LOGGER.info(f"camera: {known[0]}")
        return known[0]
    unknown = "" if camera is None else f"no camera {camera!r}. "
    raise ApplyError(f"{root}: {unknown}Choose one with --camera from {info.listed_cameras}.")


def _list_frames(root: Path, episodes: Iterable[Episode]) -> Iterator[EpisodeFrames]:
    """Yield the frames of each episode, from the data of the dataset or, without data, from the
    lengths of the episodes.
    """
    recorded = {frames.episode: frames for frames in _recorded_frames(root)}
    end = 0
    for episode in episodes:
        frames = recorded.get(episode.index, EpisodeFrames(episode.index, end, episode.length))
        if frames.first < end:
            raise ApplyError(
                f"{root / 'data'}: episode {episode.index} starts at index {frames.first}, but the "
                f"previous one ends at {end - 1}. Download the dataset again."
            )
        yield frames
        end = frames.first + frames.length


def _recorded_frames(root: Path) -> Iterator[EpisodeFrames]:
    """Yield the frames of each episode according to the Parquet files in data/."""
    for path in sorted((root / "data").rglob("*.parquet")):
        table = _read_parquet(path, INDEX_COLUMNS)
        rows = np.stack([table[name].to_numpy().astype(np.int64) for name in INDEX_COLUMNS])
        starts = np.flatnonzero(np.diff(rows[0])) + 1
        for part in np.split(rows, starts, axis=1):
            episode, _, first = part[:, 0].tolist()
            length = part.shape[1]
            if (part[1:] != np.array([[0], [first]]) + np.arange(length)).any():
                raise ApplyError(
                    f"{path}: the frames of episode {episode} are not numbered consecutively. "
                    "Download the dataset again."
                )
            yield EpisodeFrames(episode, first, length)


class LeRobotAnnotations:
    """Collects the annotations of episodes, and writes them into files.

    Args:
        dataset: Dataset that the episodes belong to.
    """

    def __init__(self, dataset: LeRobotVideos) -> None:
        self._dataset = dataset
        self._frames = {frames.episode: frames for frames in dataset.frames}
        self._progress: dict[int, NDArray[np.float32]] = {}
        self._subtasks: dict[int, dict[str, list[Any]]] = {}

    def add(self, columns: Mapping[str, Any]) -> None:
        """Add the frames of an episode, given as columns of the table of frames.

        Raises:
            ApplyError: If the numbers of frames of video and episode differ by more than one.
        """
        episode = self._dataset.episodes[columns["video"]]
        count = len(columns["frame"])
        length = self._frames[episode].length
        if abs(count - length) > 1:
            raise ApplyError(
                f"{columns['video']}: the video has {count} frames, but the episode has {length}. "
                "Download the dataset again."
            )
        rows = np.minimum(np.arange(length), count - 1)
        self._progress[episode] = columns["progress"][rows].astype(np.float32)
        subtasks = find_subtasks(columns["phase"][rows], self._dataset.info.fps)
        if subtasks["names"]:
            self._subtasks[episode] = subtasks

    def write(self, folder: Path, model: str) -> dict[str, Any]:
        """Write the files.

        Args:
            folder: Output folder.
            model: Name of the model, recorded in progress.parquet.

        Returns:
            Dict with the number of episodes, the number of annotated episodes, and the files.
        """
        written = [self._write_progress(folder, model)]
        if self._subtasks:
            is_packed = self._dataset.info.codebase_version == "v3.0"
            written += self._write_tables(folder) if is_packed else [self._write_lines(folder)]
            proportions = json.dumps(self._proportions(), ensure_ascii=False, indent=1)
            written.append(folder / "meta" / PROPORTIONS_NAME)
            write_text(written[-1], proportions + "\n")
        return {
            "episodes": len(self._frames),
            "annotated": len(self._progress),
            "files": [str(path) for path in written],
        }

    def _write_progress(self, folder: Path, model: str) -> Path:
        pyarrow = _import_pyarrow()
        frames = self._dataset.frames
        lengths = [each.length for each in frames]
        columns = {
            "index": np.concatenate([each.first + np.arange(each.length) for each in frames]),
            "episode_index": np.repeat([each.episode for each in frames], lengths),
            "frame_index": np.concatenate([np.arange(length) for length in lengths]),
            "progress_sparse": np.concatenate(
                [
                    self._progress.get(each.episode, np.full(each.length, np.float32(np.nan)))
                    for each in frames
                ]
            ),
        }
        table = pyarrow.table(columns).replace_schema_metadata({"reward_model_path": model})
        with replacing(folder / PROGRESS_NAME) as partial:
            pyarrow.parquet.write_table(table, partial)
        return folder / PROGRESS_NAME

    def _write_tables(self, folder: Path) -> Iterator[Path]:
        pyarrow = _import_pyarrow()
        text = pyarrow.string()
        types = {
            "names": text,
            "start_times": pyarrow.float64(),
            "end_times": pyarrow.float64(),
            "start_frames": pyarrow.int64(),
            "end_frames": pyarrow.int64(),
        }
        for path in sorted((self._dataset.root / "meta" / "episodes").rglob("*.parquet")):
            table = _read_parquet(path)
            episodes = table["episode_index"].to_pylist()
            for name, kind in types.items():
                values = [self._subtasks.get(episode, {}).get(name) for episode in episodes]
                column = pyarrow.array(values, pyarrow.list_(kind))
                if SUBTASKS + name in table.column_names:
                    table = table.drop_columns([SUBTASKS + name])
                table = table.append_column(SUBTASKS + name, column)
            target = folder / path.relative_to(self._dataset.root)
            with replacing(target) as partial:
                pyarrow.parquet.write_table(table, partial)
            yield target

    def _write_lines(self, folder: Path) -> Path:
        source = self._dataset.root / "meta" / "episodes.jsonl"
        lines = []
        for line in read_text(source).splitlines():
            if line.strip():
                row = parse_json(line)
                subtasks = self._subtasks.get(row["episode_index"], {})
                row |= {SUBTASKS + name: values for name, values in subtasks.items()}
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        target = folder / "meta" / source.name
        write_text(target, "".join(lines))
        return target

    def _proportions(self) -> dict[str, float]:
        """Return the mean fraction of an annotated episode that each subtask takes."""
        fractions: dict[str, float] = {}
        for episode, subtasks in self._subtasks.items():
            total = self._frames[episode].length * len(self._subtasks)
            bounds = zip(subtasks["start_frames"], subtasks["end_frames"], strict=True)
            for name, (start, end) in zip(subtasks["names"], bounds, strict=True):
                fractions[name] = fractions.get(name, 0.0) + (end - start) / total
        return {name: round(fraction, 6) for name, fraction in fractions.items()}


def find_subtasks(phases: NDArray[Any], fps: float) -> dict[str, list[Any]]:
    """Return the parts of an episode with the same phase, as columns of the table of episodes.

    Args:
        phases: (T,) name of the phase of each frame, "" if it has none.
        fps: Frames per second.

    >>> find_subtasks(np.array(["", "reach", "reach", "pour"]), fps=10)["start_times"]
    [0.1, 0.3]
    """
    bounds = [0, *(np.flatnonzero(phases[1:] != phases[:-1]) + 1).tolist(), len(phases)]
    parts = [(str(phases[start]), start, end) for start, end in pairwise(bounds) if phases[start]]
    return {
        "names": [name for name, _, _ in parts],
        "start_times": [start / fps for _, start, _ in parts],
        "end_times": [end / fps for _, _, end in parts],
        "start_frames": [start for _, start, _ in parts],
        "end_frames": [end for _, _, end in parts],
    }


def _read_parquet(path: Path, columns: Iterable[str] | None = None) -> Any:
    """Read a Parquet file of a dataset, by default with all of its columns."""
    pyarrow = _import_pyarrow()
    try:
        table = pyarrow.parquet.ParquetFile(path).read(columns=columns and list(columns))
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise ApplyError(f"{path}: not readable ({reason}). Download the dataset again.") from None
    if missing := [name for name in columns or () if name not in table.column_names]:
        raise ApplyError(f"{path}: no column {missing[0]!r}. Download the dataset again.")
    return table


def _import_pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ApplyError(
            f"{PROGRESS_NAME}: Parquet needs pyarrow. Run pip install 'byov-egoexo[lerobot]'."
        ) from None
    return pyarrow
