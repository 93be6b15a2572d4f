"""Tests of the task registry and the bootstrap."""

from dataclasses import replace

import numpy as np
import pytest

from byov.errors import EvaluationError
from byov.evaluate.tasks import (
    TASKS,
    EvaluationOptions,
    draw_weights,
    find_tasks,
    main_columns,
    score_frames,
    table_columns,
    task_of,
)

OPTIONS = EvaluationOptions(ks=(3, 10), fractions=(0.5, 1.0))
BOOTSTRAP = replace(OPTIONS, bootstrap=200)
RESAMPLED = ("classification", "retrieval", "progression", "tau", "progress-error", "events")


@pytest.fixture
def frames(make_frames):
    """Training and test frames with actions, progress and frame rates."""
    actions = np.arange(12)[:, None] % 2 == 0
    both = (replace(make_frames(seed, ego=6, exo=6), actions=actions) for seed in (1, 2))
    return tuple(
        replace(
            frames,
            reference_progress=frames.index_in_video / frames.lengths.max(),
            fps=np.full(len(frames.lengths), 10.0),
        )
        for frames in both
    )


@pytest.mark.parametrize("name", TASKS)
def test_scores_fill_the_columns_of_their_task(name, frames):
    task = TASKS[name]
    scores = score_frames(*frames, [TASKS[name]], OPTIONS)
    columns = [column.score for column in task.columns(OPTIONS)]
    assert set(columns) == set(scores)
    assert all(task_of(score) is task and scores[score].value is not None for score in scores)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_use_only_what_they_need(name, frames):
    task = TASKS[name]
    (train, test) = frames
    if not task.needs_actions:
        train = replace(train, actions=None)
        test = replace(test, actions=None)
    train = train if task.needs_training else None
    assert score_frames(train, test, [task], OPTIONS) == score_frames(*frames, [task], OPTIONS)


def test_unknown_tasks_are_rejected():
    with pytest.raises(
        EvaluationError, match="unknown task retreival; choose from classification, retrieval"
    ):
        find_tasks(["retreival"])


def test_tables_depend_on_the_tasks():
    tables = table_columns(tuple(TASKS), EvaluationOptions())
    others = [TASKS[name].title for name in TASKS if name not in ("classification", "progression")]
    assert list(tables) == ["Phase tasks", *others]
    assert list(table_columns(tuple(TASKS), EvaluationOptions(), "online")) == [
        "Phase tasks",
        TASKS["retrieval"].title,
        TASKS["progress-error"].title,
    ]
    assert list(table_columns(["retrieval"], EvaluationOptions())) == ["Frame retrieval"]
    assert "retrieval/map@3/regular" in [
        column.score for column in main_columns(EvaluationOptions(ks=(3, 7)))
    ]
    (column,) = TASKS["progression"].columns(EvaluationOptions(time_column=True))
    assert "time column" in column.note


@pytest.mark.parametrize("recordings", [None, np.arange(12) // 2])
def test_drawing_each_video_once_gives_the_scores_themselves(frames, recordings):
    train = frames[0]
    test = replace(frames[1], recordings=recordings)
    once = np.ones((1, len(test.lengths)))
    scores = score_frames(train, test, find_tasks(RESAMPLED), OPTIONS)
    estimates = {}
    for name in RESAMPLED:
        estimates |= TASKS[name].resample(train, test, once, OPTIONS)
    assert estimates.keys() == scores.keys()
    for name, score in scores.items():
        assert estimates[name] == pytest.approx([score.value]), name


def test_intervals_contain_the_scores_and_repeat_with_the_seed(frames):
    tasks = find_tasks(RESAMPLED)
    scores = score_frames(*frames, tasks, BOOTSTRAP)
    for score in scores.values():
        low, high = score.interval
        assert low <= high
        assert low - 0.1 <= score.value <= high + 0.1
    assert scores == score_frames(*frames, tasks, BOOTSTRAP)
    assert scores != score_frames(*frames, tasks, replace(BOOTSTRAP, seed=1))


def test_videos_are_drawn_within_their_view_and_sub_clips_together(frames):
    test = frames[1]
    weights = draw_weights(test, 50, seed=0)
    assert (weights[:, test.is_ego].sum(axis=1) == 6).all()
    assert (weights.sum(axis=1) == 12).all()
    assert weights.std() > 0
    together = draw_weights(replace(test, recordings=np.arange(12) // 2), 50, seed=0)
    np.testing.assert_array_equal(together[:, ::2], together[:, 1::2])


def test_one_video_has_no_spread_and_no_tau(frames):
    train, test = frames
    scores = score_frames(train, test.select(np.array([0])), find_tasks(RESAMPLED), BOOTSTRAP)
    low, high = scores["classification/regular"].interval
    assert low == high
    assert scores["kendalls_tau/all"].interval is None
