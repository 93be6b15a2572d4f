import json
import re
import subprocess
import sys

import pytest
import torch
from huggingface_hub import HfApi
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from byov.cache.standardize import standardized
from byov.errors import TrainError
from byov.train import transformer
from byov.train.autoencoder import Autoencoder
from byov.train.settings import TrainSettings
from byov.train.train_run import build_model

RECORD = {
    "dataset": "pour_milk",
    "encoder": "openai/clip-vit-base-patch16",
    "column": "merged/0.3",
    "preprocessing": "squash 224",
    "recipe": "cycle",
    "seed": 3,
    "settings": {"latent": 8, "crop": [0.5, 1.0]},
    "validation": {"retrieval": 0.8123456, "tau": 0.5},
}


def millions(model):
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize(
    ("width", "latent", "expected"),
    [(768, 64, 0.905), (768, 128, 3.389), (768, 256, 13.100), (768, 512, 51.494), (1024, 512, 51.757)],
)
def test_the_model_has_as_many_parameters_as_the_papers(width, latent, expected):
    with torch.device("meta"):
        assert round(millions(build_model(width, TrainSettings(latent=latent))), 3) == expected


def test_encoder_and_decoder_have_their_share_of_the_parameters():
    with torch.device("meta"):
        model, large = build_model(768, TrainSettings()), build_model(1024, TrainSettings(latent=512))
    assert (round(millions(model.encoder), 2), round(millions(model.decoder), 2)) == (9.68, 3.42)
    assert (round(millions(large.encoder), 2), round(millions(large.decoder), 2)) == (38.36, 13.40)


