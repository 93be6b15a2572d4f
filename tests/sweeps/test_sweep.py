"""Tests of sweeps in this process: training, skipping, resuming, scoring and tables of tiny
runs.
"""

import json
import shutil
from dataclasses import asdict

import pytest
from tests.factories import write_features
from tests.sweeps.tiny_sweeps import (
    NAMES,
    QUICK,
    TINY,
    InlineWorkers,
    contents,
    make_folders,
    states,
    sweep_inline,
)

from byov.cache.atomic import exclusive
from byov.cache.digests import read_sealed_json, seal_json
from byov.cache.hdf5 import read_array
from byov.cache.runs import read_run, summarize_run
from byov.errors import Interrupted, SweepError
from byov.evaluate.compare import score
from byov.evaluate.readers import RunEmbeddings
from byov.sweeps.grids import parse_grid, plan_runs
from byov.sweeps.sweep import FAILURE_NAME, SCORES_NAME, RunStatus, run_status
from byov.sweeps.sweep_tables import row_groups, sweep_results
from byov.train.runs import Execution, embed_run

SEEDS = {
    "seed": [0, 1],
    "evaluation": {"tasks": ["retrieval", "tau"], "protocol": "both", "untrained": False},
}


def make_grid(**settings):
    return parse_grid(TINY | {"evaluation": QUICK} | settings, "grid.toml")


