"""Sweeps of tiny runs: what is trained, skipped, resumed and reported, and that how it is done leaves no trace."""

import json
import shutil

import pytest

from byov.cache.atomic import exclusive
from byov.cache.runs import read_progress, read_run
from byov.cluster.grids import parse_grid
from byov.cluster.run_work import FAILURE_NAME, Folders, RunResult
from byov.cluster.score_files import SCORES_NAME
from byov.cluster.sweep import standings, sweep, swept_runs
from byov.cluster.sweep_tables import row_groups, sweep_results, with_single_runs
from byov.errors import Interrupted, SweepError

TRIMMED = {"tasks": ["retrieval", "tau"], "protocol": "both", "untrained": False}
QUICK = {"tasks": ["retrieval"], "protocol": "standard", "untrained": False}


@pytest.fixture
def run(folders, make_grid, here):
    """run(how, **grid): a sweep of tiny runs, one after another, and what came of it."""

    def run(workers=None, *, how=None, evaluation=QUICK, **settings):
        swept = swept_runs([make_grid(evaluation=evaluation, **settings)], folders.features)
        return swept, sweep(swept, folders, workers or here(), device="cpu", **(how or {}))

    return run


def states(result):
    return [one.state for one in result.runs]


class StopAt:
    """Says stop from the n-th time on that it is asked."""

    def __init__(self, count):
        self._left = count

    def __call__(self):
        self._left -= 1
        return self._left < 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_grid, here, make_cache):
    """Folders of a sweep of two seeds that was never stopped; only to look at."""
    root = tmp_path_factory.mktemp("whole")
    make_cache(root / "features")
    folders = Folders(root / "features", root / "runs")
    swept = swept_runs([make_grid(seed=[0, 1], evaluation=TRIMMED)], folders.features)
    assert states(sweep(swept, folders, here(), device="cpu")) == ["finished"] * 2
    return folders


@pytest.fixture
def finished(whole, folders):
    """A copy of it where `run` looks."""
    shutil.copytree(whole.runs, folders.runs)
    return {"seed": [0, 1], "evaluation": TRIMMED}


def test_runs_are_ordinary_ones_with_their_scores(whole):
    for name in ("toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"):
        there = {path.name for path in (whole.runs / name).iterdir()}
        assert {"config.json", "model.safetensors", "embeddings", SCORES_NAME} <= there
        assert read_progress(read_run(whole.runs, name)).state == "finished"


def test_what_is_finished_is_not_touched(run, finished, folders, contents, here):
    before = contents(folders.runs)
    times = {path: path.stat().st_mtime_ns for path in folders.runs.rglob("*") if path.name != "lock"}
    again = here()
    _, result = run(again, **finished)
    assert states(result) == ["finished"] * 2
    assert not {one.name for one in result.runs} & set(again.done)
    assert contents(folders.runs) == before
    assert times == {path: path.stat().st_mtime_ns for path in folders.runs.rglob("*") if path.name != "lock"}


def test_one_that_diverges_does_not_stop_the_others_and_is_not_tried_again(run, folders, here):
    first, again, asked = here(), here(), here()
    _, result = run(first, lr=[1e30, 1e-3])
    bad, good = result.runs
    assert (bad.state, good.state) == ("failed", "finished")
    assert "no longer finite" in bad.reason or "became" in bad.reason
    assert bad.name in first.done
    _, later = run(again, lr=[1e30, 1e-3])
    assert later.runs[0] == bad
    assert bad.name not in again.done
    _, retried = run(asked, how={"retry": True}, lr=[1e30, 1e-3])
    assert bad.name in asked.done
    assert retried.runs[0].reason == bad.reason
    assert (folders.runs / bad.name / FAILURE_NAME).exists()


def test_one_that_cannot_begin_leaves_its_name_free(folders, here):
    """There are no pairs in the cache."""
    common = {"dataset": "toy", "name": "tiny", "latent": 8, "frames": 6, "epochs": 2, "evaluation": QUICK}
    grid = parse_grid(common | {"method": "tcn", "tcn": ["multi", "single"]}, "grid.toml")
    result = sweep(swept_runs([grid], folders.features), folders, here(), device="cpu")
    assert [one.state for one in result.runs] == ["failed", "finished"]
    assert "--tcn unpaired does without" in result.runs[0].reason
    assert [path.name for path in (folders.runs / result.runs[0].name).iterdir()] == [FAILURE_NAME]


