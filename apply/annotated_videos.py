"""Annotate video files.

Features are extracted into a cache first. An interrupted call can therefore be resumed, and a call
with other labels takes seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import byov
from byov.apply.annotate import Annotation, Annotator, LabeledFrames
from byov.apply.embedder import check_run_encoder, run_encoder_name, run_resize
from byov.cache.features import cached_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import video_path
from byov.data.dataset import Dataset, Video
from byov.data.video import STRICT, DecodingPolicy
from byov.data.video_folder import unique_ids, video_files, view_in_path
from byov.errors import ApplyError
from byov.extract.plan import ExtractionOptions, make_plan
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never, track
from byov.records import UNLABELED, View
from byov.workers import ClusterOptions


@dataclass(frozen=True, eq=False)
class AnnotatedVideo:
    """A video with its annotations, one per occurrence of the action.

    Attributes:
        video: The video file or segment.
        seconds: (T,) times of the frames.
        fps: Average frame rate.
        annotations: Annotation of each occurrence, in order.
        is_labeled: Whether its events were given by the user.
    """

    video: Video
    seconds: NDArray[np.float64]
    fps: float
    annotations: tuple[Annotation, ...]
    is_labeled: bool

    @property
    def confidence(self) -> float:
        """Confidence in the least certain occurrence; 0 if there is none."""
        return min((each.total_confidence for each in self.annotations), default=0.0)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why a person should look at the video, empty if there are none."""
        if not self.annotations:
            return ("the action does not occur",)
        return tuple(dict.fromkeys(text for each in self.annotations for text in each.problems))


class AnnotatedVideos:
    """Videos that are annotated one after the other while iterating.

    Args:
        run: Run that annotates the videos.
        videos: Videos with unique ids.
        cache_dir: Folder for the features of the videos; features in it are not computed again.
        labels: Labeled videos and the names of their phases. Default: the labels of the training
            videos, if there are any.
        repeat: Find all occurrences of the action in long recordings.
        policy: Handling of damaged videos.
        cluster: Ray cluster to extract the features on. Default: this process.
        progress: Receives progress updates.
        stop: Called between batches; if it returns True, Interrupted is raised.

    Attributes:
        videos: Videos that could be decoded.
        failures: Dict mapping the other ones to reasons.
        annotator: Annotator with the training videos and the labels.
    """

    def __init__(
        self,
        run: "byov.Run",
        videos: Sequence[Video],
        cache_dir: Path,
        *,
        labels: Dataset | None = None,
        repeat: bool = False,
        policy: DecodingPolicy = STRICT,
        cluster: ClusterOptions | None = None,
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> None:
        if not videos:
            raise ApplyError("no videos to annotate.")
        self._run = run
        self._repeat = repeat
        self._progress = Stoppable(progress, stop)
        cached = {_source(video): video for video in videos}
        self._labels: dict[str, Video] = {}  # source → video with its labels
        for video in labels.videos if labels else ():
            self._labels[_source(video)] = video
            # Extract labeled videos that are not annotated under ids that no other video has.
            cached.setdefault(_source(video), replace(video, id=f"labeled--{video.id}"))
        # Labels are read from `labels`; they do not belong in the cache.
        unlabeled = [replace(video, intervals=None) for video in cached.values()]
        record = run.record
        options = ExtractionOptions(
            ratios=(record.ratio,), resize=run_resize(record), device=run.device, policy=policy
        )
        plan = make_plan(
            Dataset("videos", cache_dir, tuple(unlabeled)),
            cache_dir,
            run_encoder_name(record, run.encoder),
            options,
        )
        extracted = byov.extract_plan(plan, cluster=cluster, progress=progress, stop=stop)
        self._folder = extracted.folder
        self._ids = {source: (video.view, video.id) for source, video in cached.items()}
        sources = {video.id: video.source for video in unlabeled}
        self.failures = {sources[name]: reason for name, reason in extracted.failures.items()}
        self.videos = [video for video in videos if video.source not in self.failures]
        self.annotator = Annotator(run, self._labeled_frames(labels) if labels else None)

    def __len__(self) -> int:
        return len(self.videos)

    def __iter__(self) -> Iterator[AnnotatedVideo]:
        for video in track(self.videos, self._progress, "annotating", unit="video"):
            yield self.annotate(video)

    def annotate(self, video: Video) -> AnnotatedVideo:
        """Annotate one of `videos`."""
        features, seconds = self.read(video)
        labels = self._labels.get(_source(video))
        annotations = self.annotator.annotate(
            features,
            seconds,
            given=None if labels is None else _phases(labels, seconds),
            repeat=self._repeat and labels is None,
            progress=self._progress,
        )
        header = cached_header(self._folder, *self._ids[_source(video)])
        return AnnotatedVideo(video, seconds, header.fps, tuple(annotations), labels is not None)

    def read(self, video: Video) -> tuple[NDArray[np.float16], NDArray[np.float64]]:
        """Return the features (T, width) and the times (T,) of the frames of a video."""
        view, name = self._ids[_source(video)]
        source = cached_header(self._folder, view, name).provenance
        check_run_encoder(
            self._run.record, source.encoder, source.encoder_sha256, source.preprocessing
        )
        path = video_path(self._folder, view, name)
        return read_array(path, self._run.record.column), read_array(path, "pts_seconds")

    def _labeled_frames(self, labels: Dataset) -> LabeledFrames:
        embeddings = []
        phases = []
        for video in labels.videos:
            if video.source in self.failures:
                raise ApplyError(f"labeled video {self.failures[video.source]}")
            features, seconds = self.read(video)
            late = video.late_events(len(seconds), float(seconds[-1]))
            if late:
                raise ApplyError(f"{late}. Correct the labels.")
            embeddings.append(self._run.embed(features))
            phases.append(_phases(video, seconds))
        return LabeledFrames(
            np.concatenate(embeddings), np.concatenate(phases), labels.phase_names, labels.ordered
        )


def list_videos(paths: Sequence[Path], view: View | None = None) -> list[Video]:
    """List videos, given as files and folders, with unique ids.

    Args:
        paths: Video files and folders of videos.
        view: View of the videos. Default: the one whose name is a word in the path, else "ego".

    >>> videos = list_videos([Path("datasets/demo/test/exo")])
    >>> videos[0].id, videos[0].view
    ('test_exo_00', 'exo')
    """
    files = []
    for path in paths:
        if path.is_dir():
            found, _ = video_files(path)
            files += [path / name for name in found]
        elif path.is_file():
            files.append(path)
        else:
            raise ApplyError(f"{path}: no such file or folder.")
    files = list(dict.fromkeys(files))
    return [
        Video(name, view or view_in_path(path) or "ego", "train", path)
        for path, name in zip(files, unique_ids([_relative(path) for path in files]), strict=True)
    ]


def _relative(path: Path) -> Path:
    return path.relative_to(path.anchor)


def _source(video: Video) -> str:
    """Return the file and segment of a video, however its path is written."""
    return f"{video.path.resolve()}{video.segment.fragment}"


def _phases(video: Video, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.array(video.phases(seconds) or [UNLABELED] * len(seconds), np.int64)
