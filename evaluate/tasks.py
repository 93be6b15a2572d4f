"""All tasks, each by its name. To add one: its file, and its line here."""

from byov.evaluate import action_probe, classification, few_shot, kendalls_tau, progression, retrieval
from byov.evaluate.task import EvaluationTask

# In the order of the columns and of the tables: the paper's, then what it does not print.
TASKS: dict[str, EvaluationTask] = {
    task.name: task
    for task in (
        classification.TASK,
        retrieval.TASK,
        progression.TASK,
        few_shot.TASK,
        action_probe.TASK,
        kendalls_tau.TASK,
    )
}
ALL_TASKS = tuple(name for name, task in TASKS.items() if task.in_all)
NEED_LABELS = frozenset(name for name, task in TASKS.items() if task.needs_labels)
NEED_ACTIONS = frozenset(name for name, task in TASKS.items() if task.needs_actions)
NEED_TRAINING = frozenset(name for name, task in TASKS.items() if task.needs_training)


def task_of(score: str) -> EvaluationTask:
    """The task that a score is of, by the score's name."""
    prefix = score.partition("/")[0]
    return next(task for task in TASKS.values() if task.prefix == prefix)
