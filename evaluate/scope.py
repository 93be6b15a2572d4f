"""What an evaluation scores: split, protocols, tasks and options."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byov.cache.manifest import Manifest
from byov.errors import EvaluationError
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.protocols import CHOICES, PROTOCOLS, Protocol, ProtocolChoice, ScoredSplit
from byov.evaluate.tasks import TASKS, EvaluationOptions, find_tasks

LOGGER = logging.getLogger(__name__)
ALL = "all"  # every task that a dataset has labels for, except few-shot


@dataclass(frozen=True)
class Scope:
    """Split, protocols, tasks and options of an evaluation."""

    split: ScoredSplit
    protocols: tuple[Protocol, ...]
    tasks: tuple[str, ...]
    options: EvaluationOptions


def choose_scope(
    manifest: Manifest,
    tasks: Sequence[str] = (ALL,),
    *,
    split: ScoredSplit = "test",
    protocol: ProtocolChoice | None = None,
    options: EvaluationOptions | None = None,
) -> Scope:
    """Choose what to score on a dataset.

    Args:
        manifest: Manifest of the dataset.
        tasks: Task names; "all" stands for every task that the dataset has labels for.
        split: Split to score.
        protocol: Protocols to score, as far as the tasks support them. Default: all for "all",
            otherwise the first protocol of the first task.
        options: Task options. On Pour Liquid, the time column is always used, as in AE2.

    Raises:
        EvaluationError: If the dataset lacks labels that a named task needs, or no task supports
            the protocol.
    """
    named = find_tasks([task for task in tasks if task != ALL])
    for task in named:
        if lacking := task.missing_labels(manifest, split):
            raise EvaluationError(
                f"{manifest.dataset} has no {lacking}; {task.name} needs them, but "
                f"{'retrieval' if task.needs_order and not manifest.ordered else 'tau'} does not"
            )
    wanted = {task.name for task in named}
    if ALL in tasks:
        wanted.update(available_tasks(manifest))
        if skipped := _tasks_that_need_order(manifest):
            LOGGER.info(
                f"{manifest.dataset}: its phases have no fixed order; skipped {', '.join(skipped)}"
            )
    scored = tuple(task for task in TASKS if task in wanted)
    protocols = scored_protocols(scored, protocol or (ALL if ALL in tasks else None))
    if not protocols:
        raise EvaluationError(f"{', '.join(scored)}: not available in the {protocol} protocol")
    return Scope(split, protocols, scored, dataset_options(manifest.dataset, options))


def file_scope(
    manifest: Manifest,
    name: str,
    tasks: Sequence[str] = (ALL,),
    options: EvaluationOptions | None = None,
) -> Scope:
    """Choose what to score in embedding files, which have whole videos and may lack labels.

    Args:
        manifest: Videos and labels of the files.
        name: Name of the file or folder, for messages.
        tasks: Task names; "all" stands for every task that the files have labels and videos for.
        options: Task options.
    """
    splits = {video.split for video in manifest.videos}
    if "test" not in splits:
        raise EvaluationError(
            f"{name}: none of the files belongs to a test video of {manifest.dataset}"
        )
    usual = [
        task.name
        for task in TASKS.values()
        if task.in_all and "standard" in task.protocols and not task.needs_actions
    ]
    scored = []
    for task in find_tasks(usual if ALL in tasks else tasks):
        lacking = task.missing_labels(manifest, "test")
        if task.needs_training and "train" not in splits:
            lacking = "training videos"
        if not lacking:
            scored.append(task.name)
            continue
        message = (
            f"{name}: no {lacking}, needed by {task.name} (for files written by "
            "byov-embed, pass --dataset NAME)"
        )
        if ALL not in tasks:
            raise EvaluationError(message)
        LOGGER.info(f"{message}; skipped")
    return Scope("test", ("standard",), tuple(scored), dataset_options(manifest.dataset, options))


def available_tasks(manifest: Manifest) -> tuple[str, ...]:
    """Return the tasks that `--task all` scores on a dataset. With action labels only, this is
    `actions` alone.
    """
    only_actions = bool(manifest.actions) and not manifest.phases
    return tuple(
        task.name
        for task in TASKS.values()
        if task.in_all
        and (manifest.phases or not task.needs_labels)
        and (manifest.ordered or not task.needs_order)
        and (manifest.actions if task.needs_actions else not only_actions)
    )


def _tasks_that_need_order(manifest: Manifest) -> list[str]:
    if manifest.ordered or not manifest.phases:
        return []
    return [task.name for task in TASKS.values() if task.in_all and task.needs_order]


def scored_protocols(tasks: Sequence[str], choice: str | None = None) -> tuple[Protocol, ...]:
    """Return the chosen protocols that at least one of the tasks supports; by default, only the
    first protocol of the first task.
    """
    chosen = CHOICES.get(choice, (choice,)) if choice else TASKS[tasks[0]].protocols[:1]
    return tuple(
        protocol
        for protocol in PROTOCOLS
        if protocol in chosen and any(protocol in TASKS[task].protocols for task in tasks)
    )


def dataset_options(dataset: str, options: EvaluationOptions | None = None) -> EvaluationOptions:
    """Return the options, with the time column enabled for datasets on which AE2 uses it."""
    options = options or EvaluationOptions()
    return replace(options, time_column=options.time_column or dataset in TIME_COLUMN_DATASETS)
