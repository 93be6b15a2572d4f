"""Annotate the frames of any video with progress and phases, transferred from reference videos.

Progress is the mean progress of the nearest training frames. Phases come from labeled videos: the
most likely division of the video into phases, in order. Confidence tells how far to trust both, and
checks against the training videos find videos that do not show the action as the model knows it.

Shapes: T frames of a video, F labeled frames, P phases, D dimensions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import byov
from byov.apply.occurrences import find_occurrences
from byov.apply.references import TrainingFrames, read_training_frames
from byov.errors import ApplyError
from byov.evaluate.transfer import (
    event_posteriors,
    find_events,
    phase_log_likelihoods,
)
from byov.progress import NO_PROGRESS, Progress
from byov.records import UNLABELED

# Events within this fraction of the action of the true one count as found in confidences.
TOLERANCE = 0.05
UNCERTAIN = 0.35  # events with a lower confidence should be reviewed; chosen on the demo set
UNCERTAIN_TIME = "uncertain time of"  # start of the problem of an uncertain event


@dataclass(frozen=True, eq=False)
class LabeledFrames:
    """Frames with known phases, from which phases are transferred.

    Args:
        embeddings: (F, D) embeddings.
        phases: (F,) phases, UNLABELED if unknown.
        names: Names of the P phases.
        ordered: Whether every video shows the phases in this order.
    """

    embeddings: NDArray[np.float32]
    phases: NDArray[np.int64]
    names: tuple[str, ...]
    ordered: bool = True

    def __post_init__(self) -> None:
        missing = sorted({*range(len(self.names))} - {*self.phases.tolist()})
        if missing:
            raise ApplyError(
                f"no labeled frame shows phase {self.names[missing[0]]!r}. Label a video that "
                "shows all phases."
            )


@dataclass(frozen=True)
class Event:
    """First frame of a phase."""

    phase: str
    frame: int
    seconds: float
    confidence: float  # estimated probability that the event is within TOLERANCE


@dataclass(frozen=True, eq=False)
class Annotation:
    """Annotation of one occurrence of the action in a video.

    Attributes:
        start: Index of its first frame in the video.
        seconds: (T,) times of its frames in the video.
        progress: (T,) progress of the action, from 0 to 1.
        phases: (T,) indices into `phase_names`, UNLABELED if no labeled video is available.
        confidence: (T,) confidence in progress and phase of each frame, from 0 to 1.
        phase_names: Names of the phases.
        events: First frame of each phase after the first one.
        problems: Reasons why a person should look at the video, empty if there are none.
    """

    start: int
    seconds: NDArray[np.float64]
    progress: NDArray[np.float64]
    phases: NDArray[np.int64]
    confidence: NDArray[np.float64]
    phase_names: tuple[str, ...]
    events: tuple[Event, ...]
    problems: tuple[str, ...]

    @property
    def total_confidence(self) -> float:
        """Confidence in the least certain event or, without events, the mean over the frames."""
        if self.events:
            return min(event.confidence for event in self.events)
        return float(self.confidence.mean())


class Annotator:
    """Annotates videos with the references of a run.

    Args:
        run: Run with its feature cache.
        labeled: Labeled frames. Default: those of the training videos, if any video has labels.

    Attributes:
        training: Frames of the training videos.
        variance: Sum of the variances of the training frames in each dimension.
    """

    def __init__(self, run: "byov.Run", labeled: LabeledFrames | None = None) -> None:
        self.run = run
        self.training = read_training_frames(run)
        self.labeled = labeled or _training_labels(self.training)
        embeddings = self.training.frames.embeddings
        self.variance = float(embeddings.var(axis=0, dtype=np.float64).sum())

    @property
    def phase_names(self) -> tuple[str, ...]:
        return self.labeled.names if self.labeled else ()

    @property
    def is_ordered(self) -> bool:
        """Whether every video shows the phases in the same order."""
        return self.labeled is not None and self.labeled.ordered

    def annotate(
        self,
        features: NDArray[Any] | Tensor,
        seconds: NDArray[np.float64],
        *,
        given: NDArray[np.int64] | None = None,
        repeat: bool = False,
        progress: Progress = NO_PROGRESS,
    ) -> list[Annotation]:
        """Annotate a video.

        Args:
            features: (T, width) features from the encoder of the run.
            seconds: (T,) times of the frames.
            given: (T,) phases, if they are known.
            repeat: Find all occurrences of the action in a long recording. By default, the video
                shows it once.
            progress: Progress reporter for the search, updated after each window.

        Returns:
            Annotation of each occurrence, in order.
        """
        if not repeat:
            return [self._annotate_once(features, seconds, given=given)]
        with progress.bar("windows", unit="window", brief=True) as bar:

            def mismatch(start: int, end: int) -> float:
                bar.advance()
                return self._mismatch(features[start:end])

            lengths = [video.frames or 0 for video in self.training.videos.videos.values()]
            found = find_occurrences(len(seconds), round(float(np.median(lengths))), mismatch)
        return [
            self._annotate_once(features[start:end], seconds[start:end], start=start)
            for start, end in found
        ]

    def _annotate_once(
        self,
        features: NDArray[Any] | Tensor,
        seconds: NDArray[np.float64],
        *,
        start: int = 0,
        given: NDArray[np.int64] | None = None,
    ) -> Annotation:
        embedding = self.run.embed(features)
        estimate = self.training.estimate(embedding)
        familiarity = 1 / np.maximum(1, estimate.unfamiliarity)
        problems = estimate.problems()
        if given is not None:
            familiarity = np.ones(len(embedding))
            problems = []
            found = given_phases(given, len(self.phase_names) if self.is_ordered else 0)
        elif self.labeled:
            found = self._transfer_phases(embedding)
        else:
            found = given_phases(np.full(len(embedding), UNLABELED), 0)
        events = tuple(
            Event(name, start + int(frame), float(seconds[frame]), float(confidence))
            for name, frame, confidence in zip(
                self.phase_names[1:],
                found.events,
                familiarity.mean() * found.event_probabilities,
                strict=bool(len(found.events)),  # phases in any order have no events
            )
        )
        problems += [
            f"{UNCERTAIN_TIME} {event.phase!r}" for event in events if event.confidence < UNCERTAIN
        ]
        return Annotation(
            start,
            seconds,
            estimate.progress,
            found.phases,
            familiarity * found.probabilities,
            self.phase_names,
            events,
            tuple(problems),
        )

    def _mismatch(self, features: NDArray[Any] | Tensor) -> float:
        """Return how much a window differs from a video that shows the action once."""
        estimate = self.training.estimate(self.run.embed(features))
        first, last = estimate.ends
        return float(estimate.unfamiliarity.mean() + first + 1 - last + 10 * estimate.disorder)

    def _transfer_phases(self, embedding: NDArray[np.float32]) -> "_Phases":
        assert self.labeled is not None
        log_likelihoods = phase_log_likelihoods(
            embedding,
            self.labeled.embeddings,
            self.labeled.phases,
            len(self.labeled.names),
            self.variance,
        )
        indices = np.arange(len(embedding))
        if not self.labeled.ordered:
            probabilities = np.exp(log_likelihoods)
            probabilities /= probabilities.sum(axis=1, keepdims=True)
            phases = probabilities.argmax(axis=1)
            return _Phases(phases, probabilities[indices, phases], indices[:0], np.empty(0))
        events = find_events(log_likelihoods)
        posteriors = event_posteriors(log_likelihoods)
        phases = np.searchsorted(events, indices, side="right")
        return _Phases(
            phases,
            phase_probabilities(posteriors)[indices, phases],
            np.minimum(events, len(embedding) - 1),
            np.array([probability_near(*each) for each in zip(posteriors, events, strict=True)]),
        )


@dataclass(frozen=True, eq=False)
class _Phases:
    """Phases of a video, and how likely they are."""

    phases: NDArray[np.int64]  # (T,)
    probabilities: NDArray[np.float64]  # (T,) of these phases
    events: NDArray[np.int64]  # (P - 1,) first frame of each phase after the first one
    event_probabilities: NDArray[np.float64]  # (P - 1,) of these events, within TOLERANCE


def given_phases(phases: NDArray[np.int64], count: int) -> _Phases:
    """Return the certain events of (T,) phases; a phase that is not shown starts with the next one,
    or at the last frame.
    """
    events = [
        int(np.argmax(phases >= phase)) if (phases >= phase).any() else len(phases) - 1
        for phase in range(1, count)
    ]
    ones = np.ones(len(phases))
    return _Phases(phases, ones, np.array(events, np.int64), np.ones(len(events)))


def _training_labels(training: TrainingFrames) -> LabeledFrames | None:
    if not (training.labels != UNLABELED).any():
        return None
    videos = training.videos
    return LabeledFrames(training.frames.embeddings, training.labels, videos.phases, videos.ordered)


def phase_probabilities(posteriors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the (T, P) probabilities of the phases from the (P - 1, T + 1) posteriors of the
    events.
    """
    begun = np.cumsum(posteriors, axis=1)[:, :-1].T  # (T, P - 1)
    ones = np.ones((len(begun), 1))
    return np.asarray(-np.diff(np.hstack([ones, begun, 0 * ones]), axis=1))


def probability_near(posterior: NDArray[np.float64], frame: int) -> float:
    """Return the probability of an event with a (T + 1,) posterior to be within TOLERANCE of a
    frame.

    >>> probability_near(np.array([0.1, 0.2, 0.3, 0.4]), 1)
    0.6
    """
    distance = np.abs(np.arange(len(posterior)) - frame)
    return round(float(posterior[distance <= max(1, TOLERANCE * (len(posterior) - 1))].sum()), 6)
