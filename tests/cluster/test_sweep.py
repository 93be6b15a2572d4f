"""Sweeps of tiny runs in this process: what is trained, skipped, resumed, scored and tabulated."""

import json
import shutil

import pytest

from byov.cache.atomic import exclusive
from byov.cache.runs import read_progress, read_run
from byov.cluster.grids import parse_grid, plan_runs
from byov.cluster.run_task import FAILURE_NAME, SCORES_NAME, Folders, RunStatus
from byov.cluster.sweep import run_status, sweep
from byov.cluster.sweep_tables import row_groups, sweep_results
from byov.errors import Interrupted, SweepError

NAMES = ["toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"]
TRIMMED = {"tasks": ["retrieval", "tau"], "protocol": "both", "untrained": False}
QUICK = {"tasks": ["retrieval"], "protocol": "standard", "untrained": False}
SEEDS = {"seed": [0, 1], "evaluation": TRIMMED}


@pytest.fixture
def run(folders, make_grid, inline_worker):
    """run(worker, **grid): the planned runs of a grid of tiny runs, and the result of their sweep."""

    def run(worker=None, *, retry=False, stop=lambda: False, evaluation=QUICK, **settings):
        runs = plan_runs([make_grid(evaluation=evaluation, **settings)], folders.features)
        worker = worker or inline_worker()
        return runs, sweep(runs, folders, [worker], retry=retry, stop=stop, device="cpu")

    return run


def states(result):
    return [status.state for status in result.runs]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, make_grid, inline_worker, make_cache):
    """Folders of a finished sweep of two seeds; do not change them."""
    root = tmp_path_factory.mktemp("uninterrupted")
    make_cache(root / "features")
    folders = Folders(root / "features", root / "runs")
    runs = plan_runs([make_grid(**SEEDS)], folders.features)
    assert states(sweep(runs, folders, [inline_worker()], device="cpu")) == ["finished"] * 2
    return folders


@pytest.fixture
def finished(uninterrupted, folders):
    """A copy of the finished runs."""
    shutil.copytree(uninterrupted.runs, folders.runs)


def test_runs_are_complete_and_scored(uninterrupted):
    for name in NAMES:
        files = {path.name for path in (uninterrupted.runs / name).iterdir()}
        assert {"config.json", "model.safetensors", "embeddings", SCORES_NAME} <= files
        assert read_progress(read_run(uninterrupted.runs, name)).state == "finished"


@pytest.mark.usefixtures("finished")
def test_finished_runs_are_not_touched(run, folders, inline_worker):
    def times():
        return {path: path.stat().st_mtime_ns for path in folders.runs.rglob("*") if path.name != "lock"}

    before, worker = times(), inline_worker()
    _, result = run(worker, **SEEDS)
    assert states(result) == ["finished"] * 2
    assert not set(NAMES) & set(worker.done)
    assert times() == before


def test_a_diverged_run_fails_alone_and_is_retried_on_request(run, folders, inline_worker):
    first, again, retry = inline_worker(), inline_worker(), inline_worker()
    _, result = run(first, lr=[1e30, 1e-3])
    bad, good = result.runs
    assert (bad.state, good.state) == ("failed", "finished")
    assert (folders.runs / bad.name / FAILURE_NAME).exists()
    _, result = run(again, lr=[1e30, 1e-3])
    assert result.runs[0] == bad
    assert bad.name not in again.done
    _, result = run(retry, retry=True, lr=[1e30, 1e-3])
    assert bad.name in retry.done
    assert result.runs[0].detail == bad.detail


def test_a_run_that_cannot_start_leaves_its_name_free(folders, inline_worker):
    common = {"dataset": "toy", "name": "tiny", "latent": 8, "frames": 6, "epochs": 2, "evaluation": QUICK}
    grid = parse_grid(common | {"method": "tcn", "tcn": ["multi", "single"]}, "grid.toml")
    result = sweep(plan_runs([grid], folders.features), folders, [inline_worker()], device="cpu")
    assert states(result) == ["failed", "finished"]  # the cache has no synchronized pairs
    assert "--tcn unpaired" in result.runs[0].detail
    assert [path.name for path in (folders.runs / result.runs[0].name).iterdir()] == [FAILURE_NAME]


