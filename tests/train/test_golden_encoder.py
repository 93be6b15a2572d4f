"""Tests that the encoder returns the same outputs as the published code with the same weights."""

import numpy as np
import pytest
import torch

from byov.train.networks import Encoder

# Maps parameter names in the published code to our names.
RENAMED = (
    ("embedding_layer.", "project."),
    ("encoder.", "blocks."),
    (".attn.qkv.", ".qkv."),
    (".attn.proj.", ".proj."),
    (".mlp.fc", ".fc"),
)


@pytest.fixture
def published(golden_state):
    state = dict(golden_state)
    positions = state.pop("pos_embed")
    for theirs, ours in RENAMED:
        state = {name.replace(theirs, ours, 1): values for name, values in state.items()}
    latent, width = state["project.1.weight"].shape
    encoder = Encoder(
        width=width, latent=latent, depth=2, heads=4, frames=positions.shape[-2], norm="before"
    )
    encoder.load_state_dict(state)
    torch.testing.assert_close(
        encoder.positions.table, positions.reshape(encoder.positions.table.shape)
    )
    return encoder.eval()


@pytest.mark.parametrize("name", ["input_8", "input_5", "input_21"])
def test_published_weights_give_the_published_outputs(published, golden_encoder, make_clips, name):
    frames = torch.from_numpy(golden_encoder[name])
    frames = frames if frames.ndim == 3 else frames[None]
    expected = golden_encoder[name.replace("input", "output")].reshape(*frames.shape[:2], -1)
    index = torch.arange(frames.shape[1]).expand(len(frames), -1)
    with torch.no_grad():
        (encoded,) = published([make_clips(*frames.shape[:2], features=frames, index=index)])
    np.testing.assert_allclose(encoded.numpy(), expected, atol=1e-5, rtol=0)
    for clip, features in enumerate(frames):
        np.testing.assert_allclose(
            published.embed(features).numpy(), expected[clip], atol=1e-5, rtol=0
        )
