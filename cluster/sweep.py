"""Many runs: which of them are done, and the others through the workers, until all are accounted for."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from byov.cache.atomic import exclusive
from byov.cache.layout import ratio_key
from byov.cache.runs import CONFIG_NAME, RunRecord, read_progress, read_run
from byov.cluster.grids import ALL, EvaluationChoice, PlannedRun, RunGrid, planned_runs
from byov.cluster.run_work import FAILURE_NAME, BaselineWork, Folders, RunResult, RunWork, read_failure, write_failure
from byov.cluster.score_files import SWEEP_FOLDER, Rows, kept_rows, run_scores
from byov.cluster.worker_process import Answer
from byov.cluster.workers import Workers
from byov.device import Device
from byov.errors import CacheError, Interrupted, SweepError
from byov.evaluate.embeddings import RunEmbeddings, read_manifest
from byov.evaluate.evaluation import Scope, frozen_columns, require_labels, scope_of_all
from byov.evaluate.protocols import PROTOCOLS, segments
from byov.evaluate.tasks import TASKS, EvaluationOptions
from byov.progress import Stop, never
from byov.train.settings import differences, settings_of

LOGGER = logging.getLogger(__name__)

STEP_SECONDS = 0.2  # between two looks at the workers, and at whether to stop
GRACE_SECONDS = 60.0  # for what is under way to leave a checkpoint
LOCK_NAME = "lock"
SweptState = Literal["finished", "failed", "to resume", "to train"]


@dataclass(frozen=True)
class SweptRun:
    """A run of the sweep, and what is scored of it."""

    run: PlannedRun
    scope: Scope
    untrained: bool


@dataclass(frozen=True)
class Standing:
    """Where a run is before the sweep: its state, and a word on it."""

    swept: SweptRun
    state: SweptState
    said: str = ""

    @property
    def name(self) -> str:
        return self.swept.run.name


@dataclass(frozen=True)
class SweepResult:
    runs: list[RunResult]  # in the order of the grid
    baselines: dict[str, list[Rows]]  # by dataset: cached features, and time alone


class Observer(Protocol):
    """Who is told how far a sweep is."""

    def begun(self, standings: Sequence[Standing], to_do: int) -> None:
        """to_do: how many runs will end."""

    def ended(self, result: RunResult) -> None: ...

    def step(self, running: Sequence[str]) -> None:
        """Some times a second, with the names of what is under way."""


class _NoObserver:
    def begun(self, standings: Sequence[Standing], to_do: int) -> None:
        pass

    def ended(self, result: RunResult) -> None:
        pass

    def step(self, running: Sequence[str]) -> None:
        pass


UNWATCHED: Observer = _NoObserver()


def swept_runs(grids: Sequence[RunGrid], features_dir: Path) -> list[SweptRun]:
    """The runs of several grids, each once; one that is in several is scored for all that they ask for."""
    found: dict[str, SweptRun] = {}
    for grid in grids:
        scopes: dict[str, Scope] = {}
        for run in planned_runs(grid, features_dir):
            if run.dataset not in scopes:
                scopes[run.dataset] = _scope(grid.evaluation, features_dir, run.dataset)
            swept = SweptRun(run, scopes[run.dataset], grid.evaluation.untrained)
            found[run.name] = _together(found.get(run.name, swept), swept)
    return list(found.values())


def standings(swept: Sequence[SweptRun], folders: Folders) -> list[Standing]:
    """Where each run is. Raises SweepError for one that is there with other settings."""
    return [_standing(one, folders) for one in swept]


@contextmanager
def sweeping(folders: Folders) -> Iterator[None]:
    """Within, no other sweep works in this folder of runs."""
    with ExitStack() as lock:
        try:
            lock.enter_context(exclusive(folders.runs / SWEEP_FOLDER / LOCK_NAME, wait=False))
        except BlockingIOError:
            raise SweepError(
                f"{folders.runs}: another sweep is at work here; wait for it, or use another --runs-dir"
            ) from None
        yield


def sweep(
    swept: Sequence[SweptRun],
    folders: Folders,
    workers: Workers,
    *,
    retry: bool = False,
    device: Device = "auto",
    observer: Observer = UNWATCHED,
    stop: Stop = never,
) -> SweepResult:
    """Bring every run to its end, and score what its table has beside it.

    retry: try runs again that have failed before. Once `stop` says so, what is under way leaves what it needs to be
    resumed, and Interrupted is raised.
    """
    with sweeping(folders):
        before = standings(swept, folders)
        results = {
            one.name: RunResult(one.name, one.state, one.said)
            for one in before
            if one.state == "finished" or (one.state == "failed" and not retry)
        }
        to_do = [one for one in before if one.name not in results]
        observer.begun(before, len(to_do))
        baselines = {work.name: work for work in baseline_work(swept, folders)}
        for one in to_do:
            (folders.run(one.name) / FAILURE_NAME).unlink(missing_ok=True)
            workers.submit(RunWork(one.swept.run, folders, one.swept.scope, one.swept.untrained, device))
        for work in baselines.values():
            workers.submit(work)
        rows: dict[str, Rows] = {}
        for answer in _answers(workers, len(to_do) + len(baselines), observer, stop):
            if answer.name in baselines:
                rows |= _baseline_rows(answer)
            else:
                results[answer.name] = _result(answer, folders)
                observer.ended(results[answer.name])
    by_dataset: dict[str, list[Rows]] = {work.dataset: [] for work in baselines.values()}
    for name, work in baselines.items():  # in their order, not in that of the answers
        by_dataset[work.dataset] += [rows[name]] if name in rows else []
    return SweepResult([results[one.name] for one in before], by_dataset)


def baseline_work(swept: Sequence[SweptRun], folders: Folders) -> list[BaselineWork]:
    """Of each dataset: the frozen features, what a run was trained on also standardized, and time alone."""
    work: list[BaselineWork] = []
    for dataset in dict.fromkeys(one.run.dataset for one in swept):
        of_dataset = [one for one in swept if one.run.dataset == dataset]
        scope = _joint_scope([one.scope for one in of_dataset])
        trained_on = {(one.run.encoder_folder, f"merged/{ratio_key(one.run.ratio)}") for one in of_dataset}
        columns = list(dict.fromkeys(column for _, column in sorted(trained_on)))
        features = [
            (*column, standardized)
            for column in frozen_columns(folders.features, dataset, columns)
            for standardized in (False, True)
            if not standardized or column in trained_on
        ]
        work += [BaselineWork(dataset, folders, scope, one) for one in (*features, None)]
    return work


def kept_run_rows(swept: SweptRun, folders: Folders, *, untrained: bool = False) -> Rows | None:
    """The scores of a run that is finished."""
    path = run_scores(folders.run(swept.run.name), untrained=untrained)
    reader = RunEmbeddings(folders.runs, folders.features, swept.run.name, untrained=untrained)
    return kept_rows(path, reader, folders.features, swept.scope)


def _answers(workers: Workers, expected: int, observer: Observer, stop: Stop) -> Iterator[Answer]:
    """So many, as they come."""
    while expected:
        for answer in workers.wait(STEP_SECONDS):
            expected -= 1
            yield answer
        observer.step(workers.running())
        if stop():
            _bring_to_rest(workers)
            raise Interrupted("the sweep is stopped; the same command goes on with it")


def _bring_to_rest(workers: Workers) -> None:
    workers.stop()
    for _ in range(int(GRACE_SECONDS / STEP_SECONDS)):
        if not workers.running():
            return
        workers.wait(STEP_SECONDS)


def _result(answer: Answer, folders: Folders) -> RunResult:
    """A process that is lost is not the run's fault: the next sweep goes on with it. An exception is."""
    if not answer.error:
        result: RunResult = answer.result
        return result
    if answer.trace:
        LOGGER.debug(answer.trace)
        write_failure(folders.run(answer.name), answer.error)
    return RunResult(answer.name, "failed", answer.error)


