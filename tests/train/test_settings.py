import re

import pytest
from pydantic import ValidationError

from byov.errors import SettingsError
from byov.train.method_settings import ByovSettings
from byov.train.settings import checked, differences


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
    settings = ByovSettings(**given)
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
        ({"crop": (0.5,)}, "crop is (0.5,); it must be LOW,HIGH, like 0.5,1.0"),
        ({"crop": [0.5, 1.0]}, "crop is [0.5, 1.0]; it must be a valid tuple"),
        ({"crop": (0.5, "1")}, "crop.1 is '1'; it must be a valid number"),
        ({"position": "learned"}, "position is 'learned'; it must be 'interpolated', 'share', 'index' or 'none'"),
        ({"position": []}, "position is []; it must be 'interpolated', 'share', 'index' or 'none'"),
        ({"select": "f1"}, "select is 'f1'; it must be 'retrieval', 'trimmed', 'both', 'tau' or 'last'"),
        ({"frames": 10**30}, f"frames is {10**30}; it must be at most 1,000,000"),
        ({"attention_window": 10**30}, "attention_window is 1000"),
    ],
)
def test_what_is_out_of_range_is_said(given, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        checked(ByovSettings, **given)


def test_differences_are_named():
    assert differences(ByovSettings(), ByovSettings()) == []
    theirs = ByovSettings(lr=1e-3, crop=(0.5, 1.0), causal=False)
    assert differences(ByovSettings(), theirs) == [
        "crop (0.5, 1.0), not (1.0, 1.0)",
        "lr 0.001, not 1e-05",
        "causal False, not True",
    ]


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        ByovSettings().lr = 1.0
