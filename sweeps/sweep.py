"""Sweeps: train and score the unfinished runs of a grid on workers, and score the baselines. Scores
are cached in:

runs/<run>/scores.json, scores-untrained.json     scores of a run and of its untrained model
runs/.sweep/<dataset>[,<encoder>,<column>].json   scores of Time only and of frozen features
"""

import json
import logging
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from byov.cache.atomic import exclusive, write_text
from byov.cache.layout import manifest_path, ratio_key
from byov.cache.runs import (
    CHECKPOINTS_NAME,
    CONFIG_NAME,
    LAST_MODEL_NAME,
    is_training,
    read_run,
    summarize_run,
)
from byov.device import Device
from byov.errors import ByovError, CacheError, Diverged, Interrupted, StaleError, SweepError
from byov.evaluate.compare import ScoreTask, baseline_readers, cached_rows, score
from byov.evaluate.readers import (
    EmbeddingReader,
    RunEmbeddings,
    TimeOnly,
    read_manifest,
)
from byov.evaluate.table import Rows
from byov.files import read_json
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never
from byov.sweeps.estimates import estimate_runs, total_time
from byov.sweeps.grids import SWEEP_FOLDER, Folders, PlannedRun, joint_scope
from byov.text import format_duration, pluralize
from byov.train.registry import differences, run_config
from byov.train.runs import Execution, resume_run, start_run
from byov.workers import ClusterOptions, LocalWorkers, RayWorkers, Workers

