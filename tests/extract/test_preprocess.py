import numpy as np
import pytest
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from byov.extract.encoders import CLIP_MEAN, CLIP_STD
from byov.extract.preprocess import Preprocessing, _resample

SIZES = [
    (240, 320),
    (480, 640),
    (337, 211),
    (1080, 1920),
    (100, 133),
    (224, 224),
    (225, 224),
    (64, 300),
    (17, 9),
]
CROP = Preprocessing("crop", 224, CLIP_MEAN, CLIP_STD)
SQUASH = Preprocessing("squash", 224, CLIP_MEAN, CLIP_STD)


def noise(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def blocks(height, width):
    """Make an image with hard edges, where bicubic resizing overshoots."""
    cells = noise(height // 8 + 1, width // 8 + 1)
    return np.repeat(np.repeat(cells, 8, 0), 8, 1)[:height, :width].copy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("content", [noise, blocks])
def test_crop_matches_the_clip_processor(size, content):
    image = content(*size)
    expected = CLIPImageProcessorPil()(
        image, do_normalize=False, do_rescale=False, return_tensors="np"
    )
    ours = CROP.resized(torch.from_numpy(image)[None])[0].numpy()
    difference = np.abs(ours.astype(int) - expected["pixel_values"][0].astype(int))
    assert difference.max() <= 1


def test_normalization_matches_the_clip_processor():
    image = noise(224, 224)
    expected = CLIPImageProcessorPil()(image, return_tensors="np")["pixel_values"]
    ours = CROP.normalized(CROP.resized(torch.from_numpy(image)[None]), torch.float32)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_squash_on_cpu_is_close_to_other_devices(size):
    images = torch.from_numpy(blocks(*size))[None].permute(0, 3, 1, 2)
    elsewhere = _resample(images, 224, 224, slice(0, 224), slice(0, 224)).int()
    ours = SQUASH.resized(images.permute(0, 2, 3, 1)).int()
    assert ours.shape == (1, 3, 224, 224)
    assert (ours - elsewhere).abs().max() <= 2


def test_squash_keeps_the_frame_and_crop_the_center():
    frame = torch.zeros(1, 100, 300, 3, dtype=torch.uint8)
    frame[:, :, :50] = 255
    assert SQUASH.resized(frame)[0, 0, 112, 0] == 255
    assert CROP.resized(frame)[0, 0, 112, 0] == 0


@pytest.mark.parametrize("preprocessing", [SQUASH, CROP])
def test_frames_are_resized_independently(preprocessing):
    frames = torch.from_numpy(np.stack([noise(90, 120), blocks(90, 120), 255 - noise(90, 120)]))
    together = preprocessing.resized(frames)
    for index in range(3):
        assert torch.equal(preprocessing.resized(frames[index : index + 1])[0], together[index])


def test_descriptions_differ():
    others = [
        CROP,
        Preprocessing("squash", 256, CLIP_MEAN, CLIP_STD),
        Preprocessing("squash", 224, CLIP_STD, CLIP_STD),
    ]
    assert SQUASH.describe() not in [other.describe() for other in others]
