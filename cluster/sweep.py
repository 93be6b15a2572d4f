"""Sweeps: train and score the unfinished runs of a grid on workers, and score the baselines."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from byov.cache.atomic import exclusive
from byov.cache.layout import manifest_path, ratio_key
from byov.cache.runs import CONFIG_NAME, read_progress, read_run
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
    cached_scores,
    read_failure,
    run_scores,
)
from byov.cluster.worker_pool import Worker, local_workers, run_tasks
from byov.device import Device
from byov.errors import CacheError, SweepError
from byov.evaluate.evaluation import frozen_columns
from byov.progress import Stop, never
from byov.train.settings import differences, settings_of

LOGGER = logging.getLogger(__name__)
GRACE_SECONDS = 60.0  # time to write checkpoints after a stop


class Observer:
    """Receives the events of a sweep. Override what you need."""

    def on_start(self, statuses: Sequence[RunStatus], to_do: int) -> None:
        """Called at the start with the status of all runs and the number of runs to do."""

    def on_finish(self, status: RunStatus) -> None:
        """Called after every run."""

    def on_step(self, running: Sequence[str]) -> None:
        """Called several times a second with the names of the running tasks."""


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep."""

    runs: list[RunStatus]  # in the order of the grid
    baselines: dict[str, list[Rows]]  # by dataset: frozen features and Time only


@contextmanager
def sweep_workers(
    where: ClusterOptions | int, runs: Sequence[PlannedRun], folders: Folders, stop: Stop = never
) -> Iterator[Sequence[Worker]]:
    """Start the workers of a sweep.

    Args:
        where: A Ray cluster, or the number of processes on this machine.
    """
    if isinstance(where, int):
        with local_workers(where) as workers:
            yield workers
        return
    manifests = [manifest_path(folders.features, dataset) for dataset in dict.fromkeys(run.dataset for run in runs)]
    with ray_workers(where, folders.runs, manifests, prepare=_no_preparation, stop=stop, max_workers=len(runs)) as (
        workers_on_ray,
        _,
    ):
        yield workers_on_ray


def _no_preparation(stop: Stop) -> None:
    pass


def sweep(
    runs: Sequence[PlannedRun],
    folders: Folders,
    workers: Sequence[Worker],
    *,
    retry: bool = False,
    device: Device = "auto",
    observer: Observer | None = None,
    stop: Stop = never,
) -> SweepResult:
    """Train and score every run that is not finished yet, and score the baselines of their datasets.

    Args:
        runs: From `plan_runs`.
        workers: From `sweep_workers`.
        retry: Retry failed runs.
        stop: Polled several times a second. Once true, active runs write a checkpoint and Interrupted is raised.

    Raises:
        SweepError: If another sweep uses the folder of runs, or a run exists with other settings.
    """
    observer = observer or Observer()
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folders.runs / SWEEP_FOLDER / "lock", wait=False))
        except BlockingIOError:
            raise SweepError(
                f"{folders.runs}: another sweep uses this folder. Wait for it, or use another --runs-dir."
            ) from None
        before = run_statuses(runs, folders)
        skipped = ("finished",) if retry else ("finished", "failed")
        results = {status.name: status for status in before if status.state in skipped}
        to_do = [RunTask(run, folders, device) for run in runs if run.name not in results]
        observer.on_start(before, len(to_do))
        for task in to_do:
            (folders.runs / task.name / FAILURE_NAME).unlink(missing_ok=True)
        baselines = baseline_tasks(runs, folders)
        rows: dict[str, Rows] = {}
        tasks: list[RunTask | BaselineTask] = [*to_do, *baselines]
        for finished in run_tasks(workers, tasks, stop=stop, grace_seconds=GRACE_SECONDS, on_step=observer.on_step):
            name, error = finished.task.name, finished.error
            if isinstance(finished.task, RunTask):
                # A lost process is not recorded as a failure, so that the next sweep resumes the run.
                results[name] = RunStatus(name, "failed", str(error)) if error else finished.result
                observer.on_finish(results[name])
            elif error is None:
                rows[name] = finished.result
            else:
                LOGGER.info(f"{name}: left out of the table ({error})")
    by_dataset: dict[str, list[Rows]] = {task.dataset: [] for task in baselines}
    for baseline in baselines:
        if baseline.name in rows:
            by_dataset[baseline.dataset].append(rows[baseline.name])
    return SweepResult([results[run.name] for run in runs], by_dataset)


def run_statuses(runs: Sequence[PlannedRun], folders: Folders) -> list[RunStatus]:
    """Return the status of each run. Raises SweepError if a run exists with other settings."""
    return [_status(run, folders) for run in runs]


def baseline_tasks(runs: Sequence[PlannedRun], folders: Folders) -> list[BaselineTask]:
    """Return the tasks that score frozen features, Time only, and the standardized inputs of the runs."""
    tasks: list[BaselineTask] = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        of_dataset = [run for run in runs if run.dataset == dataset]
        scope = joint_scope([run.scope for run in of_dataset])
        inputs = {(run.encoder_folder, f"merged/{ratio_key(run.ratio)}") for run in of_dataset}
        task = partial(BaselineTask, dataset, folders, scope)
        for encoder, column in frozen_columns(folders.features, dataset, sorted({column for _, column in inputs})):
            tasks.append(task((encoder, column, False)))
            if (encoder, column) in inputs:
                tasks.append(task((encoder, column, True)))
        tasks.append(task())
    return tasks


def finished_rows(run: PlannedRun, folders: Folders, *, untrained: bool = False) -> Rows | None:
    """Return the scores of a run; None if they are missing or outdated."""
    path, reader = run_scores(run, folders, untrained=untrained)
    return cached_scores(path, reader, folders.features, run.scope)


def _status(run: PlannedRun, folders: Folders) -> RunStatus:
    folder = folders.runs / run.name
    exists = (folder / CONFIG_NAME).exists()
    if exists:
        _refuse_other_settings(run, folders)
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


def _refuse_other_settings(run: PlannedRun, folders: Folders) -> None:
    """Raise SweepError if the existing run of this name has other settings."""
    record = read_run(folders.runs, run.name)
    ours = {"dataset": run.dataset, "encoder_folder": run.encoder_folder, "column": f"merged/{ratio_key(run.ratio)}"}
    found = {name: getattr(record, name) for name in ours}
    other = [f"{name} {found[name]}, not {value}" for name, value in ours.items() if found[name] != value]
    settings = settings_of(record)
    if settings.method != run.settings.method:
        other.append(f"method {settings.method}, not {run.settings.method}")
    else:
        other += differences(run.settings, settings)
    if other:
        raise SweepError(
            f"{record.folder} exists with {'; '.join(other)}. Delete it, or give the grid another name or --runs-dir."
        )