LOGGER = logging.getLogger(__name__)
SCORES_NAME = "scores.json"
UNTRAINED_NAME = "scores-untrained.json"
FAILURE_NAME = ".failure.json"  # hidden, so that a folder with only this file is treated as empty
LOCK_SECONDS = 10.0  # how long to wait for another process to release a run
GRACE_SECONDS = 60.0  # time for runs to write a checkpoint when stopped
SweepState = Literal["to train", "to resume", "cannot run", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class RunStatus:
    """State of a run before or after a sweep."""

    name: str
    state: SweepState
    detail: str = ""  # reason for a failure, or training progress
    seconds: float = 0.0  # time spent in this sweep


@dataclass(frozen=True)
class RunTask:
    """Task that trains a run, resuming it if it exists, and scores it."""

    run: PlannedRun
    folders: Folders
    device: Device = "auto"

    @property
    def name(self) -> str:
        return self.run.name

    def __call__(self, stop: Stop) -> RunStatus:
        started = time.monotonic()
        folder = self.folders.runs / self.name
        # Wait for another process that trains the run, such as a worker of a killed sweep.
        while is_training(folder):
            if stop() or time.monotonic() > started + LOCK_SECONDS:
                reason = "another process is training this run; sweep again when it is done"
                return RunStatus(self.name, "failed", reason)
            time.sleep(0.1)
        try:
            self._train(folder, stop)
            self._score(stop)
        except Interrupted:
            return RunStatus(self.name, "stopped")
        # The error is not recorded: the next sweep scores the run once it is current.
        except StaleError as error:
            return RunStatus(self.name, "failed", str(error))
        # The error is not recorded: its cause is this machine, not the run.
        except OSError as error:
            return RunStatus(
                self.name, "failed", f"{error.filename or folder}: {error.strerror or error}"
            )
        # The error is recorded: later sweeps skip the run unless --retry is given.
        except Exception as error:
            is_bug = not isinstance(error, ByovError | Diverged)
            reason = f"{type(error).__name__}: {error}" if is_bug else str(error)
            failure = {"reason": reason, "traceback": traceback.format_exc() if is_bug else ""}
            write_text(folder / FAILURE_NAME, json.dumps(failure, indent=1) + "\n")
            return RunStatus(self.name, "failed", reason)
        return RunStatus(self.name, "finished", seconds=round(time.monotonic() - started, 1))

    def _train(self, folder: Path, stop: Stop) -> None:
        is_pruned = (folder / LAST_MODEL_NAME).exists() and not any(
            (folder / CHECKPOINTS_NAME).glob("*.safetensors")
        )
        if is_pruned or (folder / SCORES_NAME).exists():
            return
        execution = Execution(
            device=self.device,
            features_dir=self.folders.features,
            runs_dir=self.folders.runs,
            stop=stop,
        )
        if (folder / CONFIG_NAME).exists():
            resume_run(self.name, execution)
        else:
            run = self.run
            settings = run.config.flat()
            if settings["steps"] is not None:
                del settings["epochs"]
            start_run(
                run.name,
                execution,
                dataset=run.dataset,
                encoder=run.encoder_folder,
                ratio=run.ratio,
                **settings,
            )

    def _score(self, stop: Stop) -> None:
        # Score the trained model last, because its scores mark the run as finished.
        for untrained in (True, False) if self.run.untrained else (False,):
            path, reader = run_scores(self.run, self.folders, untrained=untrained)
            score(reader, self.run.scope, path, Stoppable(NO_PROGRESS, stop))


@dataclass(frozen=True)
class SweepResult:
    """Status of each run and scores of the baselines after a sweep."""

    runs: list[RunStatus]  # in the order of the grid
    baselines: dict[str, list[Rows]]  # dataset → rows of frozen features and Time only


def sweep_workers(
    where: ClusterOptions | int, runs: Sequence[PlannedRun], folders: Folders, stop: Stop = never
) -> Workers:
    """Return an executor on a Ray cluster, or with a number of processes on this machine."""
    if isinstance(where, int):
        return LocalWorkers(where)
    manifests = [
        manifest_path(folders.features, dataset)
        for dataset in dict.fromkeys(run.dataset for run in runs)
    ]
    return RayWorkers(where, folders.runs, manifests, tasks=len(runs), stop=stop)


def sweep(
    runs: Sequence[PlannedRun],
    folders: Folders,
    workers: Workers,
    *,
    retry: bool = False,
    device: Device = "auto",
    measure: bool = False,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> SweepResult:
    """Train and score every run that is not finished yet, and score the baselines of their
    datasets.

    If `measure` is set, a few training steps are timed first and the expected time is logged.
    Failed runs are skipped unless `retry` is set. Once `stop` returns True, active runs write a
    checkpoint and Interrupted is raised. Raises SweepError if another sweep uses the folder or a
    run exists with other settings.
    """
    busy = SweepError(
        f"{folders.runs}: another sweep uses this folder. Wait for it, or use another --runs-dir."
    )
    with exclusive(folders.runs / SWEEP_FOLDER / "lock", busy=busy):
        skipped = ("finished",) if retry else ("finished", "failed")
        before = [run_status(run, folders) for run in runs]
        results = {status.name: status for status in before if status.state in skipped}
        to_do = [RunTask(run, folders, device) for run in runs if run.name not in results]
        expected = ""
        if measure:
            planned = [task.run for task in to_do]
            estimates = estimate_runs(planned, folders, device, Stoppable(progress, stop))
            expected = total_time(estimates.values(), workers.count)
        LOGGER.info(f"{pluralize(len(runs), 'run')}, {len(to_do)} to do{expected}")
        for run_task in to_do:
            (folders.runs / run_task.name / FAILURE_NAME).unlink(missing_ok=True)
        baselines = baseline_tasks(runs, folders)
        rows: dict[str, Rows] = {}
        tasks: list[RunTask | ScoreTask] = [*to_do, *baselines]
        done = 0
        with progress.bar("runs", unit="run", total=len(to_do)) as bar:
            for task, result, error in workers.run(tasks, stop=stop, grace_seconds=GRACE_SECONDS):
                if isinstance(task, RunTask):
                    # A lost process is not recorded as a failure: the next sweep resumes the run.
                    status = RunStatus(task.name, "failed", str(error)) if error else result
                    results[task.name] = status
                    done += 1
                    text = (
                        f"finished in {format_duration(status.seconds)}"
                        if status.state == "finished"
                        else status.detail
                    )
                    LOGGER.info(f"[{done} of {len(to_do)}] {task.name}: {text}")
                    bar.advance(latest=task.name)
                elif error is None:
                    rows[task.name] = result
                else:
                    LOGGER.info(f"{task.name}: left out of the table ({error})")
    by_dataset: dict[str, list[Rows]] = {}
    for baseline in baselines:
        if baseline.name in rows:
            by_dataset.setdefault(baseline.reader.manifest.dataset, []).append(rows[baseline.name])
    return SweepResult([results[run.name] for run in runs], by_dataset)


def baseline_tasks(runs: Sequence[PlannedRun], folders: Folders) -> list[ScoreTask]:
    """Return the tasks that score frozen features, Time only, and the standardized inputs of the
    runs.
    """
    tasks = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        dataset_runs = [run for run in runs if run.dataset == dataset]
        scope = joint_scope([run.scope for run in dataset_runs])
        inputs = {(run.encoder_folder, f"merged/{ratio_key(run.ratio)}") for run in dataset_runs}
        names: dict[str, EmbeddingReader] = {
            dataset: TimeOnly(read_manifest(folders.features, dataset))
        }
        by_column = sorted(inputs, key=lambda pair: pair[::-1])
        for reader in baseline_readers(folders.features, dataset, by_column):
            name = f"{dataset},{reader.folder.name},{reader.column.replace('/', '-')}"
            names[name + ",standardized" * reader.standardized] = reader
        cache = folders.runs / SWEEP_FOLDER
        tasks += [
            ScoreTask(name, reader, scope, cache / f"{name}.json") for name, reader in names.items()
        ]
    return tasks


def run_status(run: PlannedRun, folders: Folders) -> RunStatus:
    """Return the status of a run; raise SweepError if the run exists with other settings."""
    folder = folders.runs / run.name
    record = read_run(folders.runs, run.name) if (folder / CONFIG_NAME).exists() else None
    if record is not None:
        recorded = (record.dataset, record.encoder_folder, record.column, record.method)
        wanted = (
            run.dataset,
            run.encoder_folder,
            f"merged/{ratio_key(run.ratio)}",
            run.config.method.name,
        )
        other = (
            [", ".join(recorded)]
            if recorded != wanted
            else differences(run.config, run_config(record))
        )
        if other:
            raise SweepError(
                f"{folder} exists with {'; '.join(other)}. Delete it, or give the grid another "
                "name or --runs-dir."
            )
    failure = folder / FAILURE_NAME
    if failure.exists():
        try:
            reason = str(read_json(failure)["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            reason = f"unknown reason; cannot read {failure}"
        return RunStatus(run.name, "failed", reason)
    if record is None:
        return RunStatus(run.name, "to train")
    models = (False, True) if run.untrained else (False,)
    # The model does not exist yet, or is damaged, which training reports.
    with suppress(CacheError):
        if all(
            finished_rows(run, folders, untrained=untrained) is not None for untrained in models
        ):
            return RunStatus(run.name, "finished")
    summary = summarize_run(record)
    detail = "trained, not scored" if summary.state == "finished" else summary.description
    return RunStatus(run.name, "to resume", detail)


def run_scores(
    run: PlannedRun, folders: Folders, *, untrained: bool = False
) -> tuple[Path, RunEmbeddings]:
    """Return the path of a run's score file and the reader of the embeddings to score."""
    path = folders.runs / run.name / (UNTRAINED_NAME if untrained else SCORES_NAME)
    return path, RunEmbeddings(folders.runs, folders.features, run.name, untrained=untrained)


def finished_rows(run: PlannedRun, folders: Folders, *, untrained: bool = False) -> Rows | None:
    """Return the scores of a run; None if they are missing or outdated."""
    path, reader = run_scores(run, folders, untrained=untrained)
    return cached_rows(path, reader, run.scope)
