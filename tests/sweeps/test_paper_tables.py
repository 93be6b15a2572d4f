"""Tests of the paper's experiments: grids, choice of datasets, and tables."""

import re

import pytest
from tests.sweeps.tiny_sweeps import make_cache, sweep_inline

from byov.cli.sweep import main
from byov.errors import SweepError
from byov.evaluate.published import published_rows
from byov.sweeps import paper_tables
from byov.sweeps.grids import Folders, plan_runs
from byov.sweeps.paper_tables import (
    EXPERIMENTS,
    PAPER_TABLES,
    PaperChoice,
    ScoreCurve,
    paper_results,
    plan_paper,
    write_score_curves,
)

CLIP = "openai/clip-vit-base-patch16"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
ABLATIONS = ("components", "stm-ratio", "mask-self", "mask-cross", "latent")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Cache with CLIP features of Break Eggs and Pour Milk, and another dataset with two other
    encoders.
    """
    root = tmp_path_factory.mktemp("paper") / "features"
    make_cache(root, "break_eggs", CLIP, ratios=RATIOS)
    make_cache(root, "pour_milk", CLIP)
    make_cache(root, "mine", "random/tiny", ratios=RATIOS)
    make_cache(root, "mine", "random/other")
    return root


def planned(features, *names, **choice):
    plan = plan_paper(names, features, PaperChoice(**choice))
    runs = plan_runs(
        [grid for grids in plan.values() for grid in grids], features, allow_missing=True
    )
    return [run for run in runs if not run.missing]


def titles(runs, dataset="break_eggs"):
    return list(dict.fromkeys(run.title for run in runs if run.dataset == dataset))


def test_every_experiment_belongs_to_a_table():
    files = {file for table in PAPER_TABLES.values() for file in table.files}
    assert {path.stem for path in EXPERIMENTS.glob("*.toml")} == {"benchmark", *files}


def test_table_1_has_every_learned_row(features):
    runs = planned(features, "table-1")
    unpaired = [
        "TCN (single-view)",
        "CARL",
        "TCC",
        "GTA",
        "AE2 alignment loss, no object encoder",
        "BYOV",
    ]
    assert set(titles(runs)) == {"ActorObserverNet", "TCN (multi-view)", *unpaired}
    assert titles(runs, "pour_milk") == unpaired
    assert {run.dataset for run in runs} == {"break_eggs", "pour_milk"}
    assert len(runs) == 5 * (8 + 6)


@pytest.mark.parametrize("table", ABLATIONS)
def test_ablations_have_the_rows_of_the_paper(features, table):
    runs = planned(features, table)
    assert titles(runs) == [row.name for row in published_rows("break_eggs", table)]
    assert published_rows("pour_milk", table) == []
    default = next(
        run
        for run in planned(features, "table-1")
        if run.title == "BYOV" and run.dataset == "break_eggs"
    )
    assert default.name in {run.name for run in runs}  # shared with Table 1, so trained only once


def test_ablations_change_the_named_setting(features):
    runs = {run.title: run for run in planned(features, *ABLATIONS, "depth", seeds=1)}
    settings = {title: run.config.method for title, run in runs.items()}
    assert (runs["STM 0.1"].ratio, runs["- Token selection"].ratio) == (0.1, 1.0)
    assert settings["- Causal mask"].causal == "none"
    assert (settings["- MSM"].self_view, settings["- MSM"].cross_view) == (False, True)
    assert (settings["- MCM"].self_view, settings["- MCM"].cross_view) == (True, False)
    assert (settings["MSM 0.1"].mask_self, settings["MCM 0.0"].mask_cross) == (0.1, 0.0)
    assert (settings["latent 512"].latent, settings["3 blocks"].depth) == (512, 3)


def test_a_dry_run_names_missing_features_once(features, call, tmp_path):
    options = ("--seeds", 1, "--features-dir", features, "--runs-dir", tmp_path)
    ran = call(
        main,
        "byov-sweep",
        "paper",
        "--tables",
        "backbones,charades-ego",
        "--small",
        "--dry-run",
        *options,
    )
    assert ran.code == 0
    assert ran.err.count(f"byov-extract --dataset charades_ego --encoder {CLIP}") == 1
    assert ran.err.count("byov-extract --dataset break_eggs --encoder microsoft/resnet-50") == 1
    missing = ran.err.partition("features are missing: ")[2]
    assert "microsoft/resnet-50 of break_eggs" in missing
    assert "charades_ego" in missing
    assert re.search(r"\d+ runs: \d+ cannot run, \d+ to train; expected time: about ", ran.err)


def test_another_dataset_replaces_those_of_the_paper(features):
    runs = planned(
        features,
        "table-1",
        "latent",
        datasets=("mine",),
        encoder="random/tiny",
        seeds=2,
        small=True,
    )
    assert {(run.dataset, run.encoder_folder) for run in runs} == {("mine", "random--tiny")}
    byov = [run for run in runs if run.config.method.name == "byov"]
    # The setting that the table varies.
    assert {run.config.method.latent for run in byov} == {64, 128, 256, 512}
    assert {run.config.method.depth for run in byov} == {2}
    assert {run.config.seed for run in runs} == {0, 1}
    assert "mine-paper-random--tiny-r0.3-small-s0" in {run.name for run in runs}
    only = planned(features, "table-1", datasets=("pour_milk",))
    assert {run.encoder_folder for run in only} == {"openai--clip-vit-base-patch16"}


def test_an_added_grid_joins_the_tables_that_compare_methods(features, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'ratio = 0.3\n[[runs]]\ntitle = "Ours"\nmethod = "timeline"\n'
        '[[runs]]\ntitle = "Milk only"\ndataset = "pour_milk"\nlr = 1e-3\nseed = [7]\n'
        '[[runs]]\ntitle = "Elsewhere"\ndataset = "mine"\n'
    )
    runs = planned(features, "table-1", added=(own,))
    assert titles(runs)[-1] == "Ours"
    assert titles(runs, "pour_milk")[-2:] == ["Ours", "Milk only"]
    ours = [run for run in runs if run.title == "Ours" and run.dataset == "break_eggs"]
    assert [run.config.seed for run in ours] == [0, 1, 2, 3, 4]
    assert {run.encoder for run in ours} == {CLIP}
    assert {(run.scope.tasks, run.scope.protocols) for run in ours} == {
        (runs[0].scope.tasks, runs[0].scope.protocols)
    }
    assert [run.config.seed for run in runs if run.title == "Milk only"] == [7]
    assert "Ours" not in titles(planned(features, "latent", added=(own,)))
    few = planned(features, "table-1", added=(own,), datasets=("pour_milk",), seeds=1)
    assert [run.config.seed for run in few if run.title == "Milk only"] == [0]


def test_invalid_choices_are_refused(features):
    with pytest.raises(SweepError, match="no table 'table-2'; choose from table-1, components"):
        plan_paper(["table-2"], features, PaperChoice())
    with pytest.raises(SweepError, match=r"--encoder random--other \| random--tiny"):
        plan_paper([], features, PaperChoice(datasets=("mine",)))


@pytest.mark.slow
def test_a_table_has_our_rows_and_the_published_ones(features, tmp_path, monkeypatch):
    tiny = {"latent": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "frames": 6, "epochs": 1}
    monkeypatch.setitem(paper_tables.SMALL_SETTINGS, "byov", tiny)
    folders = Folders(features, tmp_path / "runs")
    plan = plan_paper(["components"], features, PaperChoice(seeds=1, small=True))
    _, result = sweep_inline(plan["components"], folders)
    (drawn,) = paper_results(plan, result, folders)
    table = drawn.table
    assert [column.score for column in table.columns] == [
        "classification/mean",
        "retrieval/map@10/mean",
        "progression/val",
        "kendalls_tau/all",
    ]
    names = ["BYOV", "- Token selection", "- Causal mask", "- MSM", "- MCM"]
    assert [row.name for row, _ in table.measured] == [f"{name} (small)" for name in names]
    assert "small models" in table.title
    assert [(row.name, cells[0].text) for row, cells in table.published] == list(
        zip(names, ["73.53", "71.84", "72.29", "62.12", "57.43"], strict=True)
    )
    scores = drawn.document["rows"][0]["scores"]["classification"]
    setting_scores = [scores[setting] for setting in ("regular", "ego2exo", "exo2ego")]
    assert scores["mean"] == pytest.approx(sum(setting_scores) / 3)


def test_figures_are_reproducible(tmp_path):
    ours = ScoreCurve("Regular", (0.1, 0.3), (50.0, 60.0), (1.0, 2.0))
    theirs = ScoreCurve("Regular", (0.1, 0.3), (41.45, 74.3), (0.0, 0.0), published=True)
    panels = {"F1 (%)": [ours, theirs], "map@10 (%)": [ours]}
    first = write_score_curves(panels, "token selection ratio", tmp_path / "a", "stm")
    second = write_score_curves(panels, "token selection ratio", tmp_path / "b", "stm")
    assert [path.name for path in first] == ["stm.png", "stm.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
