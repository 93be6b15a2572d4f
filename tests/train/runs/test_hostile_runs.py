"""Tests of checkpoints, models and config files that are damaged, forged, or belong to another
run.
"""

import json

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save
from tests.train.runs.conftest import tiny_options
from tests.train.runs.run_files import (
    EMBED,
    RESUME,
    checkpoints,
    contents,
    flip_bit,
    train_run,
    truncate,
)

from byov.cache.digests import BLANK_SEAL, read_sealed_json, seal
from byov.errors import ByovError

pytestmark = pytest.mark.usefixtures("cache")


def forge(path, *, tensors=None, state=None):
    """Change a checkpoint and update its digest."""
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["byov"])
    metadata["state"] |= state or {}
    content = load_file(path) if tensors is None else tensors(load_file(path))
    path.write_bytes(seal(save(content, metadata={"byov": json.dumps(metadata | BLANK_SEAL)})))


def without(prefix):
    return lambda tensors: {
        name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)
    }


def resume(run):
    train_run("toy", resume=True, features_dir=run.parent.parent / "features", runs_dir=run.parent)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": {"step": "8"}},
        {"state": {"records": [1]}},
        {"state": {"best": float("nan")}},
        {"state": {"best_metrics": {"retrieval": "\x1b[2J"}}},
        {"tensors": without("model.encoder.norm.")},
        {"tensors": without("optimizer.exp_avg_sq.")},
        {
            "tensors": lambda tensors: (
                tensors | {"model.other": tensors["model.encoder.norm.weight"].clone()}
            )
        },
    ],
)
def test_a_forged_checkpoint_is_an_error(finished, reference, changes):
    for path in checkpoints(finished):
        forge(path, **changes)
    with pytest.raises(ByovError, match="no checkpoint is usable"):
        resume(finished)
    assert contents(finished) == contents(reference)


@pytest.mark.parametrize("damage", [truncate, flip_bit])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    byov_train, finished, reference, damage
):
    newest = checkpoints(finished)[-1]
    damage(newest)
    ran = byov_train(*RESUME)
    assert ran.code == 0, ran
    assert f"{newest.name} is not usable" in ran.err
    assert "resuming from step 8 of 12" in ran.err
    assert contents(finished) == contents(reference)
    for path in checkpoints(finished):
        assert path.read_bytes() == (reference / "checkpoint" / path.name).read_bytes()


def test_checkpoints_of_a_longer_run_are_refused(
    byov_train, refused, finished, reference, tmp_path
):
    folders = {"features_dir": tmp_path / "features", "runs_dir": tmp_path / "runs"}
    options = tiny_options("byov") | {"checkpoint_every": 1, "epochs": 6}
    train_run("longer", **options, **folders)
    (*_, newest) = checkpoints(tmp_path / "runs" / "longer")
    copied = finished / "checkpoint" / newest.name
    copied.write_bytes(newest.read_bytes())
    assert f"{copied} belongs to a run of more than 12 steps" in refused(*RESUME)
    copied.unlink()
    assert byov_train(*RESUME).code == 0
    assert contents(finished) == contents(reference)


def test_an_extra_checkpoint_of_a_killed_run_is_deleted(byov_train, finished, reference):
    """Copy a checkpoint, as if the process had been killed before it deleted the oldest one."""
    (older, newer) = checkpoints(finished)
    extra = older.with_name("step-000000004.safetensors")
    extra.write_bytes(older.read_bytes())
    assert byov_train(*RESUME).code == 0
    assert checkpoints(finished) == [older, newer]
    assert contents(finished) == contents(reference)


@pytest.mark.parametrize(
    "settings", [{"method": "timeline", "frames": 8, "epochs": 3}, {"seed": 7}], ids=str
)
def test_files_of_another_run_are_refused(byov_train, finished, reference, tmp_path, settings):
    settings = settings if "method" in settings else tiny_options("byov") | settings
    options = {
        "checkpoint_every": 1,
        "features_dir": tmp_path / "features",
        "runs_dir": tmp_path / "runs",
    }
    train_run("other", **(settings | options))
    (*_, foreign) = checkpoints(tmp_path / "runs" / "other")
    (older, newer) = checkpoints(finished)
    newer.write_bytes(foreign.read_bytes())
    ran = byov_train(*RESUME)
    assert ran.code == 0, ran
    assert f"{newer} belongs to another run" in ran.err
    assert contents(finished) == contents(reference)
    for path in (older, newer):
        path.write_bytes(foreign.read_bytes())
    with pytest.raises(ByovError, match="no checkpoint is usable"):
        resume(finished)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_flipped_bit_in_a_run_is_one_line(refused, finished, name):
    flip_bit(finished / name)
    assert str(finished / name) in refused(*EMBED)


CONFIGS = {
    "not JSON": lambda _: "{",
    "nested": lambda _: "[" * 100_000,
    "no training": lambda config: {
        name: value for name, value in config.items() if name != "training"
    },
    "dataset outside": lambda config: with_record(config, dataset="../../etc"),
    "column without ratio": lambda config: with_record(config, column="cls"),
    "column with control characters": lambda config: with_record(
        config, column="merged/\x1b[2J\n0.3"
    ),
    "no encoder digest": lambda config: with_record(config, encoder_sha256=None),
    "no identity": lambda config: with_record(config, identity=None),
    "no settings": lambda config: config | {"settings": None},
    "unknown method": lambda config: with_setting(config, name="\x1b[2J"),
    "another method": lambda config: with_setting(config, name="timeline"),
    "unknown setting": lambda config: with_setting(config, unknown=1),
    "absurd size": lambda config: with_setting(config, latent=1_000_000),
    "NaN": lambda config: with_setting(config, lr=float("nan")),
}


def with_record(config, **training):
    return config | {"training": config["training"] | training}


def with_setting(config, **settings):
    """Change settings of the method or, if it has none of that name, of the optimizer."""
    stored = config["settings"]
    part = "optimizer" if settings.keys() <= stored["optimizer"].keys() else "method"
    return config | {"settings": stored | {part: stored[part] | settings}}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_or_hostile_config_is_an_error(finished, name):
    path = finished / "config.json"
    config = CONFIGS[name](read_sealed_json(path.read_bytes()))
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    for options in ({"resume": True}, {"embed_only": True}):
        with pytest.raises(ByovError) as raised:
            train_run(
                "toy",
                features_dir=finished.parent.parent / "features",
                runs_dir=finished.parent,
                **options,
            )
        assert "\n" not in str(raised.value)
