import json
import re
from pathlib import Path

import pytest

from byov.cache.runs import RunRecord
from byov.errors import SettingsError, TrainError
from byov.train.method_settings import SETTINGS, ByovSettings, TimelineSettings, choose, owners, settings_of
from byov.train.methods.method_registry import METHODS
from byov.train.settings import GROUPS


def test_the_defaults_are_the_papers_and_the_published_codes():
    settings = choose("pour_milk")
    assert settings == ByovSettings()
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
    assert choose("demo", recipe=recipe) == ByovSettings(recipe=recipe, **changed)


@pytest.mark.parametrize("recipe", ByovSettings.RECIPES)
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


def run_with(settings, version="0.9"):
    """A run as its config.json tells of it."""
    training = {"settings": settings, "versions": {"byov": version}}
    texts = ("dataset", "encoder", "encoder_folder", "column", "recipe", "untrained_sha256")
    return RunRecord(name="a", folder=Path("runs/a"), seed=0, training=training, **dict.fromkeys(texts, "x"))


def stored(settings):
    return json.loads(json.dumps(settings.model_dump(mode="json")))


@pytest.mark.parametrize("recipe", ByovSettings.RECIPES)
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
    assert settings_of(run_with(raw)) == ByovSettings(latent=64, heads=4)


def test_a_setting_that_only_a_newer_version_knows_is_named_with_file_and_version():
    message = "runs/a/config.json: unknown setting 'learning_rate'; byov 7.0 has written it, use that version"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        settings_of(run_with(stored(ByovSettings()) | {"learning_rate": 1}, version="7.0"))


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
        settings_of(run_with(stored(ByovSettings()) | {name: value}))


def test_every_method_has_settings_that_say_its_name_and_what_it_is():
    assert METHODS.keys() == SETTINGS.keys()
    for name, kind in SETTINGS.items():
        assert kind(**{}).method == name
        assert choose("demo", method=name) == kind()
        assert kind.summary.endswith(".")
        assert kind().title


def test_the_timelines_defaults_are_its_own_and_leave_those_of_others_alone():
    timeline = choose("pour_milk", method="timeline")
    own = {
        "clips": 8,
        "whole": 0.3,
        "crop": (0.3, 1.0),
        "frames": 32,
        "sigma": 0.08,
        "temperature": 0.1,
        "position": "share",
        "position_in": "latent",
        "standardize": "video",
        "feature_dropout": 0.3,
        "optimizer": "adamw",
        "lr": 6e-4,
        "epochs": 100,
        "schedule": "cosine",
        "weight_decay": 0.05,
        "heads": 8,
    }
    assert {name: getattr(timeline, name) for name in own} == own
    byov = choose("pour_milk")
    assert (byov.position, byov.optimizer, byov.lr, byov.crop) == ("interpolated", "adam", 1e-5, (1.0, 1.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clips": 1}, "clips is 1; it must be at least 2"),
        ({"whole": 1.1}, "whole is 1.1; it must be at most 1"),
        ({"sigma": 0.0}, "sigma is 0.0; it must be above 0"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be above 0"),
        ({"feature_dropout": 1.0}, "feature_dropout is 1.0; it must be below 1"),
        ({"heads": 7}, "7 heads do not divide a latent of 256"),
        ({"crop": (0.0, 1.0)}, "crop is (0.0, 1.0); it must be LOW,HIGH"),
        ({"lr": float("nan")}, "lr is nan; it must be a finite number"),
    ],
)
def test_what_is_out_of_the_timelines_range_is_said(given, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        choose("demo", method="timeline", **given)


def test_an_unknown_method_lists_those_there_are():
    with pytest.raises(SettingsError, match=rf"^method 'best'; choose one of {', '.join(SETTINGS)}$"):
        choose("demo", method="best")


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("byov", {"sigma": 0.1}, "--sigma is a setting of timeline, and the method is byov"),
        ("timeline", {"decoder_depth": 2}, "--decoder-depth is a setting of byov, and the method is timeline"),
        ("timeline", {"recipe": "cycle"}, "--recipe is a setting of byov, and the method is timeline"),
        ("byov", {"color": 1}, "color is no setting, and the method is byov"),
    ],
)
def test_a_setting_of_another_method_says_whose_it_is(method, given, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        choose("demo", method=method, **given)


def test_settings_have_their_owners():
    assert owners("lr") == list(SETTINGS)
    assert owners("clips") == ["timeline"]
    assert owners("color") == []
    shared = [name for group in GROUPS.values() for name in group.model_fields]
    assert len(shared) == len(set(shared))


@pytest.mark.parametrize("method", SETTINGS)
def test_the_settings_of_every_method_survive_json(method):
    settings = choose("tennis_forehand", method=method, seed=5, lr=0.25, standardize="video")
    assert settings_of(run_with(stored(settings))) == settings


def test_a_run_that_names_no_method_is_of_byov():
    """Until 0.2 there was no other."""
    raw = {name: value for name, value in stored(ByovSettings(latent=64)).items() if name != "method"}
    assert settings_of(run_with(raw)) == ByovSettings(latent=64)
    with pytest.raises(TrainError, match=r"^runs/a/config\.json: unknown setting 'sigma'"):
        settings_of(run_with(raw | {"sigma": 0.1}))


def test_the_timelines_settings_cannot_be_read_as_byovs():
    with pytest.raises(TrainError, match=r"^runs/a/config\.json: unknown setting 'backbone'"):
        settings_of(run_with(stored(TimelineSettings()) | {"method": "byov"}))
