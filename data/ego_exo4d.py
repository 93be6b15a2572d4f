"""Ego-Exo4D reader, for the layout that its download tool creates.

- takes.json: takes with their tasks and cameras
- takes/<take>/frame_aligned_videos/<camera>.mp4, or copies in .../downscaled/448/<camera>.mp4
- annotations/keystep_{train,val}.json: steps of some takes, in any order and with gaps
- annotations/splits.json: official splits, if present

The Aria glasses are the ego view, the other cameras are exo views. All videos of a take are
synchronized and in one split.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from byov.data.dataset import (
    Dataset,
    FileSegment,
    LabelInterval,
    Video,
    count_overlaps,
    order_phases,
    require_views,
)
from byov.data.own_videos import path_inside
from byov.data.reader import Choice, DatasetReader, Fractions
from byov.data.video_folder import DEFAULT_SPLIT_FRACTIONS, assign_splits, log_skipped, valid_id
from byov.errors import DatasetError
from byov.files import MAX_MANIFEST_BYTES, read_bytes
from byov.progress import NO_PROGRESS, Progress
from byov.records import SPLITS, VIEWS, Record, Split, View, problem
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)
KEYSTEP_FILES = ("keystep_train.json", "keystep_val.json")
PREVIEWS = ("collage", "best_exo")  # entries of `frame_aligned_videos` that are not cameras
# The smaller copies decode faster; most encoders take at most 448 pixels.
VIDEO_FOLDERS = ("frame_aligned_videos/downscaled/448", "frame_aligned_videos")


class _TakeMetadata(Record, extra="ignore"):
    """Part of the metadata, in which most values may be null."""


class _Stream(_TakeMetadata):
    relative_path: str | None = None


class Take(_TakeMetadata):
    """Entry of takes.json."""

    take_uid: str
    take_name: str
    root_dir: str
    task_name: str | None = None
    parent_task_name: str | None = None
    task_start_sec: float | None = None
    task_end_sec: float | None = None
    duration_sec: float | None = None
    participant_uid: int | str | None = None
    capture_uid: str | None = None
    best_exo: str | None = None
    is_dropped: bool | None = None
    frame_aligned_videos: dict[str, dict[str, _Stream | None] | None] | None = None

    @property
    def cameras(self) -> dict[str, str]:
        """File names of the cameras; the ego camera is called "ego"."""
        names = {}
        for camera, streams in (self.frame_aligned_videos or {}).items():
            is_ego = camera.startswith("aria")
            stream = (streams or {}).get("rgb" if is_ego else "0")
            if camera not in PREVIEWS and stream and stream.relative_path:
                names["ego" if is_ego else camera] = Path(stream.relative_path).name
        return names

    @property
    def end(self) -> float:
        return math.inf if self.duration_sec is None else self.duration_sec


class Keystep(_TakeMetadata):
    """Step of a take, in seconds."""

    start_time: float
    end_time: float
    step_name: str


class _Annotation(_TakeMetadata):
    take_name: str = ""
    scenario: str | None = None
    segments: list[Any]


class _Annotations(_TakeMetadata):
    annotations: dict[str, _Annotation]


class TakeClip(NamedTuple):
    """Part of a take that shows the action."""

    take: Take
    name: str
    start: float
    end: float


@dataclass
class Metadata:
    """Takes and annotations of a folder."""

    folder: Path
    takes: list[Take]
    steps: dict[str, list[Keystep]]  # by take uid, sorted by start
    scenarios: dict[str, str]  # scenario of each annotated take
    skipped: dict[str, list[str]] = field(default_factory=dict)  # names by reason

    def skip(self, reason: str, name: str) -> None:
        self.skipped.setdefault(reason, []).append(name)

    def scenario(self, take: Take) -> str:
        return self.scenarios.get(take.take_uid) or take.parent_task_name or ""


class EgoExo4D(DatasetReader):
    """Reader of a task, a scenario or the instances of a step."""

    name = "ego-exo4d"
    summary = "Folder of Ego-Exo4D. Lists its tasks and steps unless one is chosen."
    takes_folder = True

    task: str | None = Field(
        default=None,
        description="Task, or a unique part of its name.",
    )
    scenario: str | None = Field(default=None, description="Scenario, such as Cooking.")
    step: str | None = Field(
        default=None, description="Step, such as 'Crack egg'; each instance becomes a video."
    )
    exo: str | None = Field(
        default=None, description="Exo cameras: best (default), all, or names such as cam01,cam03."
    )
    split: Fractions | None = Field(
        default=None, description="Fractions of train, val and test videos."
    )

    def choices(self, folder: Path) -> list[Choice]:
        """List tasks, scenarios and steps, unless one of them is chosen."""
        if (self.task, self.scenario, self.step) != (None, None, None):
            return []
        return list_choices(read_metadata(folder))

    def read(self, folder: Path, _progress: Progress = NO_PROGRESS) -> Dataset:
        """Read the chosen takes; those without a video on disk are skipped with a message."""
        metadata = read_metadata(folder)
        takes = self._chosen_takes(metadata)
        splits = self._assign_splits(metadata, takes)
        step = self.step and _match(
            "step",
            self.step,
            [each.step_name for steps in metadata.steps.values() for each in steps],
        )
        clips = [
            clip
            for take in takes
            if take.take_uid in splits
            for clip in (_step_clips(metadata, take, step) if step else [_task_clip(take)])
        ]
        videos = [
            video
            for clip in clips
            for video in self._videos(metadata, clip, splits[clip.take.take_uid])
        ]
        phases: tuple[str, ...] = ()
        ordered = True
        if step is None:
            labels = {clip.name: _steps_in(metadata, clip) for clip in clips}
            phases, ordered = order_phases(
                [step.step_name for step in steps] for steps in labels.values()
            )
            videos = [_with_labels(video, labels[f"{video.pair}"], phases) for video in videos]
            _log_overlaps(folder, labels.values())
        for reason, names in metadata.skipped.items():
            log_skipped(reason, names)
        if not videos:
            raise DatasetError(
                f"{folder}: none of the {len(takes)} chosen takes has a video on disk. Download "
                "`takes` or `downscaled_takes/448`."
            )
        videos = _without_single_pairs(videos)
        dataset = Dataset(
            self._dataset_name(folder), folder, tuple(videos), phase_names=phases, ordered=ordered
        )
        require_views(dataset, ("train",))
        return dataset

    def _dataset_name(self, folder: Path) -> str:
        """Return a name such as "ego-exo4d-remove-a-wheel"."""
        parts = (folder.resolve().name, self.task, self.scenario, self.step)
        return "-".join(re.sub(r"\W+", "-", part).strip("-").lower() for part in parts if part)

    def _chosen_takes(self, metadata: Metadata) -> list[Take]:
        if (self.task, self.scenario, self.step) == (None, None, None):
            raise DatasetError(
                f"{metadata.folder}: choose what to read with --task, --scenario or --step; "
                "byov-extract without them lists the choices"
            )
        chosen = metadata.takes
        for option, text, name_of in (
            ("scenario", self.scenario, metadata.scenario),
            ("task", self.task, lambda take: take.task_name or ""),
        ):
            if text is not None:
                name = _match(option, text, map(name_of, chosen))
                chosen = [take for take in chosen if name_of(take) == name]
        return chosen

    def _assign_splits(self, metadata: Metadata, takes: Sequence[Take]) -> dict[str, Split]:
        """Return the split of each take: the official one if there is any, unless `split` is set.

        Otherwise, takes of one participant or capture are assigned to the same split at random,
        with a fixed seed.
        """
        official = _read_splits(metadata.folder / "annotations" / "splits.json")
        if official and self.split is None:
            for take in takes:
                if take.take_uid not in official:
                    metadata.skip("not in splits.json", take.take_name)
            return {
                take.take_uid: official[take.take_uid]
                for take in takes
                if take.take_uid in official
            }
        groups = _linked_takes(takes)
        shuffled = [groups[index] for index in np.random.default_rng(0).permutation(len(groups))]
        splits = assign_splits(len(groups), self.split or DEFAULT_SPLIT_FRACTIONS)
        return {
            take.take_uid: split
            for group, split in zip(shuffled, splits, strict=True)
            for take in group
        }

    def _videos(self, metadata: Metadata, clip: TakeClip, split: Split) -> list[Video]:
        videos = []
        cameras = clip.take.cameras
        for camera in ("ego", *self._exo_cameras(metadata, clip.take, cameras)):
            view: View = "ego" if camera == "ego" else "exo"
            path = (
                _find_video(metadata.folder, clip.take, cameras[camera])
                if camera in cameras
                else None
            )
            if path is None:
                metadata.skip(f"no {view} video on disk", f"{clip.name} {camera}")
                continue
            end = math.inf if clip.end >= clip.take.end else clip.end
            videos.append(
                Video(
                    valid_id(f"{clip.name}-{camera}"),
                    view,
                    split,
                    path,
                    pair=clip.name,
                    group=clip.take.take_name,
                    segment=FileSegment(clip.start, end),
                )
            )
        return videos

    def _exo_cameras(
        self, metadata: Metadata, take: Take, cameras: Mapping[str, str]
    ) -> Sequence[str]:
        available = [camera for camera in cameras if camera != "ego"]
        if self.exo == "all":
            return available
        if self.exo not in (None, "best"):
            return [name.strip() for name in f"{self.exo}".split(",")]
        if take.best_exo not in available:
            metadata.skip("best_exo unknown; used the first exo camera", take.take_name)
            return available[:1]
        return [take.best_exo]


def list_choices(metadata: Metadata) -> list[Choice]:
    """Return the scenarios, tasks and steps with numbers of videos and hours, largest first."""
    counts: dict[tuple[str, str], list[float]] = {}
    for take in metadata.takes:
        clip = _task_clip(take)
        seconds = 0.0 if clip.end == math.inf else clip.end - clip.start
        counts.setdefault(("scenario", metadata.scenario(take)), []).append(seconds)
        counts.setdefault(("task", take.task_name or ""), []).append(seconds)
        for step in metadata.steps.get(take.take_uid, ()):
            counts.setdefault(("step", step.step_name), []).append(step.end_time - step.start_time)
    options = ("scenario", "task", "step")
    rows = [
        Choice(option, name, len(seconds), sum(seconds) / 3600)
        for (option, name), seconds in counts.items()
        if name
    ]
    return sorted(rows, key=lambda row: (options.index(row.option), -row.clips, row.name))


def read_metadata(folder: Path) -> Metadata:
    """Read the takes and keysteps of a folder; dropped takes are skipped."""
    path = folder / "takes.json"
    if not path.is_file() and not (folder / "metadata" / "takes.json").is_file():
        raise DatasetError(
            f"{folder}: not a folder of Ego-Exo4D, because takes.json is missing. Download "
            "`metadata` and `annotations` into it."
        )
    path = path if path.is_file() else folder / "metadata" / "takes.json"
    metadata = Metadata(folder, [], {}, {})
    for number, entry in enumerate(_read(path, TypeAdapter(list[Any]))):
        try:
            take = Take.model_validate(entry)
        except ValidationError as error:
            metadata.skip("unreadable entry of takes.json", f"entry {number} ({problem(error)})")
            continue
        if take.is_dropped:
            metadata.skip("dropped", take.take_name)
        else:
            metadata.takes.append(take)
    known = {take.take_uid for take in metadata.takes}
    for name in KEYSTEP_FILES:
        path = folder / "annotations" / name
        if path.is_file():
            for uid, annotation in _read(path, TypeAdapter(_Annotations)).annotations.items():
                if uid in known:
                    metadata.steps[uid] = _read_steps(metadata, annotation)
                    metadata.scenarios[uid] = annotation.scenario or ""
                else:
                    metadata.skip("keysteps of an unknown take", annotation.take_name or uid)
    return metadata


def _read_steps(metadata: Metadata, annotation: _Annotation) -> list[Keystep]:
    steps = []
    for number, segment in enumerate(annotation.segments):
        try:
            steps.append(Keystep.model_validate(segment))
        except ValidationError as error:
            metadata.skip(
                "unreadable step", f"step {number} of {annotation.take_name} ({problem(error)})"
            )
    return sorted(steps, key=lambda step: step.start_time)


def _read(path: Path, adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.validate_json(read_bytes(path, MAX_MANIFEST_BYTES))
    except (OSError, ValueError) as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise DatasetError(f"{path}: not readable ({reason}). Download it again.") from None


def _read_splits(path: Path) -> dict[str, Split]:
    """Return the official split of each take uid; empty without a file."""
    if not path.is_file():
        return {}
    content = _read(path, TypeAdapter(dict[str, Any]))
    by_take = content.get("take_uid_to_split", content)
    if not isinstance(by_take, dict):
        raise DatasetError(f"{path}: no splits of takes. Download it again.")
    return {uid: SPLITS[SPLITS.index(split)] for uid, split in by_take.items() if split in SPLITS}


def _match(option: str, text: str, names: Iterable[str]) -> str:
    """Return the only name that equals or else contains the text, ignoring case."""
    counts = Counter(filter(None, names))
    for matches in (
        [name for name in counts if name.casefold() == text.casefold()],
        [name for name in counts if text.casefold() in name.casefold()],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = "; ".join(sorted(matches)[:5])
            raise DatasetError(f"--{option} {text!r} matches {len(matches)} names: {listed}")
    close = get_close_matches(text, counts, n=3, cutoff=0.4)
    hint = f" Closest: {'; '.join(close)}." if close else ""
    raise DatasetError(
        f"there is no {option} {text!r}.{hint} byov-extract without --{option} lists all."
    )


def _linked_takes(takes: Sequence[Take]) -> list[list[Take]]:
    """Group takes that share a participant or a capture, also indirectly."""
    group_of: dict[tuple[str, Any], list[Take]] = {}
    for take in takes:
        keys: list[tuple[str, Any]] = [("take", take.take_uid)]
        keys += [("participant", take.participant_uid)] if take.participant_uid is not None else []
        keys += [("capture", take.capture_uid)] if take.capture_uid else []
        merged = [take]
        for group in {id(group_of[key]): group_of[key] for key in keys if key in group_of}.values():
            merged = [*group, *merged]
        for member in merged:
            group_of["take", member.take_uid] = merged
            group_of["participant", member.participant_uid] = merged
            group_of["capture", member.capture_uid] = merged
        group_of.pop(("participant", None), None)
        group_of.pop(("capture", None), None)
    return list({id(group): group for group in group_of.values()}.values())


def _find_video(folder: Path, take: Take, file: str) -> Path | None:
    for place in VIDEO_FOLDERS:
        path = path_inside(folder, f"{take.root_dir}/{place}/{file}", f"{folder}/takes.json")
        if path.is_file():
            return path
    return None


def _task_clip(take: Take) -> TakeClip:
    start = max(take.task_start_sec or 0.0, 0.0)
    end = take.end if take.task_end_sec is None else min(take.task_end_sec, take.end)
    return TakeClip(take, take.take_name, start if start < end else 0.0, end)


def _step_clips(metadata: Metadata, take: Take, name: str) -> list[TakeClip]:
    """Return the instances of a step in a take."""
    clips: list[TakeClip] = []
    for step in metadata.steps.get(take.take_uid, ()):
        if step.step_name != name:
            continue
        clip_name = f"{take.take_name}-{len(clips) + 1}"
        clip = TakeClip(take, clip_name, max(step.start_time, 0.0), min(step.end_time, take.end))
        if clip.start < clip.end:
            clips.append(clip)
        else:
            metadata.skip("step after the end of its take", f"{clip_name} at {step.start_time:g} s")
    return clips


def _steps_in(metadata: Metadata, clip: TakeClip) -> list[Keystep]:
    """Return the steps that overlap a clip, in seconds from its start, sorted by start."""
    steps = []
    for step in metadata.steps.get(clip.take.take_uid, ()):
        # Differences are inexact, and a step may start with a frame.
        start = max(round(step.start_time - clip.start, 6), 0.0)
        end = round(min(step.end_time, clip.end) - clip.start, 6)
        if start < end:
            steps.append(Keystep(start_time=start, end_time=end, step_name=step.step_name))
        elif step.start_time >= clip.take.end:
            metadata.skip("step after the end of its take", f"{clip.name} at {step.start_time:g} s")
    return steps


def _with_labels(video: Video, steps: Sequence[Keystep], phases: Sequence[str]) -> Video:
    if not steps:
        return video
    index = {name: phase for phase, name in enumerate(phases)}
    intervals = tuple(
        LabelInterval(step.start_time, step.end_time, index[step.step_name]) for step in steps
    )
    return replace(video, intervals=intervals)


def _log_overlaps(folder: Path, steps_of_clips: Iterable[Sequence[Keystep]]) -> None:
    overlaps = sum(
        count_overlaps([(step.start_time, step.end_time) for step in steps])
        for steps in steps_of_clips
    )
    if overlaps:
        LOGGER.info(
            f"{folder}: {pluralize(overlaps, 'step')} started before the previous one ended; the "
            "later one wins"
        )


def _without_single_pairs(videos: Sequence[Video]) -> list[Video]:
    """Unpair videos of takes that lack the other view."""
    views: dict[str | None, set[View]] = {}
    for video in videos:
        views.setdefault(video.pair, set()).add(video.view)
    return [
        video if len(views[video.pair]) == len(VIEWS) else replace(video, pair=None)
        for video in videos
    ]
