"""Tests of encoders with tiny models in Hugging Face format."""

import json
import pickle
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.factories import Call

from byov.errors import EncoderError
from byov.extract.encoder_names import ARCHITECTURES, WIDTHS, parse_encoder
from byov.extract.encoders import ResNetTokens, _image_size, _load_config, _measure, load_encoder

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
VISION = {**SIZES, "patch_size": 16, "image_size": 64}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 1],
}
SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TEXT = {**SIZES, **SPECIAL_TOKENS, "vocab_size": 64, "max_position_embeddings": 8}


def save(folder: Path, model_type: str, **settings) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def load(folder):
    return load_encoder(parse_encoder(str(folder)), device="cpu")


@pytest.fixture
def vit(tmp_path):
    """Model folder of a small vision transformer."""
    save(tmp_path / "model", "vit", **VISION)
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("file_name", "content"),
    [
        ("config.json", json.dumps({"model_type": "vit", "num_hidden_layers": 10**7})),
        ("config.json", json.dumps({"model_type": "dinov2", "num_hidden_layers": 10**12})),
        ("config.json", json.dumps({"model_type": "resnet", "depths": [1, 10**7, 1, 1]})),
        (
            "config.json",
            json.dumps({"model_type": "clip", "vision_config": {"num_hidden_layers": 10**7}}),
        ),
        ("config.json", "[" * 100_000),
        ("preprocessor_config.json", "[" * 100_000),
        ("preprocessor_config.json", json.dumps({"image_mean": [10**400] * 3})),
    ],
)
def test_hostile_settings_are_one_line(vit, file_name, content):
    (vit / file_name).write_text(content)
    with pytest.raises(EncoderError, match=re.escape(str(vit.name))) as raised:
        load(vit)
    assert "\n" not in str(raised.value)


