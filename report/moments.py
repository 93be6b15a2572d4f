"""Error in seconds of the moments that embeddings find in another video.

A moment is the start of a phase, which is annotated in both videos. It is looked up in the other
video by its nearest frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from byov.apply.align import dtw_path, middle_frames, nearest
from byov.evaluate.progress_error import phase_starts
from byov.evaluate.protocols import Segment
from byov.records import UNLABELED
from byov.report.content import Opening

OPENING_VIDEOS = 8  # videos per view that are searched for the opening pair


@dataclass(frozen=True, eq=False)
class Moments:
    """Annotated moments of videos.

    Attributes:
        pts_seconds: (T,) display times of the frames of each video.
        starts: First frame of each phase in each video.
        pairs: Ordered pairs of videos to search: across views, or all if there is only one view.
    """

    pts_seconds: tuple[NDArray[np.float64], ...]
    starts: tuple[dict[int, int], ...]
    pairs: tuple[tuple[int, int], ...]

    def shared(self, video: int, other: int) -> list[tuple[int, int]]:
        """Return the frames of the same moments in two videos."""
        return [
            (frame, self.starts[other][phase])
            for phase, frame in self.starts[video].items()
            if phase in self.starts[other]
        ]

    def errors(self, embeddings: Sequence[NDArray[np.floating]]) -> list[float]:
        """Return the distance in seconds between the nearest frame and the annotated moment, for
        each moment in each pair.
        """
        errors = []
        for video, other in self.pairs:
            if frames := self.shared(video, other):
                queries, targets = np.array(frames).T
                found = nearest(embeddings[video][queries], embeddings[other])
                seconds = self.pts_seconds[other]
                errors += np.abs(seconds[found] - seconds[targets]).tolist()
        return errors


def find_moments(
    segments: Sequence[Segment],
    pts_seconds: Sequence[NDArray[np.float64]],
    *,
    ordered: bool = True,
) -> Moments:
    """Collect the starts of all phases but the first, whose start is the start of the video.

    Starts after unlabeled frames are left out, and all starts if phases are in any order, since
    they may recur.
    """
    starts = []
    for segment in segments:
        labels = (segment.video.labels if ordered else None) or ()
        starts.append(
            {
                phase: frame
                for phase, frame in phase_starts(labels).items()
                if frame and labels[frame - 1] != UNLABELED
            }
        )
    pairs = list(permutations(range(len(segments)), 2))
    views = [segment.video.view for segment in segments]
    across = [pair for pair in pairs if views[pair[0]] != views[pair[1]]]
    return Moments(tuple(pts_seconds), tuple(starts), tuple(across or pairs))


def choose_opening(
    segments: Sequence[Segment], moments: Moments, embeddings: Sequence[NDArray[np.floating]]
) -> Opening:
    """Choose the pair in which the aligned moments are closer than those of a clock by the largest
    margin, preferably an ego video with an exo video. Without labels, choose the first pair.

    The frame is the middle one of those that the alignment matches with the right phase and the
    clock with a wrong one; if there are none, the moment with the largest error of the clock.
    """
    views = [segment.video.view for segment in segments]
    ego = [index for index, view in enumerate(views) if view == "ego"][:OPENING_VIDEOS]
    exo = [index for index, view in enumerate(views) if view == "exo"][:OPENING_VIDEOS]
    pairs = [(video, other) for video in ego for other in exo]
    if not pairs:
        one_view = ego or exo
        pairs = [(one_view[0], other) for other in one_view[1:]] or [(one_view[0], one_view[0])]
    best = Opening(pairs[0][0], 0, pairs[0][1])
    largest_gain = -np.inf
    for video, other in pairs:
        frames = moments.shared(video, other)
        if not frames or video == other:
            continue
        queries, targets = np.array(frames).T
        aligned = middle_frames(dtw_path(embeddings[video], embeddings[other]))
        last = len(segments[other]) - 1
        clock = np.rint(np.linspace(0, last, len(segments[video]))).astype(np.int64)
        seconds = moments.pts_seconds[other]
        aligned_errors = np.abs(seconds[aligned[queries]] - seconds[targets])
        clock_errors = np.abs(seconds[clock[queries]] - seconds[targets])
        gain = float(clock_errors.mean() - aligned_errors.mean())
        if gain > largest_gain:
            largest_gain = gain
            labels, other_labels = (
                np.array(segments[index].video.labels) for index in (video, other)
            )
            is_telling = (other_labels[aligned] == labels) & (other_labels[clock] != labels)
            telling = np.flatnonzero(is_telling & (labels != UNLABELED))
            frame = int(
                telling[len(telling) // 2] if len(telling) else queries[clock_errors.argmax()]
            )
            means = (float(errors.mean()) for errors in (aligned_errors, clock_errors))
            best = Opening(video, frame, other, *means)
    return best
