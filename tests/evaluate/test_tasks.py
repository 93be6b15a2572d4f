"""The registry: what the tasks' records say is what they do."""

import subprocess
import sys

import numpy as np
import pytest

from byov.errors import EvaluationError
from byov.evaluate.evaluation import score
from byov.evaluate.frames import SETTINGS
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_LABELS, NEED_TRAINING, TASKS, task_of

OPTIONS = EvaluationOptions(ks=(3, 10), shares=(0.5, 1.0))


@pytest.fixture
def data(make_frames):
    train, test = make_frames(1), make_frames(2)
    actions = np.arange(8)[:, None] % 2 == 0
    return TaskData(test, train, None, actions, actions)


@pytest.mark.parametrize("name", TASKS)
def test_scores_bear_the_tasks_name_and_fill_its_columns(name, data):
    task = TASKS[name]
    scores = score(data, [name], OPTIONS)
    columns = [column.score for column in task.columns(OPTIONS)]
    assert set(columns) == set(scores)
    main = () if task.main_columns is None else task.main_columns(OPTIONS)
    assert {column.score for column in main} <= set(columns)
    assert all(task_of(one) is task and scores[one].value is not None for one in scores)


@pytest.mark.parametrize("name", TASKS)
def test_what_is_not_needed_can_be_absent(name, data):
    task = TASKS[name]
    bare = TaskData(
        data.test,
        data.train if task.needs_training else None,
        None,
        *((data.train_actions, data.test_actions) if task.needs_actions else (None, None)),
    )
    assert score(bare, [name], OPTIONS) == score(data, [name], OPTIONS)
    if task.needs_training:
        with pytest.raises(ValueError, match="needs training frames"):
            score(TaskData(data.test), [name], OPTIONS)


def test_the_lists_follow_from_the_records():
    assert set(TASKS) - set(ALL_TASKS) == {"few-shot"}
    assert {"classification", "retrieval", "progression", "few-shot"} == NEED_LABELS
    assert {"classification", "progression", "few-shot", "actions"} == NEED_TRAINING


def test_scores_come_in_the_registrys_order_and_an_unknown_task_is_said(data):
    scores = score(data, ["tau", "retrieval"], OPTIONS)
    assert [one.split("/")[0] for one in scores] == ["retrieval"] * 2 * len(SETTINGS) + ["kendalls_tau"] * 5
    with pytest.raises(EvaluationError, match="no task retreival; there are classification, retrieval"):
        score(data, ["retreival"], OPTIONS)


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("byov.evaluate.retrieval, byov.evaluate.kendalls_tau", ("sklearn", "scipy", "h5py", "torch")),
        ("byov.evaluate.tasks", ("sklearn", "scipy", "torch")),
    ],
)
def test_what_the_training_uses_needs_numpy_only_and_the_registry_is_cheap(modules, unwanted):
    code = f"import sys, {modules}; sys.exit(any(name in sys.modules for name in {unwanted}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