def images(encoder, count=2):
    size = encoder.preprocessing.size
    return torch.randint(
        0,
        256,
        (count, 3, size, size),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


def hidden_states(model, encoder, pixels):
    with torch.inference_mode():
        return model(
            pixel_values=encoder.preprocessing.normalized(pixels, torch.float32)
        ).last_hidden_state


@pytest.mark.parametrize(
    ("model_type", "settings", "prefix", "tokens"),
    [
        ("clip_vision_model", VISION, 1, 16),
        ("siglip_vision_model", VISION, 0, 16),
        ("dinov2", VISION, 1, 196),
        ("dinov2_with_registers", {**VISION, "num_register_tokens": 4}, 5, 196),
        ("vit", VISION, 1, 16),
    ],
)
def test_patch_tokens_are_the_last_hidden_states_without_prefix(
    tmp_path, model_type, settings, prefix, tokens
):
    model = save(tmp_path / "model", model_type, **settings)
    encoder = load(tmp_path / "model")
    pixels = images(encoder)
    states = hidden_states(model, encoder, pixels)
    patch, cls = encoder.encode(pixels)
    assert patch.shape == (len(pixels), tokens, 32)
    torch.testing.assert_close(patch, states[:, prefix:])
    if prefix:
        torch.testing.assert_close(cls, states[:, 0])
    else:
        assert cls is None


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_image_text_models_use_their_vision_part(tmp_path, family):
    model = save(tmp_path / "both", family, vision_config=VISION, text_config=TEXT)
    encoder = load(tmp_path / "both")
    pixels = images(encoder)
    states = hidden_states(model.vision_model, encoder, pixels)
    patch, cls = encoder.encode(pixels)
    torch.testing.assert_close(patch, states[:, cls is not None :])


def test_resnet_tokens_are_the_third_block_of_the_third_stage(tmp_path):
    model = save(
        tmp_path / "resnet",
        "resnet",
        embedding_size=8,
        hidden_sizes=[16, 32, 64, 128],
        depths=[3, 4, 6, 3],
    )
    seen = []
    model.encoder.stages[2].layers[2].register_forward_hook(
        lambda _module, _inputs, output: seen.append(output)
    )
    encoder = load(tmp_path / "resnet")
    pixels = images(encoder)
    hidden_states(model, encoder, pixels)
    tokens, cls = encoder.encode(pixels)
    assert cls is None
    assert tokens.shape == (2, 196, 64)
    torch.testing.assert_close(tokens, seen[0].flatten(2).transpose(1, 2))
    torch.testing.assert_close(tokens[0, 15], seen[0][0, :, 1, 1])
    parameters = sum(p.numel() for p in ResNetTokens(model).parameters())  # excludes unused layers
    assert parameters < sum(p.numel() for p in model.parameters()) / 2


@pytest.mark.parametrize(
    ("name", "prefix", "tokens", "width"),
    [
        ("random/tiny", 1, 64, 128),
        ("random/clip-vit-base-patch16", 1, 196, 768),
        ("random/clip-vit-large-patch14", 1, 256, 1024),
        ("random/resnet-50", 0, 196, 1024),
        ("random/dinov2-base", 1, 256, 768),
        ("random/siglip-base-patch16-224", 0, 196, 768),
    ],
)
def test_shapes_of_the_published_architectures(name, prefix, tokens, width):
    encoder = parse_encoder(name)
    config = _load_config(encoder)
    assert _measure(encoder, config, _image_size(encoder, config)) == (prefix, tokens, width)
    assert WIDTHS[name.removeprefix("random/")] == width


def test_random_encoders_are_deterministic():
    torch.manual_seed(5)
    first = load_encoder(parse_encoder("random/tiny"), device="cpu")
    here = torch.rand(1)
    torch.manual_seed(5)
    second = load_encoder(parse_encoder("random/tiny"), device="cpu")
    assert first.sha256 == second.sha256
    assert torch.equal(torch.rand(1), here), (
        "building a network must leave the caller's random numbers alone"
    )


def test_tokens_do_not_depend_on_the_rest_of_the_batch():
    encoder = load_encoder(parse_encoder("random/tiny"), device="cpu")
    pixels = images(encoder, 32)
    tokens, cls = encoder.encode(pixels)
    shuffled = torch.randperm(32, generator=torch.Generator().manual_seed(3))
    moved, moved_cls = encoder.encode(pixels[shuffled])
    assert torch.equal(moved, tokens[shuffled])
    assert torch.equal(moved_cls, cls[shuffled])
    alone = torch.zeros_like(pixels)
    alone[7] = pixels[7]
    assert torch.equal(encoder.encode(alone)[0][7], tokens[7])


def test_weights_change_digest_and_revision(vit):
    before = load(vit)
    weights = load_file(vit / "model.safetensors")
    name = next(key for key in weights if "layer" in key and weights[key].ndim == 2)
    weights[name][0, 0] += 1
    save_file(weights, vit / "model.safetensors", metadata={"format": "pt"})
    after = load(vit)
    assert before.sha256 != after.sha256
    assert before.name.revision != after.name.revision
    assert before.name.id == after.name.id == "model"


def test_normalization_from_preprocessor_config(vit):
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (vit / "preprocessor_config.json").write_text(json.dumps(settings))
    preprocessing = load(vit).preprocessing
    assert (preprocessing.mean, preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # PyTorch's compiler uses deprecated PyTorch functions
def test_compiled_encoder():
    plain = load_encoder(parse_encoder("random/tiny"), device="cpu")
    compiled = load_encoder(parse_encoder("random/tiny"), device="cpu")
    compiled.module.compile(dynamic=False)
    pixels = images(plain, 4)
    torch.testing.assert_close(
        compiled.encode(pixels)[0], plain.encode(pixels)[0], atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random/nothing", "unknown encoder. Choose from .*random/tiny"),
        ("imagenet/vgg", "unknown encoder"),
        ("./no/such/folder", "no such folder"),
        ("~nobody/clip", "no such folder"),
        ("two words", "neither a folder nor a Hugging Face id"),
        ("clip", "such as openai/clip-vit-base-patch16"),
        (".", r"needs config\.json"),
    ],
)
def test_malformed_names(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EncoderError, match=message):
        parse_encoder(name)


def test_only_hub_models_have_revisions(vit):
    for name in ("random/tiny", "imagenet/efficientnet-lite0", str(vit)):
        with pytest.raises(EncoderError, match="no --revision"):
            parse_encoder(name, "main")
    assert parse_encoder("openai/clip-vit-base-patch16", "main").revision == "main"


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("swin", SWIN, "patch tokens of"),
        ("bert", {"vocab_size": 32, **SIZES}, "bert: does not accept"),
    ],
)
def test_models_without_patch_tokens_are_refused(tmp_path, model_type, settings, message):
    save(tmp_path / model_type, model_type, **settings)
    with pytest.raises(EncoderError, match=message):
        load(tmp_path / model_type)


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_weights_are_refused(vit, damage):
    path = vit / "model.safetensors"
    if damage == "missing":
        weights = load_file(path)
        weights.pop(next(key for key in weights if "layer" in key))
        save_file(weights, path, metadata={"format": "pt"})
    else:
        path.write_bytes(path.read_bytes()[:1000])
    expected = {
        "missing": "1 tensors are missing",
        "truncated": "cannot be loaded as a vision model",
    }
    with pytest.raises(EncoderError, match=expected[damage]) as caught:
        load(vit)
    assert "\n" not in str(caught.value)