@pytest.mark.parametrize(
    "asked", [2, pytest.param(20, marks=pytest.mark.slow)]
)  # while it trains, and while it embeds or in the second run
def test_stopped_and_gone_on_with_it_ends_as_if_never_stopped(run, whole, folders, contents, here, asked):
    grid = {"seed": [0, 1], "evaluation": TRIMMED}
    workers = here(StopAt(asked))
    with pytest.raises(Interrupted, match="goes on"):
        run(workers, how={"stop": lambda: workers.told_to_stop}, **grid)
    assert contents(folders.runs) != contents(whole.runs)
    _, result = run(**grid)
    assert states(result) == ["finished"] * 2
    assert contents(folders.runs) == contents(whole.runs)


@pytest.mark.usefixtures("finished")
def test_a_run_that_is_there_with_other_settings_is_one_line(folders, make_grid):
    other = swept_runs([make_grid(epochs=4)], folders.features)
    with pytest.raises(
        SweepError, match=r"tiny-s0 is there with epochs 3, not 4\. Delete it, or give the grid another"
    ):
        standings(other, folders)


def test_two_sweeps_in_one_folder_are_refused(run, folders):
    with exclusive(folders.runs / ".sweep" / "lock"), pytest.raises(SweepError, match="another sweep is at work here"):
        run()


def test_a_run_that_another_process_trains_is_left_alone(run, folders, monkeypatch):
    monkeypatch.setattr("byov.cluster.run_work.PATIENCE_SECONDS", 0.0)
    with exclusive(folders.runs / "toy-paper-r0.3-tiny-s0" / ".lock"):
        _, result = run()
    assert "another process is at work on this run" in result.runs[0].reason
    _, result = run()  # no --retry needed
    assert states(result) == ["finished"]


def test_scores_are_measured_again_when_what_they_depend_on_has_changed(run, finished, folders, here):
    name = "toy-paper-r0.3-tiny-s0"
    scores = folders.runs / name / SCORES_NAME
    before = scores.read_bytes()
    scores.write_bytes(before.replace(b'"value": 0.', b'"value": 0.1', 1))  # damaged
    run(**finished)
    assert scores.read_bytes() == before
    fewer, others = here(), here()
    run(fewer)  # of tasks that it has the scores of
    run(others, evaluation=QUICK | {"split": "val"})
    assert [name in workers.done for workers in (fewer, others)] == [False, True]
    assert scores.read_bytes() != before


def test_the_table_has_the_mean_over_seeds_beside_what_needs_no_training(run, folders):
    swept, result = run(seed=[0, 1], mask_self=[0.4, 0.6], evaluation=QUICK | {"untrained": True})
    (comparison,) = sweep_results(swept, result, folders)
    rows = comparison.rows["standard"]
    assert [row.name for row in rows] == [
        "Random features (tiny), merged 1.0",
        "Random features (tiny), merged 0.3",
        "Random features (tiny), merged 0.3, standardized",
        "Time only",
        "Untrained: BYOV, paper (tiny, frozen), mask self 0.4, and 1 more that begin alike",
        "BYOV, paper (tiny, frozen), mask self 0.4",
        "BYOV, paper (tiny, frozen), mask self 0.6",
    ]
    group = row_groups(swept, result, folders)[0]
    values = [one["standard"].value("retrieval/map@10/regular") for one in group.trained]
    assert len(values) == 2
    assert rows[-2].value("retrieval/map@10/regular") == pytest.approx(sum(values) / 2)
    document = with_single_runs(comparison, swept, result, folders)
    assert len(document["protocols"]["standard"]["rows"]) == len(rows) + 4
    json.dumps(document)


def test_a_row_says_how_many_of_its_runs_there_are(run, finished, folders):
    swept, result = run(**finished)
    result.runs[1] = RunResult(swept[1].run.name, "failed", "lost")
    assert sweep_results(swept, result, folders)[0].rows["standard"][-1].name.endswith(", 1 of 2 runs")
