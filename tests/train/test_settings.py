import dataclasses
import json
import re

import pytest

from byov.errors import TrainError
from byov.train.settings import RECIPES, TrainSettings, choose, differences, from_dict


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
    assert choose("demo", recipe=recipe) == dataclasses.replace(TrainSettings(), recipe=recipe, **changed)


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
        ({"mask_self": -0.1}, "mask_self is -0.1; it must be from 0 to 1"),
        ({"mask_cross": 1.01}, "mask_cross is 1.01; it must be from 0 to 1"),
        ({"latent": 0}, "latent is 0; it must be at least 1"),
        ({"depth": -1}, "depth is -1; it must be at least 1"),
        ({"decoder_depth": 0}, "decoder_depth is 0"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"validate_every": 0}, "validate_every is 0; it must be at least 1"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"heads": 7}, "7 heads do not divide a latent of 256"),
        ({"latent": 7, "heads": 7}, "latent is 7; it must be even, for the positions"),
        ({"cycle": -1.0}, "cycle is -1.0; it must be 0 or above"),
        ({"order_prior": 0.2}, "order_prior is of the cycles, and cycle is 0"),
        (
            {"masked_only": True, "mask_self": 0.0, "mask_cross": 0.0},
            "nothing to learn from: the loss is over masked frames, and none is masked",
        ),
        ({"order_prior": 0.0}, "order_prior is 0.0; it must be above 0"),
        ({"weight_decay": -1e-9}, "weight_decay is -1e-09; it must be 0 or above"),
        ({"warmup": -1}, "warmup is -1; it must be 0 or above"),
        ({"seed": -1}, "seed is -1; it must be 0 or above"),
        ({"seed": 2**63}, f"seed is {2**63}; it must be below 2^63"),
        ({"frames": 1}, "frames is 1; it must be at least 2"),
        ({"lr": 0}, "lr is 0; it must be above 0"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0; it must be above 0"),
        ({"attention_window": 0}, "attention_window is 0; it must be at least 1 frame"),
        ({"crop": (0.0, 1.0)}, "crop is (0.0, 1.0); it must be LOW,HIGH with 0 < LOW <= HIGH <= 1"),
        ({"crop": (0.8, 0.5)}, "crop is (0.8, 0.5)"),
        ({"crop": (0.8, 1.5)}, "crop is (0.8, 1.5)"),
        ({"self_view": False, "cross_view": False}, "nothing to learn from: --no-self, --no-cross, and no --cycle"),
        ({"lr": float("nan")}, "lr is nan, which it cannot be"),
        ({"lr": float("inf")}, "lr is inf, which it cannot be"),
        ({"lr": "1e-5"}, "lr is '1e-5', which it cannot be"),
        ({"lr": True}, "lr is True, which it cannot be"),
        ({"epochs": 2.0}, "epochs is 2.0, which it cannot be"),
        ({"epochs": None}, "epochs is None, which it cannot be"),
        ({"causal": 1}, "causal is 1, which it cannot be"),
        ({"crop": (0.5,)}, "crop is (0.5,), which it cannot be"),
        ({"crop": [0.5, 1.0]}, "crop is [0.5, 1.0], which it cannot be"),
        ({"crop": (0.5, "1")}, "crop is (0.5, '1'), which it cannot be"),
        ({"position": "learnt"}, "position is 'learnt', which it cannot be"),
        ({"position": []}, "position is [], which it cannot be"),
        ({"select": "f1"}, "select is 'f1', which it cannot be"),
        ({"frames": 10**30}, f"frames is {10**30}; it must be at most 1,000,000"),
        ({"attention_window": 10**30}, "attention_window is 1000"),
    ],
)
def test_what_is_out_of_range_is_said(given, message):
    with pytest.raises(TrainError, match=f"^{re.escape(message)}"):
        TrainSettings(**given)


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_survive_json(recipe):
    settings = choose("break_eggs", recipe=recipe, seed=2**62, clip_grad=1.5, attention_window=8, crop=(0.25, 0.75))
    assert from_dict(json.loads(json.dumps(settings.as_dict()))) == settings


@pytest.mark.parametrize("raw", [None, [], "settings", 3, {}, {"latent": 256}])
def test_what_are_no_settings_is_said(raw):
    with pytest.raises(TrainError, match=r"^settings of another version of byov"):
        from_dict(raw)


def test_settings_with_a_name_more_or_less_name_it():
    raw = TrainSettings().as_dict()
    with pytest.raises(TrainError, match=r"another version of byov \(\['learning_rate'\]\)"):
        from_dict(raw | {"learning_rate": 1})
    with pytest.raises(TrainError, match=r"another version of byov \(\['lr'\]\)"):
        from_dict({name: value for name, value in raw.items() if name != "lr"})


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
    with pytest.raises(TrainError, match=f"^{name} is "):
        from_dict(TrainSettings().as_dict() | {name: value})


def test_differences_are_named():
    assert differences(TrainSettings(), TrainSettings()) == []
    theirs = TrainSettings(lr=1e-3, crop=(0.5, 1.0), causal=False)
    assert differences(TrainSettings(), theirs) == [
        "causal False, not True",
        "crop (0.5, 1.0), not (1.0, 1.0)",
        "lr 0.001, not 1e-05",
    ]


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainSettings().lr = 1.0