# Stops during training, and during embedding or in the second run.
@pytest.mark.parametrize("calls", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_resumed_sweep_equals_an_uninterrupted_one(run, uninterrupted, folders, contents, inline_worker, calls):
    remaining = iter(range(calls))
    worker = inline_worker(lambda: next(remaining, None) is None)
    with pytest.raises(Interrupted):
        run(worker, stop=lambda: worker.stopped, **SEEDS)
    assert contents(folders.runs) != contents(uninterrupted.runs)
    _, result = run(**SEEDS)
    assert states(result) == ["finished"] * 2
    assert contents(folders.runs) == contents(uninterrupted.runs)


@pytest.mark.usefixtures("finished")
def test_a_run_with_other_settings_is_refused(folders, make_grid):
    runs = plan_runs([make_grid(epochs=4)], folders.features)
    with pytest.raises(SweepError, match=r"tiny-s0 exists with epochs 3, not 4"):
        [run_status(run, folders) for run in runs]


def test_a_second_sweep_in_the_same_folder_is_refused(run, folders):
    with exclusive(folders.runs / ".sweep" / "lock"), pytest.raises(SweepError, match="another sweep uses this folder"):
        run()


def test_a_run_that_another_process_trains_fails_without_retry(run, folders, monkeypatch):
    monkeypatch.setattr("byov.cluster.run_task.LOCK_SECONDS", 0.0)
    with exclusive(folders.runs / NAMES[0] / ".lock"):
        _, result = run()
    assert "another process is training this run" in result.runs[0].detail
    _, result = run()
    assert states(result) == ["finished"]


@pytest.mark.usefixtures("finished")
def test_scores_are_recomputed_when_damaged_or_of_other_inputs(run, folders, inline_worker):
    scores = folders.runs / NAMES[0] / SCORES_NAME
    before = scores.read_bytes()
    scores.write_bytes(before.replace(b'"value": 0.', b'"value": 0.1', 1))
    run(**SEEDS)
    assert scores.read_bytes() == before
    fewer_tasks, other_split = inline_worker(), inline_worker()
    run(fewer_tasks)
    run(other_split, evaluation=QUICK | {"split": "val"})
    assert [NAMES[0] in worker.done for worker in (fewer_tasks, other_split)] == [False, True]
    assert scores.read_bytes() != before


def test_tables_have_means_over_seeds_and_baselines(run, folders):
    runs, result = run(seed=[0, 1], mask_self=[0.4, 0.6], evaluation=QUICK | {"untrained": True})
    ((results, document),) = sweep_results(runs, result, folders)
    rows = results.rows["standard"]
    assert [row.name for row in rows] == [
        "Random features (tiny), merged 1.0",
        "Random features (tiny), merged 0.3",
        "Random features (tiny), merged 0.3, standardized",
        "Time only",
        "Untrained: BYOV, paper (tiny, frozen), mask self 0.4, and 1 more with the same initialization",
        "BYOV, paper (tiny, frozen), mask self 0.4",
        "BYOV, paper (tiny, frozen), mask self 0.6",
    ]
    group = row_groups(runs, result, folders)[0]
    values = [rows["standard"].value("retrieval/map@10/regular") for rows in group.trained]
    assert len(values) == 2
    assert rows[-2].value("retrieval/map@10/regular") == pytest.approx(sum(values) / 2)
    assert len(document["protocols"]["standard"]["rows"]) == len(rows) + 4
    json.dumps(document)
    result.runs[1] = RunStatus(runs[1].name, "failed", "lost")
    assert ", 1 of 2 runs" in sweep_results(runs, result, folders)[0][0].rows["standard"][-1].name
