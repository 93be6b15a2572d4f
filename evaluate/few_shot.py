"""Few-shot classification: phase classification from a share of the training videos."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.classification import phase_f1, phase_f1_of_each
from byov.evaluate.frames import SETTINGS, Frames, Missing
from byov.evaluate.scores import Score
from byov.evaluate.task import SETTING_NAMES, Column, EvaluationOptions, EvaluationTask, TaskData


@dataclass(frozen=True)
class FewShot:
    """F1 over the draws that could be scored."""

    mean: float | Missing
    std: float | Missing  # with n - 1; of one draw there is none
    draws: int


def few_shot_f1(
    train: Frames,
    test: Frames,
    *,
    shares: Sequence[float] = (0.1, 0.5, 1.0),  # paper, appendix
    seed: int = 0,
    full: dict[str, float | Missing] | None = None,
) -> dict[float, dict[str, FewShot]]:
    """Weighted F1 by share of the training videos and setting.

    `full` is phase_f1 of all training videos, where the caller has it already.
    """
    drawn = {share: draw_videos(train.is_ego, share, seed) for share in shares}
    by_draw = {} if full is None else {1.0: [full]}
    unknown = [share for share in shares if share not in by_draw]
    scores = iter(phase_f1_of_each([train.select(videos) for share in unknown for videos in drawn[share]], test))
    by_draw |= {share: [next(scores) for _ in drawn[share]] for share in unknown}
    return {share: {s: _over_draws([draw[s] for draw in by_draw[share]]) for s in SETTINGS} for share in shares}


def draw_videos(is_ego: NDArray[np.bool_], share: float, seed: int) -> list[NDArray[np.int64]]:
    """Disjoint sets of about this share of the videos, as many as there are; each of both views where possible."""
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share}: it is above 0 and at most 1")
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(np.flatnonzero(is_ego == view)) for view in (True, False)]
    draws = int(1 / share + 1e-9)
    # Each view is cut at the same shares: a view with a video for each draw is in each draw.
    cuts = [[int(share * len(videos) * draw + 0.5) for draw in range(draws + 1)] for videos in shuffled]
    sets = [
        np.sort(np.concatenate([videos[at[draw] : at[draw + 1]] for videos, at in zip(shuffled, cuts, strict=True)]))
        for draw in range(draws)
    ]
    return [videos for videos in sets if len(videos)]


def _over_draws(scores: Sequence[float | Missing]) -> FewShot:
    given = [score for score in scores if isinstance(score, float)]
    if not given:
        return FewShot(next(iter(scores), Missing("no training videos")), Missing("no draw could be scored"), 0)
    std = float(np.std(given, ddof=1)) if len(given) > 1 else Missing("only one draw")
    return FewShot(float(np.mean(given)), std, len(given))


def _score(data: TaskData, options: EvaluationOptions) -> dict[str, Score]:
    train, test = data.training, data.test
    full = phase_f1(train, test) if 1.0 in options.shares else None  # classification's, which keeps its fit
    scores = few_shot_f1(train, test, shares=options.shares, seed=options.seed, full=full)
    return {
        f"few_shot/{_share_text(share)}/{setting}": _score_of(of_setting)
        for share, by_setting in scores.items()
        for setting, of_setting in by_setting.items()
    }


def _score_of(few_shot: FewShot) -> Score:
    if isinstance(few_shot.mean, Missing):
        return Score.of(few_shot.mean)
    deviation = None if isinstance(few_shot.std, Missing) else few_shot.std
    return Score(few_shot.mean, deviation=deviation, draws=few_shot.draws)


def _share_text(share: float) -> str:
    """0.1 → "10%"."""
    return f"{100 * share:g}%"


def _columns(options: EvaluationOptions) -> tuple[Column, ...]:
    return tuple(
        Column(f"few_shot/{share}/{setting}", f"{name} few-shot (F1)", share, f"{name} F1")
        for setting, name in SETTING_NAMES.items()
        for share in map(_share_text, options.shares)
    )


TASK = EvaluationTask(
    name="few-shot",
    prefix="few_shot",
    subject="Few-shot phase classification",
    score=_score,
    columns=_columns,
    needs_labels=True,
    needs_training=True,
    in_all=False,  # it takes as long as the others together
    remark="few-shot: mean ± sample standard deviation over disjoint draws of the training videos",
)