def _baseline_rows(answer: Answer) -> dict[str, Rows]:
    if isinstance(answer.result, dict):
        return {answer.name: answer.result}
    LOGGER.info(f"{answer.name}: left out of the table ({answer.error or answer.result})")
    return {}


def _scope(choice: EvaluationChoice, features_dir: Path, dataset: str) -> Scope:
    manifest = read_manifest(features_dir, dataset)
    usual = scope_of_all(manifest, choice.split, EvaluationOptions())
    wanted = {*choice.tasks, *(usual.tasks if ALL in choice.tasks else ())}
    require_labels(manifest, choice.split, [task for task in choice.tasks if task != ALL])
    segments(manifest, choice.split)  # there are such videos
    protocols = usual.protocols if choice.protocol == "both" else tuple(p for p in PROTOCOLS if p == choice.protocol)
    return replace(usual, tasks=tuple(task for task in TASKS if task in wanted), protocols=protocols)


def _together(one: SweptRun, other: SweptRun) -> SweptRun:
    if replace(one.run, title="") != replace(other.run, title=""):
        raise SweepError(f"two runs are called {one.run.name}; give one of the grids another name")
    return replace(one, scope=_joint_scope([one.scope, other.scope]), untrained=one.untrained or other.untrained)


def _joint_scope(scopes: Sequence[Scope]) -> Scope:
    """All tasks and protocols of scopes that are of one split."""
    if len({scope.split for scope in scopes}) > 1:
        raise SweepError("one sweep scores one split of a dataset")
    return replace(
        scopes[0],
        tasks=tuple(task for task in TASKS if any(task in scope.tasks for scope in scopes)),
        protocols=tuple(one for one in PROTOCOLS if any(one in scope.protocols for scope in scopes)),
    )


def _standing(swept: SweptRun, folders: Folders) -> Standing:
    folder = folders.run(swept.run.name)
    failure = read_failure(folder)
    if not (folder / CONFIG_NAME).exists():
        return Standing(swept, "to train") if failure is None else Standing(swept, "failed", failure)
    record = read_run(folders.runs, swept.run.name)
    _refuse_differences(swept.run, record)
    if failure is not None:
        return Standing(swept, "failed", failure)
    if _is_finished(swept, folders):
        return Standing(swept, "finished")
    progress = read_progress(record)
    return Standing(swept, "to resume", "trained, not scored" if progress.state == "finished" else progress.description)


def _is_finished(swept: SweptRun, folders: Folders) -> bool:
    wanted = (False, True) if swept.untrained else (False,)
    try:
        return all(kept_run_rows(swept, folders, untrained=untrained) is not None for untrained in wanted)
    except CacheError:  # no model yet, or one that is not the run's: training says what to do
        return False


def _refuse_differences(run: PlannedRun, record: RunRecord) -> None:
    """A run of this name must be this run."""
    ours = {"dataset": run.dataset, "encoder_folder": run.encoder_folder, "column": f"merged/{ratio_key(run.ratio)}"}
    other = [
        f"{name} {getattr(record, name)}, not {value}" for name, value in ours.items() if getattr(record, name) != value
    ]
    theirs = settings_of(record)
    if theirs.method != run.settings.method:
        other.append(f"method {theirs.method}, not {run.settings.method}")
    else:
        other += differences(run.settings, theirs)
    if other:
        raise SweepError(
            f"{record.folder} is there with {'; '.join(other)}. Delete it, or give the grid another name or --runs-dir"
        )
