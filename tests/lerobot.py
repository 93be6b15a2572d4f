"""Factory for synthetic LeRobot datasets."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet
from tests.factories import write_file, write_video

WRIST = "observation.images.wrist"
TOP = "observation.images.top"
FPS = 10
V2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
V3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CAMERA = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}


def write_lerobot(
    root: Path,
    version: str,
    episodes: Sequence[Sequence[np.ndarray]],
    tasks: Sequence[str] | None = None,
    *,
    cameras: Sequence[str] = (WRIST, TOP),
    **changes: Any,
) -> Path:
    """Write a LeRobot dataset whose cameras all show the given images; v3.0 packs all episodes into
    one file.

    Args:
        episodes: Images of each episode.
        tasks: Task of each episode.
        changes: Changes to meta/info.json.
    """
    is_packed = version == "v3.0"
    features: dict[str, Any] = dict.fromkeys(cameras, CAMERA)
    features["depth"] = CAMERA | {"info": {"video.is_depth_map": True}}
    features["action"] = {"dtype": "float32", "shape": [6]}
    info = {"codebase_version": version, "fps": FPS, "chunks_size": 1000, "features": features}
    info |= {"video_path": V3 if is_packed else V2} | changes
    write_file(root / "meta/info.json", json.dumps(info))
    rows: list[dict[str, Any]] = [
        {"episode_index": i, "tasks": [(tasks or ["pour"] * len(episodes))[i]], "length": len(each)}
        for i, each in enumerate(episodes)
    ]
    for key in cameras:
        if is_packed:
            _add_segments(rows, key)
            path = root / f"videos/{key}/chunk-000/file-000.mp4"
            write_video(path, list(chain(*episodes)), fps=FPS, options={"g": "4"})
        else:
            for i, images in enumerate(episodes):
                write_video(root / f"videos/chunk-000/{key}/episode_{i:06d}.mp4", images, fps=FPS)
    if is_packed:
        write_table(root / "meta/episodes/chunk-000/file-000.parquet", rows)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_file(root / "meta/episodes.jsonl", lines)
    return root


def _add_segments(rows: Sequence[dict[str, Any]], key: str) -> None:
    start = 0
    for row in rows:
        end = start + row["length"]
        row |= {f"videos/{key}/{field}_index": 0 for field in ("chunk", "file")}
        row |= {f"videos/{key}/from_timestamp": start / FPS}
        row |= {f"videos/{key}/to_timestamp": (end - 1) / FPS}  # time of the last frame
        start = end


def write_data(root: Path, lengths: Mapping[int, int], first: int = 0) -> None:
    """Write the Parquet file with the frames of episodes, given as {episode: number of frames}."""
    rows = []
    for episode, length in lengths.items():
        for frame in range(length):
            index = first + len(rows)
            rows.append({"episode_index": episode, "frame_index": frame, "index": index})
    write_table(root / "data/chunk-000/file-000.parquet", rows)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
