"""Check the confidence of annotations: errors by confidence, and videos that should be flagged.

    python benchmarks/annotate.py RUN...

Labels of single training videos are transferred to all test videos. Then, changed test videos that
do not show the whole action in order are annotated.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import byov
from byov.apply.annotate import TOLERANCE, Annotator, LabeledFrames
from byov.evaluate.progress_error import phase_starts
from byov.records import VIEWS

LABELED = 6  # labeled videos of each view, one at a time
LARGE_ERROR = 1.0  # seconds
CHANGES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "whole": lambda frames: frames,
    "reversed": lambda frames: frames[::-1].copy(),
    "first 50%": lambda frames: frames[: len(frames) // 2],
    "first 70%": lambda frames: frames[: round(0.7 * len(frames))],
    "last 70%": lambda frames: frames[-round(0.7 * len(frames)) :],
    "last 50%": lambda frames: frames[-(len(frames) // 2) :],
}


def main(names: list[str]) -> None:
    rows = []
    events = []
    flagged: dict[str, list[bool]] = {change: [] for change in CHANGES}
    for name in names:
        annotator = Annotator(byov.load_run(name))
        features = byov.load_features(annotator.run.dataset, split="test")
        for labeled in one_label_each(annotator):
            annotator.labeled = labeled
            for video, entry in features.videos.items():
                errors, confidences, is_flagged = annotate(annotator, features[video], entry)
                rows.append((errors.mean(), confidences.min(), is_flagged))
                events += list(zip(errors * entry.fps / entry.frames, confidences, strict=True))
        annotator.labeled = None
        for change, apply in CHANGES.items():
            for video in features:
                frames = apply(np.asarray(features[video]))
                (annotation,) = annotator.annotate(frames, np.arange(len(frames)) / 15)
                flagged[change].append(bool(annotation.problems))
    print_errors(np.array(rows, np.float64), np.array(events, np.float64))
    print("\n| test videos | flagged |\n|---|---|")
    for change, values in flagged.items():
        print(f"| {change} | {np.mean(values):.0%} |")


def one_label_each(annotator: Annotator) -> list[LabeledFrames]:
    """Return the labeled frames of randomly chosen training videos, one video at a time."""
    training = annotator.training
    random = np.random.default_rng(0)
    videos = list(training.videos.videos.values())
    labeled = []
    for view in VIEWS:
        of_view = [index for index, video in enumerate(videos) if video.view == view]
        for index in random.choice(of_view, min(LABELED, len(of_view)), replace=False):
            frames = training.video_of_frame == index
            phases = training.labels[frames]
            if set(phases.tolist()) >= set(range(len(training.videos.phases))):
                embeddings = training.frames.embeddings[frames]
                labeled.append(LabeledFrames(embeddings, phases, training.videos.phases))
    return labeled


def annotate(
    annotator: Annotator, features: NDArray[Any], entry: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return the errors (in seconds) and confidences of the events, and whether the video is
    flagged.
    """
    (annotation,) = annotator.annotate(features, np.arange(entry.frames) / entry.fps)
    starts = phase_starts(entry.labels)
    found = [(event, index) for index, event in enumerate(annotation.events, 1) if index in starts]
    errors = [abs(event.frame - starts[index]) / entry.fps for event, index in found]
    confidences = [event.confidence for event, _ in found]
    return np.array(errors), np.array(confidences), bool(annotation.problems)


def print_errors(rows: NDArray[np.float64], events: NDArray[np.float64]) -> None:
    errors, confidences, flagged = rows.T
    large = errors > LARGE_ERROR
    print(f"{len(rows)} annotated videos, mean error {errors.mean():.2f} s")
    print(f"flagged: {flagged.mean():.1%}")
    print(f"error above {LARGE_ERROR:g} s: {large.mean():.1%}", end="")
    print(f", of which flagged: {flagged[large].mean():.0%}" if large.any() else "")
    print("\n| quarter of the videos, by confidence | confidence | error (s) | largest error (s) |")
    print("|---|---|---|---|")
    for index, part in enumerate(np.array_split(np.argsort(confidences), 4), 1):
        row = (confidences[part].mean(), errors[part].mean(), errors[part].max())
        print(f"| {index} | {row[0]:.2f} | {row[1]:.2f} | {row[2]:.2f} |")
    print(f"\n| fifth of the events, by confidence | confidence | within {TOLERANCE:.0%} |")
    print("|---|---|---|")
    for index, part in enumerate(np.array_split(np.argsort(events[:, 1]), 5), 1):
        near = (events[part, 0] <= TOLERANCE).mean()
        print(f"| {index} | {events[part, 1].mean():.2f} | {near:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
