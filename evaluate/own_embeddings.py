"""Embeddings that come as files, anybody's or of byov-embed, scored beside what time alone gives on the same videos."""

import logging
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from byov.cache.manifest import Manifest
from byov.errors import EvaluationError
from byov.evaluate.comparison import Comparison, Scope, counts_of
from byov.evaluate.embedded_files import EmbeddedFiles, is_embedded
from byov.evaluate.embedding_readers import TIME_ONLY, time_only
from byov.evaluate.evaluation import row_of
from byov.evaluate.frames import Frames
from byov.evaluate.npz import has_split, read_npz
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, TASKS
from byov.progress import SILENT, Progress
from byov.text import counted

LOGGER = logging.getLogger(__name__)


def evaluate_own(
    path: Path,
    tasks: Sequence[str] | None,
    options: EvaluationOptions,
    progress: Progress = SILENT,
    manifest: Manifest | None = None,
) -> Comparison:
    """Score a file, or a folder of byov-embed's, in these tasks, or in all that it has labels for; beside it Time only,
    in the same tasks, as the row to beat.

    manifest: of the dataset that files of byov-embed are of; it says their splits and labels.
    """
    wanted = tuple(task for task in ALL_TASKS if task not in NEED_ACTIONS) if tasks is None else tuple(tasks)
    if NEED_ACTIONS & set(wanted):
        raise EvaluationError(f"{path}: a file of embeddings does not say the actions of its videos")
    frames, origin, wanted = (_embedded if is_embedded(path) else _arrays)(path, wanted, tasks is None, manifest)
    _refuse_other_width(path, frames)
    test, train = frames["test"], frames.get("train")
    clocks = TaskData(time_only(test), time_only(train) if train else None)
    rows = [
        row_of(path.name, "npz", TaskData(test, train), wanted, options, origin, progress=progress),
        row_of("Time only", "time", clocks, wanted, options, {"embedding": TIME_ONLY}, progress=progress),
    ]
    counts = counts_of(len(test.lengths), int(test.is_ego.sum()), len(test.embeddings))
    scope = Scope("test", ("standard",), wanted, options)
    return Comparison(path.name, scope, {"standard": rows}, {"standard": counts})


Given = tuple[dict[str, Frames], dict[str, Any], tuple[str, ...]]  # frames by split, where from, tasks


def _arrays(path: Path, wanted: tuple[str, ...], every: bool, _: Manifest | None) -> Given:
    """every: all tasks are wanted that can be scored, and none by its name."""
    if every and not has_split(path, "train"):
        wanted = _without_training(path, wanted, "no training videos (train_embeddings, ...)")
    frames = read_npz(path, splits=_splits(wanted))
    if bare := [split for split, of_split in frames.items() if of_split.labels is None]:
        keys = " and ".join(f"{split}_labels" for split in bare)
        wanted = _without_labels(path, f"no {keys}", wanted, explicit=not every)
    with path.open("rb") as file:
        origin = {"file": path.name, "sha256": file_digest(file, "sha256").hexdigest()}
    return frames, origin, wanted


def _embedded(path: Path, wanted: tuple[str, ...], every: bool, manifest: Manifest | None) -> Given:
    reader = EmbeddedFiles(path, manifest)
    counts = {
        split: sum(video.split == split for video in reader.manifest.videos) for split in ("train", "val", "test")
    }
    if not counts["test"]:
        raise EvaluationError(f"{path}: no test video of {reader.manifest.dataset} among the files")
    if counts["val"]:
        LOGGER.info(f"{path}: left out: {counted(counts['val'], 'val video')}")
    advice = "" if manifest else " (--dataset NAME takes them from a dataset in the cache)"
    if not counts["train"] and NEED_TRAINING & set(wanted):
        if not every:
            raise EvaluationError(f"{path}: no training videos among the files, which {wanted[0]} needs{advice}")
        wanted = _without_training(path, wanted, "no training videos among the files")
    frames = {split: reader.frames(split) for split in _splits(wanted)}
    if any(of_split.labels is None for of_split in frames.values()):
        wanted = _without_labels(path, f"no phase labels{advice}", wanted, explicit=not every)
    return frames, reader.origin(), wanted


def _splits(tasks: Sequence[str]) -> tuple[str, ...]:
    return ("train", "test") if NEED_TRAINING & set(tasks) else ("test",)


def _refuse_other_width(path: Path, frames: dict[str, Frames]) -> None:
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{width} in {split}" for split, width in widths.items())
        raise EvaluationError(f"{path}: embeddings of different dimensions: {told}")


def _without_training(path: Path, wanted: Sequence[str], why: str) -> tuple[str, ...]:
    needy = ", ".join(task for task in wanted if task in NEED_TRAINING)
    LOGGER.info(f"{path}: {why}: {needy} are left out, which need them")
    return tuple(task for task in wanted if task not in NEED_TRAINING)


def _without_labels(path: Path, why: str, wanted: Sequence[str], *, explicit: bool) -> tuple[str, ...]:
    """The tasks that are left; an error if one of the others was asked for by name."""
    needy = [task for task in wanted if task in NEED_LABELS]
    others = " and ".join(task for task in TASKS if task not in NEED_LABELS | NEED_ACTIONS)
    message = f"{path}: {why}; {', '.join(sorted(NEED_LABELS))} need phase labels, {others} does not"
    if explicit and needy:
        raise EvaluationError(message)
    if needy:
        LOGGER.info(message)
    return tuple(task for task in wanted if task not in NEED_LABELS)
