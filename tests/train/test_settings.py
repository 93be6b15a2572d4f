import json
from pathlib import Path

import pytest

from byov.errors import SettingsError
from byov.train import registry
from byov.train.registry import (
    METHODS,
    config_class,
    differences,
    methods_with,
    option_name,
    parse_config,
)


def resolve(dataset="demo", method="byov", **given):
    return registry.resolve(method, dataset, given)


@pytest.mark.parametrize(
    ("dataset", "given", "expected"),
    [
        (
            "tennis_forehand",
            {"recipe": "cycle", "frames": 7, "cycle": 0.5},
            {"frames": 7, "cycle": 0.5},
        ),
        ("tennis_forehand", {"method": "ae2-alignment"}, {"subset": 10, "frames": 20}),
        ("pour_liquid", {"method": "ae2-alignment"}, {"halves": True, "reversed_weight": 2.0}),
        ("pour_milk", {"method": "ae2-alignment"}, {"contrastive": False, "lr": 1e-4}),
        ("demo", {"method": "tcn", "tcn_loss": "triplet"}, {"frames": 36}),
        ("demo", {"method": "tcn", "tcn_loss": "triplet", "tcn": "multi"}, {"frames": 32}),
        ("tennis_forehand", {"method": "carl"}, {"frames": 80}),
        (
            "tennis_forehand",
            {"size": "small", "depth": 3},
            {"frames": 20, "depth": 3, "latent": 128, "select": "last"},
        ),
        (
            "demo",
            {"size": "small", "epochs": 7},
            {"epochs": 7, "steps": None, "standardize": "dataset"},
        ),
        ("demo", {"recipe": "bottleneck"}, {"steps": 1500, "position": "none", "depth": 12}),
        (
            "demo",
            {"size": "small", "recipe": "cycle", "steps": 7},
            {"cycle": 5.0, "standardize": "video", "steps": 7},
        ),
    ],
)
def test_defaults_depend_on_the_dataset_and_given_settings_win(dataset, given, expected):
    settings = resolve(dataset, **given).flat()
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask_self": -0.1}, "mask_self is -0.1; it must be at least 0"),
        ({"depth": 257}, "depth is 257; it must be at most 256"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": 2.0}, "epochs is 2.0; it must be a valid integer"),
        ({"heads": 7}, "256 is not divisible by 7 heads"),
        ({"latent": 7, "heads": 7}, "latent is 7; it must be a multiple of 2"),
        ({"order_prior": 0.2}, "set a weight with --cycle"),
        (
            {"masked_only": True, "mask_self": 0.0, "mask_cross": 0.0},
            "no loss is enabled: .* none is masked",
        ),
        ({"self_view": False, "cross_view": False}, "no loss is enabled: --no-self and --no-cross"),
        ({"cross_loss": "bottleneck", "cross_view": False}, "omit --no-cross"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 100, "epochs": 2}, "--steps and --epochs"),
        ({"size": "tiny"}, "size is 'tiny'; it must be 'paper' or 'small'"),
        ({"seed": 2**63}, "seed is"),
        ({"frames": 10**30}, "frames is .* at most 1,000,000"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"causal": True}, "causal is True"),
        ({"clip_grad": 0.0}, "clip_grad is 0.0; it must be above 0"),
        ({"crop": (0.8, 0.5)}, "crop is .*; it must be LOW,HIGH with 0 < LOW <= HIGH <= 1"),
        ({"crop": (0.5,)}, "crop is .* at least 2 items"),
        (
            {"position": "learned"},
            "position is 'learned'; it must be 'interpolated', 'normalized', 'index' or 'none'",
        ),
        (
            {"recipe": "best"},
            "recipe is 'best'; it must be 'paper', 'official', 'cycle' or 'bottleneck'",
        ),
        ({"sigma": 0.1}, "--sigma is an option of timeline; the method is byov"),
        ({"self_vew": True}, "unknown setting 'self_vew'"),
        ({"method": "best"}, "unknown method 'best'; choose one of byov, timeline"),
        ({"method": "timeline", "feature_dropout": 1.0}, "feature_dropout is 1.0"),
        ({"method": "ae2-alignment", "frames": 16}, "--subset 30 exceeds --frames 16"),
        (
            {"method": "tcn", "tcn": "multi", "crop": (0.5, 1.0)},
            "--tcn multi compares whole videos",
        ),
        ({"method": "carl", "crop": (0.5, 1.0)}, "carl draws its own crops; omit --crop"),
        ({"method": "actor-observer", "crop": (0.5, 1.0)}, "actor-observer compares whole videos"),
        (
            {"method": "tcc", "depth": 3},
            "depth applies only to the encoder backbone; the backbone is frame",
        ),
        ({"method": "carl", "context": 3}, "context applies only to the frame backbone"),
        ({"method": "tcn", "tcn_loss": "triplet", "frames": 13}, "use --frames 14 or more"),
    ],
)
def test_invalid_settings_are_refused(given, message):
    with pytest.raises(SettingsError, match=message) as error:
        resolve(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "steps_per_epoch", "epochs", "warmup"),
    [
        ({"steps": 500}, 42, 12, 1.5),  # the default warm-up is 5 of 40 epochs
        ({"steps": 500, "warmup": 2.0}, 42, 12, 2.0),
        ({"steps": 42}, 42, 1, 5 / 40),
        ({"epochs": 3}, 42, 3, 5.0),
    ],
)
def test_steps_set_the_number_of_epochs(given, steps_per_epoch, epochs, warmup):
    given = resolve(method="timeline", **given)
    config = given.with_epochs(steps_per_epoch)
    assert (config.optimizer.epochs, config.optimizer.warmup) == (epochs, warmup)
    assert differences(given, config) == []


