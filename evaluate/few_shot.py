"""Few-shot classification: phase classification from a fraction of the training videos."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.classification import phase_f1
from byov.evaluate.frames import SETTINGS, Frames, Missing, Score


def few_shot_f1(
    train: Frames, test: Frames, *, fractions: Sequence[float] = (0.1, 0.5, 1.0), seed: int = 0
) -> dict[float, dict[str, Score]]:
    """Compute `phase_f1` from disjoint draws of a fraction of the training videos.

    Args:
        train: Labeled training frames.
        test: Labeled frames to score.
        fractions: Fractions of the training videos; the defaults are those of the paper's appendix.
        seed: Random seed of the draws.

    Returns:
        Mean and sample standard deviation over the draws that could be scored, by fraction and setting.
    """
    scores = {}
    for fraction in fractions:
        sets = draw_videos(train.is_ego, fraction, seed)
        draws = [train] if fraction == 1 else [train.select(videos) for videos in sets]
        f1 = [phase_f1(draw, test) for draw in draws]
        scores[fraction] = {setting: _summarize([draw[setting] for draw in f1]) for setting in SETTINGS}
    return scores


def draw_videos(is_ego: NDArray[np.bool_], fraction: float, seed: int) -> list[NDArray[np.int64]]:
    """Draw as many disjoint sets of about this fraction of the videos as possible, as sorted indices.

    Each view is cut at the same fractions, so a view with at least one video per draw is in every draw.

    >>> sets = draw_videos(np.array([True, True, False, False]), 0.5, seed=0)
    >>> [len(videos) for videos in sets]
    [2, 2]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], not {fraction}")
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(np.flatnonzero(is_ego == view)) for view in (True, False)]
    draws = int(1 / fraction + 1e-9)
    cuts = [[int(fraction * len(videos) * draw + 0.5) for draw in range(draws + 1)] for videos in shuffled]
    sets = [
        np.sort(np.concatenate([videos[at[draw] : at[draw + 1]] for videos, at in zip(shuffled, cuts, strict=True)]))
        for draw in range(draws)
    ]
    return [videos for videos in sets if len(videos)]


def _summarize(scores: Sequence[float | Missing]) -> Score:
    values = [score for score in scores if isinstance(score, float)]
    if not values:
        return Score.of(next(iter(scores), Missing("no training videos")))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Score.of(float(np.mean(values)), deviation=deviation, draws=len(values))
