"""Checkpoints and config files that are damaged, of another program, or made to do harm."""

import json

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from tests.train.runs.run_files import checkpoints, edited, truncate

from byov.cache.digests import blank_seal, sealed, unsealed

RESUME = ("--run", "toy", "--resume")

pytestmark = pytest.mark.usefixtures("cache")


def said_by(path):
    with safe_open(path, framework="pt") as file:
        return unsealed(json.loads(file.metadata()["byov"]))


def forge(path, tensors, said):
    """A checkpoint with a digest that is right."""
    path.write_bytes(sealed(save(tensors, metadata={"byov": json.dumps(blank_seal() | said)})))


def rewrite(path, **changes):
    """Write a checkpoint with another state in its metadata."""
    said = said_by(path)
    forge(path, load_file(path), said | {"state": said["state"] | changes})


def without_identity(run):
    """As byov 0.2 has left its runs."""
    with edited(run / "config.json") as config:
        del config["training"]["identity"]


@pytest.mark.parametrize("share", [0, 0.0001, 0.5])
def test_without_any_sound_checkpoint_it_says_so_and_changes_nothing(refused, finished, reference, contents, share):
    for path in checkpoints(finished):
        truncate(path, share)
    assert "2 checkpoints, none of use" in refused(*RESUME)
    assert contents(finished) == contents(reference)


HOSTILE_STATES = [
    {"step": "8"},
    {"step": -4},
    {"step": 10**30},
    {"step": 8.0},
    {"step": True},
    {"records": None},
    {"records": []},
    {"records": [1]},
    {"records": [{}]},
    {"loss_sums": {"loss": "1"}},
    {"loss_sums": {"loss": 10**400}},
    {"loss_sums": []},
    {"best": "0.5"},
    {"best": float("nan")},
    {"best_metrics": {"retrieval": "\x1b[2J"}},
    {"best_metrics": None},
    {"unknown": 1},
]


@pytest.mark.parametrize("changes", HOSTILE_STATES, ids=str)
def test_a_checkpoint_with_an_impossible_state_is_one_line(refused, finished, reference, contents, changes):
    for path in checkpoints(finished):
        rewrite(path, **changes)
    message = refused(*RESUME)
    assert "checkpoint" in message
    assert "\x1b" not in message
    assert contents(finished) == contents(reference)


@pytest.mark.parametrize("state", [None, "", "[]", "{}", "nonsense", "[" * 100_000, '{"step": 8}'])
def test_a_checkpoint_with_another_kind_of_state_is_one_line(refused, finished, state):
    without_identity(finished)
    for path in checkpoints(finished):
        save_file(load_file(path), path, metadata=None if state is None else {"state": state})
    assert "checkpoint" in refused(*RESUME)


def drop(tensors, start):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(start)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors: drop(tensors, "optimizer."),
        lambda tensors: drop(tensors, "optimizer.exp_avg_sq."),
        lambda tensors: drop(tensors, "optimizer.step.encoder.norm."),
        lambda tensors: drop(tensors, "model."),
        lambda tensors: drop(tensors, "model.encoder.norm."),
        lambda tensors: drop(tensors, ""),
        lambda tensors: tensors | {"model.nonsense": tensors["model.encoder.norm.weight"].clone()},
        lambda tensors: {
            name: tensor[:1].clone() if name.startswith("optimizer.exp_avg.") else tensor
            for name, tensor in tensors.items()
        },
        lambda tensors: {
            name: tensor[:1].clone() if name == "model.encoder.norm.weight" else tensor
            for name, tensor in tensors.items()
        },
        lambda tensors: {
            name: tensor.to(int) if name.startswith("optimizer.exp_avg") else tensor for name, tensor in tensors.items()
        },
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_one_line(refused, finished, reference, contents, damage):
    for path in checkpoints(finished):
        forge(path, damage(load_file(path)), said_by(path))
    assert "checkpoint" in refused(*RESUME)
    assert contents(finished) == contents(reference)


def test_checkpoints_of_another_method_are_passed_over_and_never_mixed_in(
    refused, byov_train, finished, reference, make_reference, contents
):
    theirs = checkpoints(make_reference("timeline"))[-1]
    older, newer = checkpoints(finished)
    newer.write_bytes(theirs.read_bytes())
    ran = byov_train(*RESUME)
    assert ran.code == 0, ran
    assert f"{newer}: not a checkpoint of this run (it is of another run: the method timeline, seed 0, step " in ran.err
    assert "falling back to the one before" in ran.err
    assert contents(finished) == contents(reference)
    for path in (older, newer):
        path.write_bytes(theirs.read_bytes())
    assert "2 checkpoints, none of use" in refused(*RESUME)
    assert contents(finished) == contents(reference)


