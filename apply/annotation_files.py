"""Files with annotations: tables of events and frames, captions, and a summary.

annotations.csv   events, one row per occurrence, in the format of byov-extract --manifest
frames.csv        progress, phase and confidence of each frame (or frames.parquet)
captions/*.vtt    phases as subtitles
annotations.json  confidence, problems, and what the annotations were computed from

Episodes of LeRobot datasets are also written into the files described in `lerobot_files.py`.
"""

import csv
import html
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from byov.apply.annotate import UNCERTAIN_TIME, Annotation, Annotator
from byov.apply.annotated_videos import AnnotatedVideo, AnnotatedVideos
from byov.apply.lerobot_files import LeRobotAnnotations, LeRobotVideos
from byov.cache.atomic import replacing, write_text
from byov.cache.digests import SCHEMA_VERSION
from byov.cache.layout import CAPTIONS_NAME, EVENTS_NAME, SUMMARY_NAME
from byov.cache.runs import check_model
from byov.data.dataset import FileSegment
from byov.data.own_videos import format_events
from byov.errors import ApplyError
from byov.evaluate.results import versions
from byov.records import UNLABELED

EVENT_COLUMNS = ("path", "view", "split", "id", "start", "end", "events", "phases")
FRAME_COLUMNS = ("video", "frame", "seconds", "occurrence", "progress", "phase", "confidence")


class FrameTable(Protocol):
    """Writer of the table of frames."""

    def write(self, columns: dict[str, Any]) -> None:
        """Append the frames of one video, given as arrays by the names in FRAME_COLUMNS."""


def write_annotations(
    videos: AnnotatedVideos,
    frames_path: Path,
    folder: Path | None = None,
    *,
    root: Path | None = None,
    lerobot: LeRobotVideos | None = None,
) -> dict[str, Any]:
    """Annotate videos and write the results. Each file appears whole or not at all.

    Args:
        videos: Videos to annotate.
        frames_path: Table of frames, .csv or .parquet.
        folder: Folder of the other files. Default: write only the table of frames.
        root: Folder that the paths in the table of events are relative to. Default: `folder`.
        lerobot: LeRobot dataset with the videos, for which files are written into `folder`, too.

    Returns:
        Contents of annotations.json.
    """
    episodes = None if lerobot is None else LeRobotAnnotations(lerobot)
    rows: list[Sequence[str]] = []
    described: list[dict[str, Any]] = []
    with open_frame_table(frames_path) as table:
        for video in videos:
            columns = frame_columns(video)
            table.write(columns)
            if episodes is not None:
                episodes.add(columns)
            rows += event_rows(video, root or folder or Path())
            described.append(describe(video))
            if folder is not None and videos.annotator.phase_names:
                captions = folder / CAPTIONS_NAME / f"{video.video.id}.vtt"
                write_text(captions, to_vtt(video.annotations))
    summary = {
        **origin(videos.annotator),
        "videos": described,
        "label_next": label_next(described, bool(videos.annotator.phase_names)),
        "failures": videos.failures,
    }
    if folder is not None:
        if episodes is not None:
            summary["lerobot"] = episodes.write(folder, summary["run"])
        write_text(folder / EVENTS_NAME, to_csv([EVENT_COLUMNS, *rows]))
        write_text(folder / SUMMARY_NAME, json.dumps(summary, indent=1) + "\n")
    return summary


def frame_columns(video: AnnotatedVideo) -> dict[str, Any]:
    """Return the columns of the table of frames for one video; idle frames have no occurrence,
    progress or phase.
    """
    occurrence = np.full(len(video.seconds), -1)
    progress = np.full(len(video.seconds), np.nan)
    confidence = np.full(len(video.seconds), np.nan)
    phase = np.full(len(video.seconds), "", object)
    for index, each in enumerate(video.annotations):
        frames = slice(each.start, each.start + len(each.seconds))
        occurrence[frames] = index
        progress[frames] = each.progress
        confidence[frames] = each.confidence
        names = np.array([*each.phase_names, ""], object)  # UNLABELED is the last one
        phase[frames] = names[each.phases]
    return {
        "video": video.video.id,
        "frame": np.arange(len(video.seconds)),
        "seconds": video.seconds,
        "occurrence": occurrence,
        "progress": progress,
        "phase": phase,
        "confidence": confidence,
    }


@contextmanager
def open_frame_table(path: Path) -> Iterator[FrameTable]:
    """Open a table of frames, .csv or .parquet, that appears when the block ends."""
    open_table = _ParquetTable if path.suffix.lower() == ".parquet" else _CsvTable
    with replacing(path) as partial, open_table(partial) as table:
        yield table


