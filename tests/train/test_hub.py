import json
import re

import pytest
import torch
from huggingface_hub import HfApi
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from byov.errors import TrainError
from byov.train.methods.base import Method
from byov.train.methods.byov import Byov, ByovSettings
from byov.train.methods.timeline import Timeline

RECORD = {
    "dataset": "pour_milk",
    "encoder": "openai/clip-vit-base-patch16",
    "column": "merged/0.3",
    "preprocessing": "squash 224",
    "recipe": "cycle",
    "seed": 3,
    "validation": {"retrieval": 0.8123456, "tau": 0.5},
}
ARGUMENTS_OF_0_2 = (
    *("latent", "depth", "decoder_depth", "heads", "frames"),
    *("position", "norm", "attention_window", "standardize"),
)


def test_a_saved_model_is_loaded_as_it_was(make_method, tmp_path):
    model = make_method(
        position="index",
        norm="before",
        attention_window=4,
        standardize="video",
        training=json.loads(json.dumps(RECORD)),
    )
    model.save_pretrained(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    loaded = Method.from_pretrained(tmp_path / "model")
    assert type(loaded) is Byov
    assert (loaded.width, loaded.settings) == (model.width, model.settings)
    assert loaded.record == RECORD
    features = torch.randn(9, 12)
    assert torch.equal(loaded.embed(features), model.embed(features))
    for name, weights in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weights)


def test_weights_that_are_not_all_there_are_not_loaded(make_method, tmp_path):
    make_method().save_pretrained(tmp_path)
    some = {name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if "blocks" not in name}
    save_file(some, tmp_path / "model.safetensors")
    with pytest.raises(TrainError, match="weights of another model"):
        Method.from_pretrained(tmp_path)


def test_the_saved_file_holds_encoder_and_decoder_and_no_position_table(make_method, tmp_path):
    make_method().save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert {name.split(".")[0] for name in names} == {"encoder", "decoder"}
    assert not any("table" in name for name in names)


def test_config_keeps_what_is_said_of_the_training_even_what_is_added_later(make_method, tmp_path):
    model = make_method(training={"dataset": "demo"})
    model.record["validation"] = {"tau": 0.25}
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["training"] == {"dataset": "demo", "validation": {"tau": 0.25}}
    assert config["settings"]["latent"] == 8


def test_the_configuration_builds_the_same_model(make_method):
    model = make_method(position="none", attention_window=2)
    again = Byov(model.config["width"], ByovSettings(**(model.config["settings"] | {"crop": (1.0, 1.0)})))
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    features = torch.randn(8, 12)
    assert torch.equal(again.embed(features), model.embed(features))


def test_the_pushed_folder_is_what_is_saved(make_method, monkeypatch):
    """The Hub is replaced, not our code: what it would be sent is looked at."""
    sent = {}

    class Created:
        repo_id = "someone/byov-demo"

    def upload(_api, *, folder_path, repo_id, **_):
        sent.update(repo=repo_id, **{path.name: path.read_bytes() for path in folder_path.iterdir()})
        return "https://example.org/commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Created())
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    make_method(training=RECORD).push_to_hub("someone/byov-demo")
    assert sent.keys() == {"repo", "config.json", "model.safetensors", "README.md"}
    assert sent["repo"] == "someone/byov-demo"
    assert json.loads(sent["config.json"])["training"] == RECORD
    card = sent["README.md"].decode()
    for said in ("pour_milk", "cycle", "0.8123", "merged/0.3", "squash 224"):
        assert said in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, "3 heads do not divide a latent of 8"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"latent": 7, "heads": 7}, "latent is 7; it must be a multiple of 2"),
        ({"width": 11}, "width is 11; it must be a multiple of 2"),
        ({"depth": 2.5}, "depth is 2.5; it must be a valid integer"),
        ({"frames": True}, "frames is True; it must be a valid integer"),
        ({"decoder_depth": "4"}, "decoder_depth is '4'; it must be a valid integer"),
        ({"position": "learned"}, "position is 'learned'; it must be 'interpolated', 'share', 'index' or 'none'"),
        ({"position_in": "both"}, "position_in is 'both'; it must be 'features' or 'latent'"),
        ({"norm": ""}, "norm is ''; it must be 'after' or 'before'"),
        ({"standardize": None}, "standardize is None; it must be 'none' or 'video'"),
        ({"attention_window": -1}, "attention_window is -1; it must be at least 1"),
        ({"attention_window": 2.0}, "attention_window is 2.0; it must be a valid integer"),
        ({"training": ["demo"]}, "training is ['demo']; it must be a valid dictionary"),
    ],
)
def test_what_a_model_cannot_be_is_said(make_method, arguments, message):
    with pytest.raises(TrainError, match=f"^{re.escape(message)}"):
        make_method(**arguments)


def test_a_config_that_cannot_be_is_said(make_method, tmp_path):
    make_method().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["latent"] = "256; rm -rf"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrainError, match=rf"^{re.escape(str(tmp_path))}/config.json: latent is '256; rm -rf'"):
        Method.from_pretrained(tmp_path)