@pytest.fixture
def run(folders):
    """Return a function that sweeps a grid of tiny runs and returns the planned runs and the
    result.
    """

    def run(workers=None, *, retry=False, stop=lambda: False, **settings):
        return sweep_inline([make_grid(**settings)], folders, workers, retry=retry, stop=stop)

    return run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Folders of a finished sweep with two seeds; tests must not change them."""
    folders = make_folders(tmp_path_factory.mktemp("uninterrupted"))
    _, result = sweep_inline([make_grid(**SEEDS)], folders)
    assert states(result) == ["finished"] * 2
    return folders


@pytest.fixture
def finished(uninterrupted, folders):
    """Copy the finished runs to `folders`."""
    shutil.copytree(uninterrupted.runs, folders.runs)


@pytest.mark.usefixtures("finished")
def test_finished_runs_are_complete_and_not_touched_again(run, folders):
    def times():
        return {
            path: path.stat().st_mtime_ns for path in folders.runs.rglob("*") if path.name != "lock"
        }

    before = times()
    workers = InlineWorkers()
    _, result = run(workers, **SEEDS)
    assert states(result) == ["finished"] * 2
    assert not set(NAMES) & set(workers.done)
    assert times() == before
    for name in NAMES:
        files = {path.name for path in (folders.runs / name).iterdir()}
        assert {"config.json", "model.safetensors", "embeddings", SCORES_NAME} <= files
        assert summarize_run(read_run(folders.runs, name)).state == "finished"


@pytest.mark.usefixtures("finished")
def test_scores_of_an_uninstalled_task_are_ignored(run, folders):
    path = folders.runs / NAMES[0] / SCORES_NAME
    document = read_sealed_json(path.read_bytes())
    scores = document["rows"]["standard"]["scores"]
    scores["gone/step"] = next(iter(scores.values()))
    path.write_bytes(seal_json(document))
    before = path.stat().st_mtime_ns
    _, result = run(**SEEDS)
    assert (states(result), path.stat().st_mtime_ns) == (["finished"] * 2, before)


def test_a_diverged_run_fails_alone_and_is_retried_on_request(run, folders):
    _, result = run(lr=[1e30, 1e-3])
    bad, good = result.runs
    assert (bad.state, good.state) == ("failed", "finished")
    assert (folders.runs / bad.name / FAILURE_NAME).exists()
    for retry in (False, True):
        workers = InlineWorkers()
        _, result = run(workers, retry=retry, lr=[1e30, 1e-3])
        assert (bad.name in workers.done) is retry
        assert (result.runs[0].state, result.runs[0].detail) == ("failed", bad.detail)


def test_a_run_that_cannot_start_leaves_its_name_free(folders):
    common = {
        "dataset": "toy",
        "name": "tiny",
        "latent": 8,
        "frames": 6,
        "epochs": 2,
        "evaluation": QUICK,
    }
    grid = parse_grid(common | {"method": "tcn", "tcn": ["multi", "single"]}, "grid.toml")
    _, result = sweep_inline([grid], folders)
    assert states(result) == ["failed", "finished"]  # the cache has no synchronized pairs
    assert "--tcn unpaired" in result.runs[0].detail
    assert [path.name for path in (folders.runs / result.runs[0].name).iterdir()] == [FAILURE_NAME]


# Interrupt the sweep during training, or later, during embedding or in the second run.
@pytest.mark.parametrize("calls", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_resumed_sweep_equals_an_uninterrupted_one(run, uninterrupted, folders, calls):
    remaining = iter(range(calls))
    workers = InlineWorkers(lambda: next(remaining, None) is None)
    with pytest.raises(Interrupted):
        run(workers, stop=lambda: workers.stopped, **SEEDS)
    assert contents(folders.runs) != contents(uninterrupted.runs)
    _, result = run(**SEEDS)
    assert states(result) == ["finished"] * 2
    assert contents(folders.runs) == contents(uninterrupted.runs)


def test_a_run_of_so_many_steps_is_resumed_and_then_finished(folders):
    grid = parse_grid(
        {key: value for key, value in TINY.items() if key != "epochs"} | {"steps": 5}, "grid.toml"
    )
    remaining = iter(range(2))
    workers = InlineWorkers(lambda: next(remaining, None) is None)
    with pytest.raises(Interrupted):
        sweep_inline([grid], folders, workers, stop=lambda: workers.stopped)
    for _ in range(2):
        (planned,), result = sweep_inline([grid], folders)
        assert states(result) == ["finished"]
    assert summarize_run(read_run(folders.runs, planned.name)).epochs == 2  # 4 steps per epoch


@pytest.mark.usefixtures("finished")
def test_a_run_with_other_settings_is_refused(folders):
    (planned,) = plan_runs([make_grid(epochs=4)], folders.features)
    with pytest.raises(SweepError, match=r"tiny-s0 exists with epochs 3, not 4"):
        run_status(planned, folders)


def test_a_second_sweep_in_the_same_folder_is_refused(run, folders):
    with (
        exclusive(folders.runs / ".sweep" / "lock"),
        pytest.raises(SweepError, match="another sweep uses this folder"),
    ):
        run()


def test_a_run_that_another_process_trains_fails_without_retry(run, folders, monkeypatch):
    monkeypatch.setattr("byov.sweeps.sweep.LOCK_SECONDS", 0.0)
    with exclusive(folders.runs / NAMES[0] / ".lock"):
        _, result = run()
    assert "another process is training this run" in result.runs[0].detail
    _, result = run()
    assert states(result) == ["finished"]


@pytest.mark.usefixtures("finished")
def test_scores_are_recomputed_when_damaged_or_of_other_inputs(run, folders):
    scores = folders.runs / NAMES[0] / SCORES_NAME
    before = scores.read_bytes()
    scores.write_bytes(before.replace(b'"value": 0.', b'"value": 0.1', 1))
    run(**SEEDS)
    assert scores.read_bytes() == before
    fewer_tasks = InlineWorkers()
    other_split = InlineWorkers()
    run(fewer_tasks)
    run(other_split, evaluation=QUICK | {"split": "val"})
    assert [NAMES[0] in workers.done for workers in (fewer_tasks, other_split)] == [False, True]
    assert scores.read_bytes() != before


@pytest.mark.usefixtures("finished")
def test_scores_follow_features_and_embeddings(run, folders):
    def scores():
        return json.loads((folders.runs / NAMES[0] / SCORES_NAME).read_bytes())["rows"]["standard"][
            "scores"
        ]

    def replace_features(video):
        path = folders.features / "toy" / "random--tiny" / "ego" / f"{video}.h5"
        write_features(
            path,
            {key: read_array(path, f"merged/{key}")[::-1] for key in (0.3, 1.0)},
            encoder="random/tiny",
        )

    before = scores()
    replace_features("ego3")  # a test video
    _, result = run(**SEEDS)
    assert states(result) == ["failed"] * 2
    assert f"byov-train --run {NAMES[0]} --embed-only" in result.runs[0].detail
    for name in NAMES:
        embed_run(name, Execution("cpu", features_dir=folders.features, runs_dir=folders.runs))
    runs, result = run(**SEEDS)
    assert states(result) == ["finished"] * 2
    assert before != scores()
    row = score(RunEmbeddings(folders.runs, folders.features, NAMES[0]), runs[0].scope)["standard"]
    assert scores() == json.loads(
        json.dumps({name: asdict(score) for name, score in row.scores.items()})
    )
    replace_features("ego2")  # a val video
    _, result = run(**SEEDS)
    assert states(result) == ["failed"] * 2
    assert "not trained on" in result.runs[0].detail


def test_tables_have_means_over_seeds_and_baselines(run, folders):
    runs, result = run(seed=[0, 1], mask_self=[0.4, 0.6], evaluation=QUICK | {"untrained": True})
    (results,) = sweep_results(runs, result, folders)
    document = results.to_dict()
    rows = results.rows["standard"]
    assert [row.name for row in rows] == [
        "Random features (tiny), merged 1.0",
        "Random features (tiny), merged 0.3",
        "Random features (tiny), merged 0.3, standardized",
        "Time only",
        "Untrained: BYOV, paper (tiny, frozen), mask self 0.4, BYOV, paper (tiny, frozen), mask "
        "self 0.6",
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
    assert ", 1 of 2 runs" in sweep_results(runs, result, folders)[0].rows["standard"][-1].name