class _CsvTable(AbstractContextManager["_CsvTable"]):
    def __init__(self, path: Path) -> None:
        self._file = path.open("r+", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(FRAME_COLUMNS)

    def write(self, columns: dict[str, Any]) -> None:
        for row in zip(*(columns[name] for name in FRAME_COLUMNS[1:]), strict=True):
            frame, seconds, occurrence, progress, phase, confidence = row
            cells = (f"{seconds:.6f}", occurrence, _cell(progress), phase, _cell(confidence))
            self._writer.writerow([columns["video"], frame, *cells])

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _ParquetTable(AbstractContextManager["_ParquetTable"]):
    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise ApplyError(
                f"{path.name}: Parquet needs pyarrow. Run pip install 'byov-egoexo[lerobot]'."
            ) from None
        self._pyarrow = pyarrow
        text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types = (
            pyarrow.string(),
            pyarrow.int64(),
            pyarrow.float64(),
            pyarrow.int64(),
            pyarrow.float32(),
            text,
            pyarrow.float32(),
        )
        self._schema = pyarrow.schema(list(zip(FRAME_COLUMNS, types, strict=True)))
        self._writer = parquet.ParquetWriter(path, self._schema)

    def write(self, columns: dict[str, Any]) -> None:
        count = len(columns["frame"])
        arrays = columns | {"video": [columns["video"]] * count}
        self._writer.write_table(self._pyarrow.table(arrays, schema=self._schema))

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}"


def event_rows(video: AnnotatedVideo, root: Path) -> list[Sequence[str]]:
    """Return the rows of a video in the table of events, with paths relative to `root`.

    Event times are relative to the first frame of the occurrence.
    """
    rows: list[Sequence[str]] = []
    for index, each in enumerate(video.annotations):
        name = video.video.id if len(video.annotations) == 1 else f"{video.video.id}-{index}"
        start, end = _segment(video, each).cells
        events = format_events([event.seconds - each.seconds[0] for event in each.events])
        path = os.path.relpath(video.video.path.absolute(), root.absolute())
        phases = ";".join(each.phase_names)
        rows.append((path, video.video.view, video.video.split, name, start, end, events, phases))
    return rows


def _segment(video: AnnotatedVideo, occurrence: Annotation) -> FileSegment:
    """Return the part of the video file that shows an occurrence."""
    whole = video.video.segment
    frames = len(occurrence.seconds)
    if frames == len(video.seconds):
        return whole
    if whole.unit == "f":
        start = whole.start + occurrence.start
        return FileSegment(start, start + frames, "f")
    half_frame = 0.5 / video.fps if video.fps else 0.0
    first, last = occurrence.seconds[[0, -1]].tolist()
    return FileSegment(
        whole.start + max(0.0, first - half_frame), whole.start + last + half_frame, "s"
    )


def describe(video: AnnotatedVideo) -> dict[str, Any]:
    """Return the entry of a video in annotations.json."""
    return {
        "video": video.video.id,
        "path": str(video.video.path),
        "segment": video.video.segment.fragment,
        "frames": len(video.seconds),
        "fps": video.fps,
        "labeled": video.is_labeled,
        "confidence": round(video.confidence, 4),
        "problems": video.problems,
        "occurrences": [
            {
                "start": each.start,
                "end": each.start + len(each.seconds),
                "confidence": round(each.total_confidence, 4),
                "events": [asdict(event) for event in each.events],
            }
            for each in video.annotations
        ],
    }


def label_next(described: Iterable[Mapping[str, Any]], has_phases: bool = True) -> str | None:
    """Return the video whose labels would help most: the least confident unlabeled one that shows
    the action as usual or, if no video has labels yet, the most confident one.
    """
    candidates = [
        video
        for video in described
        if not video["labeled"]
        and all(problem.startswith(UNCERTAIN_TIME) for problem in video["problems"])
    ]
    choose = min if has_phases else max
    return choose(candidates, key=itemgetter("confidence"))["video"] if candidates else None


def origin(annotator: Annotator) -> dict[str, Any]:
    """Describe what annotations are computed from."""
    run = annotator.run
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "dataset": run.dataset,
        "model_sha256": check_model(run.folder, run.record.training).sha256,
        "encoder": run.record.encoder,
        "ratio": run.record.ratio,
        "phases": annotator.phase_names,
        "versions": versions(),
    }


def to_csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_vtt(annotations: Iterable[Annotation]) -> str:
    """Format phases as WebVTT subtitles, which players show if they have the name of the video."""
    cues = []
    for each in annotations:
        starts = np.flatnonzero(np.diff(each.phases, prepend=UNLABELED - 1))
        ends = [*each.seconds[starts[1:]], each.seconds[-1] + 1]
        for start, end in zip(starts, ends, strict=True):
            phase = each.phases[start]
            if phase != UNLABELED:
                text = html.escape(each.phase_names[phase], quote=False)
                cues.append(f"{_vtt_time(each.seconds[start])} --> {_vtt_time(end)}\n{text}\n")
    return "\n".join(["WEBVTT\n", *cues])


def _vtt_time(seconds: float) -> str:
    """
    >>> _vtt_time(3723.4567)
    '01:02:03.457'
    """
    minutes, rest = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"
