import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from byov.cache.runs import RunRecord
from byov.errors import SettingsError, TrainError
from byov.train.settings import RECIPES, TrainSettings, checked, choose, differences, settings_of


def test_the_defaults_are_the_papers_and_the_published_codes():
    settings = choose("pour_milk")
    assert settings == TrainSettings()
    paper = {
        "latent": 256,
        "depth": 12,
        "decoder_depth": 4,
        "mask_self": 0.4,
        "mask_cross": 0.8,
        "causal": True,
        "frames": 32,
        "pairs": "views",
        "masked_only": False,
        "standardize": "none",
        "crop": (1.0, 1.0),
        "cycle": 0,
        "order_prior": None,
    }
    published = {
        "heads": 16,
        "position": "interpolated",
        "epochs": 300,
        "batch_size": 1,
        "lr": 1e-5,
        "weight_decay": 5e-6,
        "schedule": "constant",
        "warmup": 0,
        "clip_grad": None,
        "validate_every": 10,
    }
    for name, value in (paper | published).items():
        assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        ("paper", {}),
        ("official", {"pairs": "any", "norm": "before", "masked_only": True}),
        ("cycle", {"standardize": "video", "crop": (0.5, 1.0), "cycle": 5.0}),
    ],
)
def test_a_recipe_changes_what_it_says_and_nothing_else(recipe, changed):
    assert choose("demo", recipe=recipe) == TrainSettings(recipe=recipe, **changed)


@pytest.mark.parametrize("recipe", RECIPES)
def test_datasets_have_their_defaults(recipe):
    assert (choose("tennis_forehand", recipe=recipe).frames, choose("break_eggs", recipe=recipe).frames) == (20, 32)
    assert choose("tennis_forehand", recipe=recipe).batch_size == 1
    assert choose("break_eggs", recipe=recipe).batch_size == 4


def test_what_is_given_goes_before_dataset_and_recipe():
    settings = choose("tennis_forehand", recipe="cycle", frames=7, cycle=0.5, lr=1e-3)
    assert (settings.frames, settings.cycle, settings.lr, settings.standardize) == (7, 0.5, 1e-3, "video")


def test_an_unknown_recipe_lists_those_there_are():
    with pytest.raises(TrainError, match=r"^recipe 'best'; choose one of paper, official, cycle$"):
        choose("demo", recipe="best")