def test_clips_that_pass_together_are_those_that_pass_alone(make_model, make_clips):
    model, clips, others = make_model(), make_clips(3, 9), make_clips(2, 4, seed=1)
    together = model.encoder(
        [model.encoder.place(given.frames, given.index) for given in (clips, others)], [clips.index, others.index]
    )
    for given, latents in zip((clips, others), together, strict=True):
        for clip in range(len(given.frames)):
            torch.testing.assert_close(model(given.frames[clip : clip + 1])[0], latents[clip], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("norm", ["after", "before"])
def test_the_last_norm_stands_behind_or_before_the_blocks(make_model, make_clips, norm):
    model = make_model(norm=norm)
    with torch.no_grad():
        model.encoder.norm.weight.fill_(1)
        model.encoder.norm.bias.fill_(0)
    entering = []
    model.encoder.blocks[0].register_forward_hook(lambda _, given, __: entering.append(given[0]))
    latents = model(make_clips(2, 6).frames)
    for rows, normed in ((entering[0], norm == "before"), (latents, norm == "after")):
        deviation = rows.std(dim=-1, unbiased=False)
        assert torch.allclose(deviation, torch.ones_like(deviation), atol=1e-2) == normed


@pytest.mark.parametrize("position", ["interpolated", "index", "none"])
def test_positions_tell_frames_apart_that_are_alike(make_model, position):
    latents = make_model(position=position)(torch.ones(1, 6, 12))[0]
    assert torch.allclose(latents[0], latents[3], atol=1e-5) == (position == "none")


@pytest.mark.parametrize("position", ["interpolated", "index", "none"])
def test_mask_tokens_always_have_positions(make_model, position):
    decoder = make_model(position=position).decoder
    tokens = decoder.place(decoder.mask_token.expand(1, 6, -1), torch.arange(6)[None])
    assert not torch.allclose(tokens[0, 0], tokens[0, 3], atol=1e-3)


@pytest.mark.parametrize("window", [None, 2])
def test_the_window_bounds_how_far_a_frame_reaches(make_model, window):
    model = make_model(depth=1, attention_window=window)
    frames = torch.randn(1, 9, 12, requires_grad=True)
    model(frames)[0, 4].square().sum().backward()
    reached = [frame for frame in range(9) if frames.grad[0, frame].abs().sum() > 0]
    assert reached == (list(range(9)) if window is None else [2, 3, 4, 5, 6])


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", ["interpolated", "index"])
@pytest.mark.parametrize("frames", [1, 6, 11])
def test_embedding_a_whole_video_is_the_forward_pass(make_model, monkeypatch, frames, position, window):
    monkeypatch.setattr(transformer, "CHUNK_ROWS", 4)
    model = make_model(position=position, attention_window=window)
    features = torch.randn(frames, 12)
    found = model.embed(features.half())
    assert not found.requires_grad
    torch.testing.assert_close(found, model(features.half().float()[None])[0].detach(), atol=1e-5, rtol=1e-5)


def test_embedding_standardises_if_the_model_was_trained_so(make_model):
    features = torch.randn(11, 12) * 4 + 2
    plain, standard = make_model(), make_model(standardize="video")
    torch.testing.assert_close(standard.embed(features), plain.embed(standardized(features)))
    assert not torch.allclose(standard.embed(features), plain.embed(features), atol=1e-2)


LONG_VIDEO = """
import resource, sys, torch
from byov.train.autoencoder import Autoencoder
torch.set_num_threads(1)
window = None if sys.argv[2] == "None" else int(sys.argv[2])
model = Autoencoder(
    width=16, latent=8, depth=1, decoder_depth=1, heads=2, frames=32, attention_window=window
)
features = torch.randn(int(sys.argv[1]), 16)
model.embed(features[:100])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert model.embed(features).isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("window", [None, 30])
def test_memory_does_not_grow_with_the_square_of_the_length(window):
    """12,000 frames: a matrix of all their pairs alone would take 576 MB for each head."""
    run = subprocess.run(
        [sys.executable, "-c", LONG_VIDEO, "12000", str(window)], capture_output=True, text=True, check=True
    )
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    assert int(run.stdout) * unit_bytes < 200 * 2**20


def test_a_saved_model_is_loaded_as_it_was(make_model, tmp_path):
    model = make_model(
        position="index",
        norm="before",
        attention_window=4,
        standardize="video",
        training=json.loads(json.dumps(RECORD)),
    )
    model.save_pretrained(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    loaded = Autoencoder.from_pretrained(tmp_path / "model")
    assert loaded.arguments == model.arguments
    assert loaded.record == RECORD
    features = torch.randn(9, 12)
    assert torch.equal(loaded.embed(features), model.embed(features))
    for name, weights in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weights)


def test_weights_that_are_not_all_there_are_not_loaded(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    some = {name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if "blocks" not in name}
    save_file(some, tmp_path / "model.safetensors")
    with pytest.raises(TrainError, match="weights of another model"):
        Autoencoder.from_pretrained(tmp_path)


def test_the_saved_file_holds_encoder_and_decoder_and_no_position_table(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert {name.split(".")[0] for name in names} == {"encoder", "decoder"}
    assert not any("table" in name for name in names)


def test_config_keeps_what_is_said_of_the_training_even_what_is_added_later(make_model, tmp_path):
    model = make_model(training={"dataset": "demo"})
    model.record["validation"] = {"tau": 0.25}
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["training"] == {"dataset": "demo", "validation": {"tau": 0.25}}
    assert config["latent"] == 8


def test_the_arguments_build_the_same_model(make_model):
    model = make_model(position="none", attention_window=2)
    again = Autoencoder(**model.arguments)
    assert again.arguments == model.arguments
    again.load_state_dict(model.state_dict())
    features = torch.randn(8, 12)
    assert torch.equal(again.embed(features), model.embed(features))


def test_the_pushed_folder_is_what_is_saved(make_model, monkeypatch):
    """The Hub is replaced, not our code: what it would be sent is looked at."""
    sent = {}

    class Created:
        repo_id = "someone/byov-demo"

    def upload(_api, *, folder_path, repo_id, **_):
        sent.update(repo=repo_id, **{path.name: path.read_bytes() for path in folder_path.iterdir()})
        return "https://example.org/commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Created())
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    make_model(training=RECORD).push_to_hub("someone/byov-demo")
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
        ({"position": "learnt"}, "position is 'learnt'; it must be 'interpolated', 'index' or 'none'"),
        ({"norm": ""}, "norm is ''; it must be 'after' or 'before'"),
        ({"standardize": None}, "standardize is None; it must be 'none' or 'video'"),
        ({"attention_window": -1}, "attention_window is -1; it must be at least 1"),
        ({"attention_window": 2.0}, "attention_window is 2.0; it must be a valid integer"),
        ({"training": ["demo"]}, "training is ['demo']; it must be a valid dictionary"),
    ],
)
def test_what_a_model_cannot_be_is_said(make_model, arguments, message):
    with pytest.raises(TrainError, match=f"^{re.escape(message)}"):
        make_model(**arguments)


def test_a_config_that_cannot_be_is_said(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"latent": "256; rm -rf"}))
    with pytest.raises(TrainError, match=rf"^{re.escape(str(tmp_path))}/config.json: latent is '256; rm -rf'"):
        Autoencoder.from_pretrained(tmp_path)


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v != "absent"}))


def test_an_argument_that_an_older_version_did_not_have_takes_its_default(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    edit_config(tmp_path, attention_window="absent", standardize="absent")
    loaded = Autoencoder.from_pretrained(tmp_path)
    assert (loaded.standardize, loaded.encoder.attention_window) == ("none", None)


def test_an_argument_that_only_a_newer_version_knows_is_named_with_that_version(make_model, tmp_path):
    make_model(training={"versions": {"byov": "9.1"}}).save_pretrained(tmp_path)
    edit_config(tmp_path, rotary=True)
    message = f"{tmp_path}/config.json: unknown setting 'rotary'; byov 9.1 has written it, use that version"
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        Autoencoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("changes", [{"depth": 10**6}, {"decoder_depth": 10**6}, {"width": 10**6}, {"latent": 10**6}])
def test_a_model_larger_than_its_file_is_refused_before_memory_is_taken(make_model, tmp_path, changes):
    make_model().save_pretrained(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(TrainError, match=r"model\.safetensors: weights of another model than config\.json says"):
        Autoencoder.from_pretrained(tmp_path)


def test_loading_prints_nothing(make_model, tmp_path, capfd):
    make_model().save_pretrained(tmp_path)
    Autoencoder.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")
