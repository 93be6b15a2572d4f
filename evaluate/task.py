"""What a task of the evaluation is: the record that each task's file ends with, and the data that it works on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, Frames
from byov.evaluate.scores import Score

Weights = NDArray[np.float64]  # (N, V) how often each resampling has drawn each test segment
Estimates = NDArray[np.float64]  # (N,) a score under each resampling; NaN where it has none
SETTING_NAMES = {"regular": "Regular", "ego2exo": "Ego2Exo", "exo2ego": "Exo2Ego"}


@dataclass(frozen=True)
class EvaluationOptions:
    """What the scores depend on beside the embeddings."""

    ks: tuple[int, ...] = (5, 10, 15)  # paper
    tau_stride: int = 5  # published code
    shares: tuple[float, ...] = (0.1, 0.5, 1.0)  # paper, appendix
    time_column: bool = False  # published code: for Pour Liquid only
    training_progression: bool = False  # score the progression of the training videos too
    seed: int = 0  # of few-shot draws and of resampling
    bootstrap: int = 0  # resamplings of the videos; 0: no intervals


@dataclass(frozen=True)
class TaskData:
    """What the tasks work on. Segments of one recording are never each other's candidates."""

    test: Frames
    train: Frames | None = None  # for the tasks that are fitted
    recordings: NDArray[np.int64] | None = None  # (V,) recording of each test segment, rising; None: each its own
    train_actions: NDArray[np.bool_] | None = None  # (V, C)
    test_actions: NDArray[np.bool_] | None = None  # (V, C)

    @property
    def training(self) -> Frames:
        """The training frames, for a task that is fitted."""
        if self.train is None:
            raise ValueError("a task that is fitted needs training frames")
        return self.train

    @cached_property
    def labeled(self) -> "TaskData":
        """Without the videos that have no phase labels. For tasks that need them; no actions, which those do not."""
        test, recordings = self.test.labeled, self.recordings
        if recordings is not None and self.test.labels is not None:
            recordings = np.unique(recordings[self.test.has_labels], return_inverse=True)[1]
        return TaskData(test, self.train and self.train.labeled, recordings)

    @cached_property
    def labeled_frames(self) -> "TaskData":
        """The same, without the other videos' frames that have no label."""
        data = self.labeled
        return replace(data, test=data.test.labeled_frames, train=data.train and data.train.labeled_frames)

    @property
    def joined_test(self) -> Frames:
        """The segments of one recording as one video: retrieval only needs to know which video a frame is of."""
        if self.recordings is None:
            return self.test
        first, test = self.first_segments, self.test
        lengths = np.add.reduceat(test.lengths, first)
        return Frames(test.embeddings, test.labels, lengths, test.is_ego[first], tuple(test.names[v] for v in first))

    @property
    def first_segments(self) -> NDArray[np.int64]:
        """The index of each recording's first segment."""
        if self.recordings is None:
            return np.arange(len(self.test.lengths))
        return np.flatnonzero(np.diff(self.recordings, prepend=-1))


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    score: str  # the name of the score that it shows
    group: str  # printed above the columns that share it
    heading: str
    short: str  # the group where there is little room
    percent: bool = True


def columns_by_setting(scores: str, group: str, short: str) -> tuple[Column, ...]:
    return tuple(Column(f"{scores}/{setting}", group, SETTING_NAMES[setting], short) for setting in SETTINGS)


@dataclass(frozen=True)
class EvaluationTask:
    """All that the rest of the evaluation knows of a task."""

    name: str  # --task
    prefix: str  # of the names of its scores: <prefix>/...
    subject: str  # of its own table
    score: Callable[[TaskData, EvaluationOptions], dict[str, Score]]  # what cannot be scored is there with its reason
    columns: Callable[[EvaluationOptions], tuple[Column, ...]]  # of its own table
    main_columns: Callable[[EvaluationOptions], tuple[Column, ...]] | None = None  # in the paper's main table
    estimate: Callable[[TaskData, Weights, EvaluationOptions], dict[str, Estimates]] | None = None  # for intervals
    needs_labels: bool = False  # of phases
    needs_time: bool = False  # sees a labeled video's frames without a label, too: they are part of its time
    needs_actions: bool = False  # of whole videos
    needs_training: bool = False
    in_all: bool = True  # part of --task all
    saturated_by_time: bool = False  # normalized time alone may give all that there is to score
    measured: str = ""  # what footnotes call its score
    remark: str | None = None  # below the tables that show it

    def scored(self, data: TaskData) -> TaskData:
        """What of the data it is scored on."""
        if not self.needs_labels:
            return data
        return data.labeled if self.needs_time else data.labeled_frames