def test_the_model_of_another_method_is_refused(refused, finished, make_reference):
    theirs = make_reference("timeline")
    (finished / "model.safetensors").write_bytes((theirs / "model.safetensors").read_bytes())
    told = f"{finished / 'model.safetensors'}: a model of another run (the method timeline, seed 0, step "
    assert told in refused("--run", "toy", "--embed-only")


def test_what_another_run_of_the_same_method_has_written_is_refused(refused, byov_train, finished, tiny, tmp_path):
    assert byov_train("--run", "other", *tiny, "--seed", 7).code == 0
    other = tmp_path / "runs" / "other"
    own = (finished / "model.safetensors").read_bytes()
    (finished / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert "a model of another run (the method byov, seed 7" in refused(*RESUME)
    (finished / "model.safetensors").write_bytes(own)
    for theirs, ours in zip(checkpoints(other), checkpoints(finished), strict=True):
        ours.write_bytes(theirs.read_bytes())
    assert "2 checkpoints, none of use" in refused(*RESUME)
    (finished / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert "a model of another run (the method byov, seed 7" in refused("--run", "toy", "--embed-only")


def test_a_flipped_bit_in_the_newest_checkpoint_is_noticed_and_costs_one_checkpoint(
    byov_train, finished, reference, contents
):
    newest = checkpoints(finished)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    ran = byov_train(*RESUME)
    assert ran.code == 0, ran
    assert f"{newest}: it does not match the digest in it, file_sha256" in ran.err
    assert "falling back to the one before" in ran.err
    assert contents(finished) == contents(reference)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_flipped_bit_in_a_run_is_one_line(refused, finished, name):
    content = bytearray((finished / name).read_bytes())
    content[len(content) * 3 // 4] ^= 1
    (finished / name).write_bytes(content)
    assert str(finished / name) in refused("--run", "toy", "--embed-only")


def hostile(config, **training):
    return config | {"training": config["training"] | training}


def with_setting(config, **settings):
    return config | {"settings": config["settings"] | settings}


CONFIGS = {
    "not JSON": lambda _: "{",
    "a list": lambda _: [],
    "deep": lambda _: "[" * 100_000,
    "empty": lambda _: {},
    "training null": lambda _: {"training": None},
    "training empty": lambda _: {"training": {}},
    "dataset leads out": lambda config: hostile(config, dataset="../../etc"),
    "folder leads out": lambda config: hostile(config, encoder_folder="../.."),
    "column nonsense": lambda config: hostile(config, column="cls"),
    "column leads out": lambda config: hostile(config, column="merged/../cls"),
    "column not a number": lambda config: hostile(config, column="merged/nan"),
    "column control characters": lambda config: hostile(config, column="merged/\x1b[2J\n0.3"),
    "seed text": lambda config: hostile(config, seed="0"),
    "no settings": lambda config: config | {"settings": None},
    "settings of another kind": lambda config: config | {"settings": [1]},
    "settings as up to 0.2, and none": lambda config: hostile(config, settings=None),
    "method unknown": lambda config: with_setting(config, method="\x1b[2J"),
    "method list": lambda config: with_setting(config, method=["byov"]),
    "another method": lambda config: with_setting(config, method="timeline"),
    "a setting too many": lambda config: with_setting(config, unknown=1),
    "latent negative": lambda config: with_setting(config, latent=-32),
    "latent text": lambda config: with_setting(config, latent="32"),
    "lr NaN": lambda config: with_setting(config, lr=float("nan")),
    "crop long": lambda config: with_setting(config, crop=[0.1, 0.2, 0.3]),
    "crop nested": lambda config: with_setting(config, crop=[[1], {}]),
    "recipe list": lambda config: with_setting(config, recipe=[]),
}


@pytest.mark.parametrize("arguments", [RESUME, ("--run", "toy", "--embed-only")], ids=["resume", "embed"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_or_hostile_config_is_one_line(refused, finished, name, arguments):
    path = finished / "config.json"
    config = CONFIGS[name](unsealed(json.loads(path.read_text())))
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    assert "\x1b" not in refused(*arguments)


@pytest.mark.parametrize("name", ["encoder_sha256", "preprocessing"])
def test_a_record_that_does_not_say_what_the_features_were_is_not_taken_for_the_same(refused, finished, name):
    with edited(finished / "config.json") as config:
        del config["training"][name]
    assert f"toy was trained on {name} None, this is " in refused(*RESUME)
