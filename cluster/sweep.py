"""Sweeps: train and score the unfinished runs of a grid on workers, and score the baselines."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from byov.cache.atomic import exclusive
from byov.cache.layout import manifest_path, ratio_key
from byov.cache.runs import CONFIG_NAME, RunRecord, read_progress, read_run
from byov.cluster.grids import PlannedRun, joint_scope
from byov.cluster.ray_pool import ClusterOptions, ray_workers
from byov.cluster.run_task import (
    FAILURE_NAME,
    SWEEP_FOLDER,
    BaselineTask,
    Folders,
    Rows,
    RunStatus,
    RunTask,
    finished_rows,
    read_failure,
)
from byov.cluster.worker_pool import Worker, local_workers, run_tasks
from byov.device import Device
from byov.errors import CacheError, SweepError
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, TimeOnly, read_manifest
from byov.evaluate.evaluation import frozen_columns
from byov.progress import NO_PROGRESS, Progress, Stop, never
from byov.text import format_duration, pluralize
from byov.train.settings import differences, settings_of

LOGGER = logging.getLogger(__name__)
GRACE_SECONDS = 60.0  # time to write checkpoints after a stop


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep."""

    runs: list[RunStatus]  # in the order of the grid
    baselines: dict[str, list[Rows]]  # by dataset: frozen features and Time only


def sweep_workers(
    where: ClusterOptions | int, runs: Sequence[PlannedRun], folders: Folders, stop: Stop = never
) -> AbstractContextManager[Sequence[Worker]]:
    """Start workers on a Ray cluster, or the given number of processes on this machine."""
    if isinstance(where, int):
        return local_workers(where)
    manifests = [manifest_path(folders.features, dataset) for dataset in dict.fromkeys(run.dataset for run in runs)]
    return ray_workers(where, folders.runs, manifests, stop=stop, max_workers=len(runs))


def sweep(
    runs: Sequence[PlannedRun],
    folders: Folders,
    workers: Sequence[Worker],
    *,
    retry: bool = False,
    device: Device = "auto",
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> SweepResult:
    """Train and score every run that is not finished yet, and score the baselines of their datasets.

    Failed runs are skipped unless `retry` is set. Once `stop` returns True, active runs write a checkpoint and
    Interrupted is raised. Raises SweepError if another sweep uses the folder, or a run exists with other settings.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folders.runs / SWEEP_FOLDER / "lock", wait=False))
        except BlockingIOError:
            raise SweepError(
                f"{folders.runs}: another sweep uses this folder. Wait for it, or use another --runs-dir."
            ) from None
        before = [run_status(run, folders) for run in runs]
        skipped = ("finished",) if retry else ("finished", "failed")
        results = {status.name: status for status in before if status.state in skipped}
        to_do = [RunTask(run, folders, device) for run in runs if run.name not in results]
        finished, failed = (sum(status.state == state for status in before) for state in ("finished", "failed"))
        LOGGER.info(
            f"{pluralize(len(runs), 'run')}: {finished} finished before, {failed} failed before, {len(to_do)} to do"
        )
        for run_task in to_do:
            (folders.runs / run_task.name / FAILURE_NAME).unlink(missing_ok=True)
        baselines = baseline_tasks(runs, folders)
        rows: dict[str, Rows] = {}
        tasks: list[RunTask | BaselineTask] = [*to_do, *baselines]
        bar = stack.enter_context(progress.bar("runs", unit="run", total=len(to_do)))
        done = 0
        for task, result, error in run_tasks(workers, tasks, stop=stop, grace_seconds=GRACE_SECONDS):
            if isinstance(task, RunTask):
                # A lost process is not recorded as a failure, so that the next sweep resumes the run.
                status = RunStatus(task.name, "failed", str(error)) if error else result
                results[task.name] = status
                done += 1
                text = f"finished in {format_duration(status.seconds)}" if status.state == "finished" else status.detail
                LOGGER.info(f"[{done} of {len(to_do)}] {task.name}: {text}")
                bar.advance(latest=task.name)
            elif error is None:
                rows[task.name] = result
            else:
                LOGGER.info(f"{task.name}: left out of the table ({error})")
    by_dataset: dict[str, list[Rows]] = {}
    for baseline in baselines:
        if baseline.name in rows:
            by_dataset.setdefault(baseline.dataset, []).append(rows[baseline.name])
    return SweepResult([results[run.name] for run in runs], by_dataset)


def baseline_tasks(runs: Sequence[PlannedRun], folders: Folders) -> list[BaselineTask]:
    """Return the tasks that score frozen features, Time only, and the standardized inputs of the runs."""
    tasks = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        of_dataset = [run for run in runs if run.dataset == dataset]
        scope = joint_scope([run.scope for run in of_dataset])
        inputs = {(run.encoder_folder, f"merged/{ratio_key(run.ratio)}") for run in of_dataset}
        readers: dict[str, Callable[[], EmbeddingReader]] = {}
        for encoder, column in frozen_columns(folders.features, dataset, sorted({column for _, column in inputs})):
            name, reader = f"{dataset},{encoder},{column.replace('/', '-')}", partial(CachedFeatures, folders.features)
            readers[name] = partial(reader, dataset, encoder, column)
            if (encoder, column) in inputs:
                readers[f"{name},standardized"] = partial(reader, dataset, encoder, column, standardized=True)
        readers[dataset] = partial(TimeOnly, read_manifest(folders.features, dataset))
        tasks += [BaselineTask(name, dataset, folders, scope, make) for name, make in readers.items()]
    return tasks


def run_status(run: PlannedRun, folders: Folders) -> RunStatus:
    """Return the status of a run. Raises SweepError if the run exists with other settings."""
    folder = folders.runs / run.name
    exists = (folder / CONFIG_NAME).exists()
    if exists:
        _refuse_other_settings(run, read_run(folders.runs, run.name))
    failure = read_failure(folder)
    if failure is not None:
        return RunStatus(run.name, "failed", failure)
    if not exists:
        return RunStatus(run.name, "to train")
    models = (False, True) if run.untrained else (False,)
    with suppress(CacheError):  # The model does not exist yet, or is damaged, which training reports.
        if all(finished_rows(run, folders, untrained=untrained) is not None for untrained in models):
            return RunStatus(run.name, "finished")
    progress = read_progress(read_run(folders.runs, run.name))
    detail = "trained, not scored" if progress.state == "finished" else progress.description
    return RunStatus(run.name, "to resume", detail)


def _refuse_other_settings(run: PlannedRun, record: RunRecord) -> None:
    ours = {
        "dataset": run.dataset,
        "encoder_folder": run.encoder_folder,
        "column": f"merged/{ratio_key(run.ratio)}",
        "method": run.settings.method,
    }
    found = {name: getattr(record, name) for name in ours}
    other = [f"{name} {found[name]}, not {value}" for name, value in ours.items() if found[name] != value]
    if record.method == run.settings.method:
        other += differences(run.settings, settings_of(record))
    if other:
        raise SweepError(
            f"{record.folder} exists with {'; '.join(other)}. Delete it, or give the grid another name or --runs-dir."
        )