@pytest.mark.parametrize("method", METHODS)
def test_settings_survive_json(method):
    config = resolve("tennis_forehand", method, seed=2**62, lr=0.25, standardize="video")
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert parse_config(Path("config.json"), stored) == config


def test_every_method_describes_itself():
    for name in METHODS:
        assert resolve(method=name).method == config_class(name)()
        assert config_class(name).summary.endswith(".")


def test_defaults_are_defaults_of_settings():
    for name in METHODS:
        cls = config_class(name)
        for values in (cls.TRAINING, *cls.DATASETS.values()):
            assert values.keys() <= cls.settings().keys()


def test_options_and_their_methods():
    assert (option_name("batch_size"), option_name("self_view")) == ("batch-size", "self")
    assert methods_with("lr") == list(METHODS)
    assert methods_with("clips") == ["timeline"]
    assert methods_with("color") == []


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"method": "tcc"}, "TCC"),
        ({"method": "tcc", "backbone": "encoder"}, "TCC, BYOV's encoder"),
        ({"method": "carl", "backbone": "frame"}, "CARL, frame by frame"),
        ({"method": "tcn", "tcn": "unpaired"}, "TCN, unpaired multi-view"),
        ({"method": "tcn", "tcn_loss": "triplet"}, "TCN, single-view, triplets"),
        ({"recipe": "official"}, "BYOV, official"),
        ({"recipe": "cycle"}, "BYOV, cycle"),
        ({"size": "small"}, "BYOV, paper, small"),
        ({"standardize": "video"}, "BYOV, paper, standardized"),
        ({"method": "timeline", "standardize": "none"}, "Timeline, not standardized"),
        ({"method": "tcc", "tcc_loss": "mse", "standardize": "video"}, "TCC, mse, standardized"),
        ({"method": "gta", "unnormalized": True}, "GTA, unnormalized"),
        (
            {"method": "gta", "backbone": "encoder", "position": "none"},
            "GTA, BYOV's encoder without positions",
        ),
        (
            {"method": "ae2-alignment", "contrastive": False},
            "AE2 alignment loss, no object encoder, not contrastive",
        ),
        ({"method": "actor-observer", "weighted": False}, "ActorObserverNet, unweighted"),
    ],
)
def test_titles_tell_variants_apart(settings, title):
    assert resolve(**settings).title == title
