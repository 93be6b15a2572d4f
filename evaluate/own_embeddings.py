"""Embeddings that somebody brings in an .npz file → their row, and what time alone gives on the same videos."""

import logging
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path

from byov.errors import EvaluationError
from byov.evaluate.comparison import Comparison, Scope, counts_of
from byov.evaluate.embedding_readers import TIME_ONLY, time_only
from byov.evaluate.evaluation import row_of
from byov.evaluate.frames import Frames
from byov.evaluate.npz import read_npz
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, SATURATED_BY_TIME, TASKS
from byov.progress import SILENT, Progress

LOGGER = logging.getLogger(__name__)


def evaluate_npz(
    path: Path, tasks: Sequence[str] | None, options: EvaluationOptions, progress: Progress = SILENT
) -> Comparison:
    """Score a file in these tasks, or in all that it has labels for; beside it Time only, in the tasks that time alone
    can saturate."""
    wanted = tuple(task for task in ALL_TASKS if task not in NEED_ACTIONS) if tasks is None else tuple(tasks)
    if NEED_ACTIONS & set(wanted):
        raise EvaluationError(f"{path}: a file of embeddings does not say the actions of its videos")
    frames = read_npz(path, splits=("train", "test") if NEED_TRAINING & set(wanted) else ("test",))
    _refuse_other_width(path, frames)
    bare = [split for split, of_split in frames.items() if of_split.labels is None]
    if bare:
        wanted = _without_labels(path, bare, wanted, explicit=tasks is not None)
    with path.open("rb") as file:
        origin = {"file": path.name, "sha256": file_digest(file, "sha256").hexdigest()}
    test, train = frames["test"], frames.get("train")
    rows = [row_of(path.name, "npz", TaskData(test, train), wanted, options, origin, progress=progress)]
    if timed := [task for task in wanted if task in SATURATED_BY_TIME]:
        clocks = TaskData(time_only(test), time_only(train) if train else None)
        rows.append(row_of("Time only", "time", clocks, timed, options, {"embedding": TIME_ONLY}, progress=progress))
    counts = counts_of(len(test.lengths), int(test.is_ego.sum()), len(test.embeddings))
    scope = Scope("test", ("standard",), wanted, options)
    return Comparison(path.name, scope, {"standard": rows}, {"standard": counts})


def _refuse_other_width(path: Path, frames: dict[str, Frames]) -> None:
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{width} in {split}" for split, width in widths.items())
        raise EvaluationError(f"{path}: embeddings of different dimensions: {told}")


def _without_labels(path: Path, bare: Sequence[str], wanted: Sequence[str], *, explicit: bool) -> tuple[str, ...]:
    """The tasks that are left; an error if one of the others was asked for by name."""
    needy = [task for task in wanted if task in NEED_LABELS]
    keys = " and ".join(f"{split}_labels" for split in bare)
    others = " and ".join(task for task in TASKS if task not in NEED_LABELS | NEED_ACTIONS)
    message = f"{path}: no {keys}; {', '.join(sorted(NEED_LABELS))} need phase labels, {others} does not"
    if explicit and needy:
        raise EvaluationError(message)
    if needy:
        LOGGER.info(message)
    return tuple(task for task in wanted if task not in NEED_LABELS)