@pytest.mark.parametrize(
    "given",
    [
        {"mask_self": 0},
        {"mask_self": 1},
        {"mask_cross": 0.0},
        {"mask_cross": 1.0},
        {"crop": (0.1, 0.1)},
        {"crop": (1, 1)},
        {"clip_grad": 1},
        {"attention_window": 1},
        {"self_view": False},
        {"cross_view": False},
        {"self_view": False, "cross_view": False, "cycle": 1.0},
        {"seed": 2**63 - 1},
        {"weight_decay": 0},
        {"frames": 2},
        {"latent": 2, "heads": 1},
    ],
)
def test_the_ends_of_the_ranges_are_in_them(given):
    settings = TrainSettings(**given)
    assert {name: getattr(settings, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask_self": -0.1}, "mask_self is -0.1; it must be at least 0"),
        ({"mask_cross": 1.01}, "mask_cross is 1.01; it must be at most 1"),
        ({"latent": 0}, "latent is 0; it must be at least 1"),
        ({"depth": -1}, "depth is -1; it must be at least 1"),
        ({"decoder_depth": 0}, "decoder_depth is 0"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"validate_every": 0}, "validate_every is 0; it must be at least 1"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"heads": 7}, "7 heads do not divide a latent of 256"),
        ({"latent": 7, "heads": 7}, "latent is 7; it must be a multiple of 2"),
        ({"cycle": -1.0}, "cycle is -1.0; it must be at least 0"),
        ({"order_prior": 0.2}, "order_prior is of the cycles, and cycle is 0"),
        (
            {"masked_only": True, "mask_self": 0.0, "mask_cross": 0.0},
            "nothing to learn from: the loss is over masked frames, and none is masked",
        ),
        ({"order_prior": 0.0}, "order_prior is 0.0; it must be above 0"),
        ({"weight_decay": -1e-9}, "weight_decay is -1e-09; it must be at least 0"),
        ({"warmup": -1}, "warmup is -1; it must be at least 0"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"seed": 2**63}, f"seed is {2**63}; it must be below {2**63:,}"),
        ({"frames": 1}, "frames is 1; it must be at least 2"),
        ({"lr": 0}, "lr is 0; it must be above 0"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0; it must be above 0"),
        ({"attention_window": 0}, "attention_window is 0; it must be at least 1"),
        ({"crop": (0.0, 1.0)}, "crop is (0.0, 1.0); it must be LOW,HIGH with 0 < LOW <= HIGH <= 1"),
        ({"crop": (0.8, 0.5)}, "crop is (0.8, 0.5)"),
        ({"crop": (0.8, 1.5)}, "crop is (0.8, 1.5)"),
        ({"self_view": False, "cross_view": False}, "nothing to learn from: --no-self, --no-cross, and no --cycle"),
        ({"lr": float("nan")}, "lr is nan; it must be a finite number"),
        ({"lr": float("inf")}, "lr is inf; it must be a finite number"),
        ({"lr": "1e-5"}, "lr is '1e-5'; it must be a valid number"),
        ({"lr": True}, "lr is True; it must be a valid number"),
        ({"epochs": 2.0}, "epochs is 2.0; it must be a valid integer"),
        ({"epochs": None}, "epochs is None; it must be a valid integer"),
        ({"causal": 1}, "causal is 1; it must be a valid boolean"),
        ({"crop": (0.5,)}, "no '1' in crop"),
        ({"crop": [0.5, 1.0]}, "crop is [0.5, 1.0]; it must be a valid tuple"),
        ({"crop": (0.5, "1")}, "crop.1 is '1'; it must be a valid number"),
        ({"position": "learnt"}, "position is 'learnt'; it must be 'interpolated', 'index' or 'none'"),
        ({"position": []}, "position is []; it must be 'interpolated', 'index' or 'none'"),
        ({"select": "f1"}, "select is 'f1'; it must be 'retrieval', 'trimmed', 'both', 'tau' or 'last'"),
        ({"frames": 10**30}, f"frames is {10**30}; it must be at most 1,000,000"),
        ({"attention_window": 10**30}, "attention_window is 1000"),
    ],
)
def test_what_is_out_of_range_is_said(given, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        checked(TrainSettings, **given)


def run_with(settings, version="0.9"):
    """A run as its config.json tells of it."""
    training = {"settings": settings, "versions": {"byov": version}}
    texts = ("dataset", "encoder", "encoder_folder", "column", "recipe", "untrained_sha256")
    return RunRecord(name="a", folder=Path("runs/a"), seed=0, training=training, **dict.fromkeys(texts, "x"))


def stored(settings):
    return json.loads(json.dumps(settings.model_dump(mode="json")))


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_survive_json(recipe):
    settings = choose("break_eggs", recipe=recipe, seed=2**62, clip_grad=1.5, attention_window=8, crop=(0.25, 0.75))
    assert settings_of(run_with(stored(settings))) == settings


@pytest.mark.parametrize("raw", [None, [], "settings", 3])
def test_what_are_no_settings_is_said(raw):
    with pytest.raises(TrainError, match=r"^runs/a/config\.json: it does not say its settings$"):
        settings_of(run_with(raw))


@pytest.mark.parametrize("absent", ["order_prior", "lr", "crop", "recipe"])
def test_a_setting_that_an_older_version_did_not_have_takes_its_default(absent):
    raw = {name: value for name, value in stored(choose("demo", latent=64, heads=4)).items() if name != absent}
    assert settings_of(run_with(raw)) == TrainSettings(latent=64, heads=4)


def test_a_setting_that_only_a_newer_version_knows_is_named_with_file_and_version():
    message = "runs/a/config.json: unknown setting 'learning_rate'; byov 7.0 has written it, use that version"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        settings_of(run_with(stored(TrainSettings()) | {"learning_rate": 1}, version="7.0"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop", None),
        ("crop", [0.5]),
        ("crop", "ab"),
        ("crop", [[0.5], 1]),
        ("crop", {"a": 1}),
        ("seed", 10**400),
        ("lr", 10**400),
        ("lr", -(10**400)),
        ("lr", {}),
        ("latent", [256]),
        ("recipe", {"a": 1}),
        ("recipe", "../paper"),
        ("heads", 1e300),
        ("batch_size", False),
    ],
)
def test_hostile_values_are_refused(name, value):
    with pytest.raises(TrainError, match=rf"^runs/a/config\.json: ({name}(\.0)? is |no '1' in crop)"):
        settings_of(run_with(stored(TrainSettings()) | {name: value}))


def test_differences_are_named():
    assert differences(TrainSettings(), TrainSettings()) == []
    theirs = TrainSettings(lr=1e-3, crop=(0.5, 1.0), causal=False)
    assert differences(TrainSettings(), theirs) == [
        "causal False, not True",
        "crop (0.5, 1.0), not (1.0, 1.0)",
        "lr 0.001, not 1e-05",
    ]


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        TrainSettings().lr = 1.0