def test_lack_of_memory_is_not_a_problem_of_the_encoder(monkeypatch):
    def fail(*_, **__):
        raise ImportError("libfoo.so: failed to map segment from shared object")

    monkeypatch.setattr(transformers.AutoModel, "from_config", fail)
    with pytest.raises(ImportError, match="failed to map segment"):
        load_encoder(parse_encoder("random/tiny"))


def test_pickled_weights_execute_nothing(vit, tmp_path):
    (vit / "model.safetensors").unlink()
    (vit / "pytorch_model.bin").write_bytes(pickle.dumps(Call(Path.touch, tmp_path / "created")))
    with pytest.raises(EncoderError, match="cannot be loaded"):
        load(vit)
    assert not (tmp_path / "created").exists()


def test_custom_model_code_is_never_run(vit, tmp_path):
    config = json.loads((vit / "config.json").read_text())
    config |= {
        "model_type": "homemade",
        "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"},
    }
    (vit / "config.json").write_text(json.dumps(config))
    (vit / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'created')!r}).touch()\n"
    )
    with pytest.raises(EncoderError, match="never runs code that comes with a model"):
        load(vit)
    assert not (tmp_path / "created").exists()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.slow
def test_offline_models_come_from_the_local_cache(tmp_path, run_python):
    folder = tmp_path / "hub" / "models--some--model"
    save(folder / "snapshots" / COMMIT, "clip_vision_model", **VISION)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    code = """
from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.errors import EncoderError
encoder = load_encoder(parse_encoder("some/model"), device="cpu")
print(encoder.name.id, encoder.name.revision)
for name in ("some/other", "other/model"):
    try:
        load_encoder(parse_encoder(name))
    except EncoderError as error:
        print(error)
"""
    ran = run_python(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", PYTHONWARNINGS="default")
    assert ran.returncode == 0, ran.stderr
    loaded, *errors = ran.stdout.splitlines()
    assert loaded == f"some/model {COMMIT}"
    assert len(errors) == 2
    assert all(
        "not in the local Hugging Face cache" in error and "imagenet/efficientnet-lite0" in error
        for error in errors
    )


def test_too_many_tokens_are_refused(monkeypatch):
    tiny = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    monkeypatch.setitem(
        ARCHITECTURES, "tiny", ("clip_vision_model", tiny | {"image_size": 4096, "patch_size": 15})
    )
    with pytest.raises(
        EncoderError,
        match="random/tiny: 74529 tokens per frame, but the cache supports at most 65536",
    ):
        load_encoder(parse_encoder("random/tiny"))
