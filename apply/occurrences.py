"""Find every occurrence of the action in a long recording.

The model is trained on videos that show the action once, from start to end. Windows of the
recording that resemble such videos are occurrences; what lies between them is idle.
"""

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product

Interval = tuple[int, int]  # half-open interval of frames

# Lengths of the windows, relative to the median training video.
SCALES = (0.6, 0.75, 0.9, 1.1, 1.35, 1.65)
STRIDE = 1 / 12  # distance of the windows, relative to the median training video
LARGEST_MISMATCH = 2.5
LAST = sys.maxsize
OVERLAP = 0.1  # fraction of the shorter of two occurrences that may overlap, before refinement


def find_occurrences(
    frames: int, usual_frames: int, mismatch: Callable[[int, int], float]
) -> list[Interval]:
    """Find the occurrences of the action, in order.

    Windows are accepted from the best match to the worst if they do not overlap with better ones.
    The ends of the accepted windows are then moved until the match no longer improves.

    Args:
        frames: Number of frames of the recording.
        usual_frames: Median number of frames of the training videos.
        mismatch: Function of the start and the end of a window that is small if the window shows
            the action once, from start to end.

    >>> find_occurrences(300, 100, lambda start, end: (abs(start - 53) + abs(end - 161)) / 10)
    [(53, 161)]
    """
    score = cache(mismatch)
    stride = max(1, round(STRIDE * usual_frames))
    windows = {
        (start, min(frames, start + length))
        for length in (max(2, round(scale * usual_frames)) for scale in SCALES)
        for start in range(0, max(1, frames - length + stride), stride)
        if start < frames
    }
    accepted = list[Interval]()
    for start, end in sorted(windows, key=lambda window: (score(*window), window)):
        if score(start, end) > LARGEST_MISMATCH:
            break
        if all(
            min(end, b) - max(start, a) <= OVERLAP * min(end - start, b - a) for a, b in accepted
        ):
            accepted.append((start, end))
    refined = [_refine(window, frames, stride // 2, score) for window in accepted]
    return _without_overlap(sorted(refined))


def _refine(
    window: Interval, frames: int, step: int, score: Callable[[int, int], float]
) -> Interval:
    """Move the ends of a window, by ever smaller steps, to a local minimum of the score."""
    while step:
        moved = [
            (max(0, window[0] + at_start), min(frames, window[1] + at_end))
            for at_start, at_end in product((-step, 0, step), repeat=2)
        ]
        best = min((each for each in moved if each[1] - each[0] > 1), key=lambda each: score(*each))
        if score(*best) < score(*window):
            window = best
        else:
            step //= 2
    return window


def _without_overlap(occurrences: list[Interval]) -> list[Interval]:
    """End each occurrence where the next one starts, at the latest."""
    ends = [
        min(end, following) for (_, end), (following, _) in pairwise([*occurrences, (LAST, LAST)])
    ]
    starts = [start for start, _ in occurrences]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
