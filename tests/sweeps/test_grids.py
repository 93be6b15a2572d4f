"""Tests of grids: planned runs, run names and invalid files."""

import pytest
from tests.sweeps.tiny_sweeps import make_cache

from byov.errors import SweepError
from byov.sweeps.grids import MAX_NAME_LENGTH, parse_grid, plan_runs, read_grid


@pytest.fixture
def names(folders):
    return lambda **grid: [
        run.name for run in plan_runs([parse_grid(grid, "grid.toml")], folders.features)
    ]


def test_every_combination_is_a_run(folders):
    grid = parse_grid(
        {"ratio": [0.3, 1.0], "seed": [0, 1], "method": ["byov", "tcc"], "lr": 1e-3}, "grid.toml"
    )
    runs = plan_runs([grid], folders.features)
    assert {(run.ratio, run.config.seed, run.config.method.name) for run in runs} == {
        (ratio, seed, method)
        for ratio in (0.3, 1.0)
        for seed in (0, 1)
        for method in ("byov", "tcc")
    }
    assert {run.config.optimizer.lr for run in runs} == {1e-3}
    assert len({run.name for run in runs}) == 8


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ({}, "toy-paper-r0.3-s0"),
        ({"seed": 3, "ratio": 1}, "toy-paper-r1.0-s3"),
        ({"recipe": "cycle", "causal": "none"}, "toy-cycle-r0.3-causalnone-s0"),
        ({"mask-self": 0.6, "self": True, "depth": 12}, "toy-paper-r0.3-mask-self0.6-s0"),
        ({"method": "tcn", "tcn": "unpaired"}, "toy-tcn-unpaired-r0.3-s0"),
        ({"encoder": "random/tiny"}, "toy-paper-random--tiny-r0.3-s0"),
        ({"crop": [0.5, 1.0]}, "toy-paper-r0.3-crop0.5,1.0-s0"),
        ({"size": "small", "steps": 9}, "toy-paper-small-r0.3-steps9-s0"),
    ],
)
def test_names_list_settings_that_are_not_defaults(names, grid, name):
    assert names(**grid) == [name]


def test_names_do_not_depend_on_the_rest_of_the_grid(names):
    alone = names(lr=1e-3)
    assert alone == ["toy-paper-r0.3-lr0.001-s0"]
    assert set(alone) < set(names(lr=[1e-3, 1e-4], seed=[0, 1]))
    assert set(alone) < set(names(runs=[{"lr": 1e-3}, {"method": "tcc"}]))


def test_the_name_of_a_grid_replaces_common_settings(names):
    assert names(name="small", latent=64, heads=[4, 8], runs=[{}, {"depth": 2}]) == [
        "toy-paper-r0.3-small-heads4-s0",
        "toy-paper-r0.3-small-heads8-s0",
        "toy-paper-r0.3-small-depth2-heads4-s0",
        "toy-paper-r0.3-small-depth2-heads8-s0",
    ]
    assert names(name="small", latent=64, runs=[{}, {"latent": [32, 256]}]) == [
        "toy-paper-r0.3-small-s0",
        "toy-paper-r0.3-small-latent32-s0",
        # The name lists 256, although it is the method's default.
        "toy-paper-r0.3-small-latent256-s0",
    ]


def test_long_names_end_in_a_digest(names):
    many = {
        "latent": 64,
        "depth": 3,
        "decoder_depth": 2,
        "heads": 8,
        "epochs": 17,
        "batch_size": 3,
        "lr": 0.00123,
    }
    many |= {"weight_decay": 0.01234, "warmup": 3.25, "validate_every": 7, "select": "trimmed"}
    first, second = names(**many, mask_cross=[0.61, 0.62])
    assert len(first) <= MAX_NAME_LENGTH
    assert first != second
    assert first == names(**many, mask_cross=0.61)[0]


def test_equal_runs_are_planned_once(names):
    assert names(runs=[{"mask_self": [0.4, 0.6]}, {"mask_cross": [0.8]}]) == [
        "toy-paper-r0.3-s0",
        "toy-paper-r0.3-mask-self0.6-s0",
    ]


def test_pairs_and_none_are_values(folders):
    grid = parse_grid({"crop": [[0.5, 1.0], [1.0, 1.0]], "clip-grad": ["none", 1.0]}, "grid.toml")
    runs = plan_runs([grid], folders.features)
    assert [(run.config.sampling.crop, run.config.optimizer.clip_grad) for run in runs] == [
        ((0.5, 1.0), None),
        ((0.5, 1.0), 1.0),
        ((1.0, 1.0), None),
        ((1.0, 1.0), 1.0),
    ]


def test_settings_are_those_of_the_dataset_in_the_cache(tmp_path):
    make_cache(tmp_path, "tennis_forehand")
    # Invalid with the default subset of 30.
    grid = parse_grid({"method": "ae2-alignment", "frames": 20}, "grid.toml")
    assert [run.config.method.subset for run in plan_runs([grid], tmp_path)] == [10]


def test_titles_name_the_settings_that_differ(folders):
    grid = parse_grid(
        {
            "seed": [0, 1],
            "epochs": 5,
            "runs": [{"mask_self": [0.4, 0.6]}, {"method": "tcc", "title": "TCC at {lr}"}],
        },
        "grid.toml",
    )
    assert list(dict.fromkeys(run.title for run in plan_runs([grid], folders.features))) == [
        "BYOV, paper (tiny, frozen), mask self 0.4",
        "BYOV, paper (tiny, frozen), mask self 0.6",
        "TCC at 0.0001",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [0, 1]", "unknown setting 'seeds'"),
        ("seed = []", "seed is an empty list"),
        ("runs = []", "runs is []; it must have at least 1 item"),
        ('method = ["byov", "best"]', "method 'best'; choose one of byov, timeline"),
        ("lr = -1.0", "lr is -1.0; it must be above 0"),
        ("crop = [0.5, 0.7, 1.0]", "crop is (0.5, 0.7, 1.0); it must have at most 2 items"),
        ("ratio = 30", "ratio is 30; it must be a fraction of the tokens"),
        ("ratio = 0.5", "no STM ratio 0.5, only 0.3, 1.0. Add it with byov-extract --dataset toy"),
        ('dataset = "other"', "no dataset 'other'"),
        ("method = {a = 1}", "method is {'a': 1}; it must be a string"),
        ('name = "../up"', "name '../up' cannot be a file name"),
        (
            "dataset = toy",
            "not a readable TOML file (Invalid value (at line 1, column 11)). Text needs quotes",
        ),
        ("# no settings", "is empty"),
        ("seed = " + "[" * 5000, "not a readable TOML file"),
        (
            '[evaluation]\ntasks = ["clasification"]',
            "unknown task clasification; choose from classification",
        ),
        ("[evaluation]\nbootstraps = 3", "'bootstraps' in evaluation is unknown"),
    ],
)
def test_invalid_grids_are_refused_in_one_line(folders, tmp_path, text, message):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(SweepError) as error:
        plan_runs([read_grid(path)], folders.features)
    assert str(error.value).startswith(f"{path}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SweepError, match=r"none\.toml: no such file"):
        read_grid(tmp_path / "none.toml")
