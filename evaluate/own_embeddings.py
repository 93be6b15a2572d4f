"""Embeddings that somebody brings in an .npz file → their row, and what time alone gives on the same videos."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from byov.errors import EvaluationError
from byov.evaluate.baselines import TIME_ONLY, time_only
from byov.evaluate.evaluation import row_of
from byov.evaluate.frames import Frames
from byov.evaluate.npz import read_npz
from byov.evaluate.scores import Row
from byov.evaluate.tasks import ALL_TASKS, NEED_LABELS, NEED_TRAINING, Material, Settings, Task

LOGGER = logging.getLogger(__name__)

TIMED_TASKS = ("progression", "tau")  # those that time alone can saturate


@dataclass(frozen=True)
class OwnEmbeddings:
    test: Frames
    tasks: tuple[Task, ...]
    row: Row
    time: Row  # Time only, in the timed tasks


def evaluate_npz(path: Path, tasks: Sequence[Task] | None, settings: Settings) -> OwnEmbeddings:
    """Score a file in these tasks, or in all that it has labels for."""
    wanted = tuple(task for task in ALL_TASKS if task != "actions") if tasks is None else tuple(tasks)
    if "actions" in wanted:
        raise EvaluationError(f"{path}: a file of embeddings does not say the actions of its videos")
    frames = read_npz(path, splits=("train", "test") if NEED_TRAINING & set(wanted) else ("test",))
    _refuse_other_width(path, frames)
    bare = [split for split, of_split in frames.items() if of_split.labels is None]
    if bare:
        wanted = _without_labels(path, bare, wanted, explicit=tasks is not None)
    with path.open("rb") as file:
        origin = {"file": path.name, "sha256": file_digest(file, "sha256").hexdigest()}
    material = Material(frames["test"], frames.get("train"))
    timed = tuple(task for task in wanted if task in TIMED_TASKS)
    clocks = Material(time_only(frames["test"]), time_only(frames["train"]) if "train" in frames else None)
    return OwnEmbeddings(
        frames["test"],
        wanted,
        row_of(path.name, "npz", material, wanted, settings, origin),
        row_of("Time only", "time", clocks, timed, settings, {"embedding": TIME_ONLY}),
    )


def _refuse_other_width(path: Path, frames: dict[str, Frames]) -> None:
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{width} in {split}" for split, width in widths.items())
        raise EvaluationError(f"{path}: embeddings of different dimensions: {told}")


def _without_labels(path: Path, bare: Sequence[str], wanted: Sequence[Task], *, explicit: bool) -> tuple[Task, ...]:
    """The tasks that are left; an error if one of the others was asked for by name."""
    needy = [task for task in wanted if task in NEED_LABELS]
    keys = " and ".join(f"{split}_labels" for split in bare)
    message = f"{path}: no {keys}; {', '.join(sorted(NEED_LABELS))} need phase labels, tau does not"
    if explicit and needy:
        raise EvaluationError(message)
    if needy:
        LOGGER.info(message)
    return tuple(task for task in wanted if task not in NEED_LABELS)