def edit_config(folder, **changes):
    """width, or settings; "absent": without that one."""
    config = json.loads((folder / "config.json").read_text())
    settings = config["settings"] | {name: value for name, value in changes.items() if name not in config}
    config |= {name: value for name, value in changes.items() if name in config}
    config["settings"] = {name: value for name, value in settings.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))


def test_an_argument_that_an_older_version_did_not_have_takes_its_default(make_method, tmp_path):
    make_method().save_pretrained(tmp_path)
    edit_config(tmp_path, attention_window="absent", standardize="absent")
    loaded = Method.from_pretrained(tmp_path)
    assert (loaded.settings.standardize, loaded.encoder.attention_window) == ("none", None)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_model_of_byov_0_2_has_its_sizes_beside_its_width(make_method, tmp_path, recorded):
    """Its training's settings, which a run recorded too, were below `training`; a model saved by hand had none."""
    model = make_method(norm="before", standardize="video", masked_only=True, training={"dataset": "demo"})
    model.save_pretrained(tmp_path)
    settings = model.config["settings"]
    del settings["method"], settings["position_in"]
    arguments = {name: settings[name] for name in ARGUMENTS_OF_0_2}
    training = {"dataset": "demo"} | ({"settings": settings} if recorded else {})
    (tmp_path / "config.json").write_text(json.dumps({"width": 12, **arguments, "training": training}))
    loaded = Method.from_pretrained(tmp_path)
    assert type(loaded) is Byov
    assert {name: getattr(loaded.settings, name) for name in arguments} == arguments
    assert loaded.settings.masked_only is recorded
    features = torch.randn(9, 12)
    assert torch.equal(loaded.embed(features), model.embed(features))


def test_an_argument_that_only_a_newer_version_knows_is_named_with_that_version(make_method, tmp_path):
    make_method(training={"versions": {"byov": "9.1"}}).save_pretrained(tmp_path)
    edit_config(tmp_path, rotary=True)
    message = f"{tmp_path}/config.json: unknown setting 'rotary'; byov 9.1 has written it, use that version"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        Method.from_pretrained(tmp_path)


@pytest.mark.parametrize("changes", [{"depth": 10**6}, {"decoder_depth": 10**6}, {"width": 10**6}, {"latent": 10**6}])
def test_a_model_larger_than_its_file_is_refused_before_memory_is_taken(make_method, tmp_path, changes):
    make_method().save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(TrainError, match=r"model\.safetensors: weights of another model than config\.json says"):
        Method.from_pretrained(tmp_path)


FORGED = (0, 999_999, 2**63, 10**40, True, "8")


@pytest.mark.slow
def test_forged_sizes_are_one_line_or_change_nothing(make_method, tmp_path, each_method):
    """Whatever whole number of config.json is forged, and to whatever."""
    model = make_method(each_method)
    model.save_pretrained(tmp_path)
    config, weights = (tmp_path / "config.json").read_text(), model.state_dict()
    sizes = [name for name, value in model.config["settings"].items() if type(value) is int and name != "seed"]
    assert "epochs" in sizes
    messages: dict[str, list[str]] = {name: [] for name in ("width", *sizes)}
    for name, said in messages.items():
        for value in FORGED:
            (tmp_path / "config.json").write_text(config)
            edit_config(tmp_path, **{name: value})
            try:
                loaded = Method.from_pretrained(tmp_path)
            except TrainError as error:
                said.append(str(error))
            else:
                assert all(torch.equal(tensor, weights[key]) for key, tensor in loaded.state_dict().items())
    assert len(messages["width"]) == len(FORGED)
    assert all(messages.values()), messages
    for said in messages.values():
        assert all(message.startswith(str(tmp_path)) and "\n" not in message for message in said)


def test_a_model_of_another_method_is_refused_by_name(make_method, tmp_path):
    make_method("timeline").save_pretrained(tmp_path)
    assert type(Method.from_pretrained(tmp_path)) is Timeline
    assert type(Timeline.from_pretrained(tmp_path)) is Timeline
    message = f"{tmp_path}/config.json: a model of method timeline, not a Byov"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        Byov.from_pretrained(tmp_path)


@pytest.mark.parametrize(("method", "other"), [("byov", "timeline"), ("timeline", "byov")])
def test_weights_of_another_method_are_not_loaded(make_method, tmp_path, method, other):
    make_method(method).save_pretrained(tmp_path)
    make_method(other).save_pretrained(tmp_path / "other")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(TrainError, match=r"model\.safetensors: weights of another model than config\.json says$"):
        Method.from_pretrained(tmp_path)


@pytest.mark.parametrize("method", ["dreams", "", None, 3, ["byov"], {"byov": 1}])
def test_a_method_that_there_is_not_lists_those_there_are(make_method, tmp_path, method):
    make_method().save_pretrained(tmp_path)
    edit_config(tmp_path, method=method)
    with pytest.raises(TrainError, match=r"config\.json: method .*; choose one of byov, timeline"):
        Method.from_pretrained(tmp_path)


def test_loading_prints_nothing(make_method, tmp_path, capfd):
    make_method().save_pretrained(tmp_path)
    Method.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")
