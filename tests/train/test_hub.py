"""Tests of saving, loading and uploading models, and of reading untrusted config files."""

import json

import pytest
import torch
import yaml
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file

from byov.errors import TrainError
from byov.train.methods.base import Method, build_method
from byov.train.registry import resolve

RECORD = {
    "dataset": "pour_milk",
    "encoder": "openai/clip-vit-base-patch16",
    "column": "merged/0.3",
    "preprocessing": "squash 224",
    "recipe": "cycle",
    "seed": 3,
    "validation": {"retrieval": 0.8123456, "tau": -0.5},
}
HOSTILE = (
    "x`\n\n# Owned\n---\nlicense: gpl\n---\n<script>alert(1)</script> | a | "
    "```\n\x1b[31m\u202e\ud800"
)


def edit_config(folder, **changes):
    """Change entries of config.json; names that start with a dot refer to the options of the
    method.
    """
    config = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        (config["settings"]["method"] if name.startswith(".") else config)[
            name.removeprefix(".")
        ] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_push_to_hub_uploads_the_saved_files(make_method, monkeypatch):
    """Replace only the calls to the Hub."""
    sent = {}

    class Created:
        repo_id = "someone/byov-demo"

    def upload(_api, *, folder_path, repo_id, **_):
        sent.update(
            repo=repo_id, **{path.name: path.read_bytes() for path in folder_path.iterdir()}
        )
        return "https://example.org/commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Created())
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    make_method(training=RECORD).push_to_hub("someone/byov-demo")
    assert sent.keys() == {"repo", "config.json", "model.safetensors", "README.md"}
    assert json.loads(sent["config.json"])["training"] == RECORD
    assert b"0.8123" in sent["README.md"]


def test_weights_of_another_architecture_are_refused(make_method, tmp_path):
    make_method().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "blocks" not in name},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(TrainError, match=r"model\.safetensors does not contain"):
        Method.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {".name": "dreams"},
        {".latent": "256; rm -rf"},
        {".latent": 10**6},
        {".rotary": True},
        {"rotary": True},
        {"width": 10**6},
        {"width": 11},
        {"settings": None},
        {"training": ["demo"]},
    ],
    ids=str,
)
def test_a_hostile_config_is_one_line_and_takes_no_memory(make_method, tmp_path, changes):
    make_method().save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(TrainError) as raised:
        Method.from_pretrained(tmp_path)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere", "../nowhere", "someone/nothing"])
def test_a_model_that_does_not_exist_is_one_line(tmp_path, monkeypatch, name):
    # The variable is read at import.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        TrainError, match=f"^{name} is neither a folder nor a model [^\n]+ byov-runs [^\n]+$"
    ):
        Method.from_pretrained(name)


def card_text(model):
    return str(model.generate_model_card())


def test_the_card_states_method_data_and_metrics(make_method):
    with torch.device("meta"):
        assert "13.100 million parameters" in card_text(build_method(768, resolve("byov", "", {})))
    model = make_method(training=RECORD)
    card = card_text(model)
    assert "method `byov`" in card
    assert json.loads(card.split("```json\n")[1].split("```")[0]) == RECORD | {
        "settings": model.config.model_dump(mode="json")
    }
    baseline = card_text(make_method("tcc", training=RECORD))
    assert "\n# TCC\n" in baseline
    assert '"depth"' not in baseline
    _, head, _ = card.split("---\n", 2)
    assert yaml.safe_load(head).items() >= {"library_name": "byov", "license": "mit"}.items()


def test_no_value_breaks_out_of_its_place_in_the_card(make_method):
    usual = card_text(make_method(training=RECORD)).splitlines()
    hostile = {name: HOSTILE for name in RECORD if name != "validation"}
    card = card_text(
        make_method(training=hostile | {"validation": {HOSTILE: HOSTILE, "tau": float("nan")}})
    )
    assert len(card.splitlines()) == len(usual)
    assert all(line.isprintable() for line in card.splitlines())
    card.encode()
