import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import seeded

from byov.train import networks
from byov.train.networks import (
    Block,
    Positions,
    draw_visible,
    group,
    interpolate_table,
    pack,
    sincos,
    unpack,
)


@pytest.fixture
def encode(make_clips):
    """Return a function that encodes all frames of clips, given their features (B, T, width)."""

    def run(encoder, features):
        batch, frames = features.shape[:2]
        clips = make_clips(
            batch, frames, features=features, index=torch.arange(frames).expand(batch, -1)
        )
        (latents,) = encoder([clips])
        return latents

    return run


def reference_block(block, x, mask=None):
    """Apply a block to one sequence (T, D), with attention written out explicitly."""
    q, k, v = block.qkv(block.norm1(x)).view(len(x), 3, block.heads, -1).permute(1, 2, 0, 3)
    weights = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        weights = weights.masked_fill(~mask, -torch.inf)
    x = x + block.proj((weights.softmax(dim=-1) @ v).transpose(0, 1).flatten(1))
    return x + block.fc2(F.gelu(block.fc1(block.norm2(x))))


def test_packed_sequences_attend_within_themselves():
    block = Block(8, 2)
    sequences = [torch.randn(2, 5, 8), torch.randn(1, 4, 8), torch.randn(1, 4, 8)]
    outputs = unpack(block(pack(sequences), group(sequences, [False, True, False])), sequences)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = [
        torch.stack([reference_block(block, clip) for clip in sequences[0]]),
        reference_block(block, sequences[1][0], causal)[None],
        reference_block(block, sequences[2][0])[None],
    ]
    for output, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3, 50])
@pytest.mark.parametrize("length", [1, 4, 11])
def test_long_sequences_in_chunks_equal_one_pass(monkeypatch, length, window):
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    block = Block(8, 2)
    x = torch.randn(length, 8)
    index = torch.arange(length)
    mask = None if window is None else (index[:, None] - index).abs() <= window
    with torch.no_grad():
        torch.testing.assert_close(
            block.forward_long(x, window), reference_block(block, x, mask), atol=1e-5, rtol=1e-5
        )


# Positions


def positions_of(positions, index):
    return positions(index, index[:, -1] + 1)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 30])
def test_interpolated_positions_stretch_the_table(length):
    positions = Positions(8, 6, "interpolated")
    expected = F.interpolate(
        positions.table.T[None], size=length, mode="linear", align_corners=False
    ).mT
    torch.testing.assert_close(positions_of(positions, 3 * torch.arange(length)[None]), expected)


def test_index_positions_are_by_frame_number():
    index = torch.tensor([[0, 3, 50], [7, 7, 8]])
    torch.testing.assert_close(positions_of(Positions(4, 6, "index"), index), sincos(index, 6))
    assert torch.equal(positions_of(Positions(4, 6, "none"), index), torch.zeros(1, 3, 6))


def test_share_positions_are_by_normalized_time():
    positions = Positions(4, 6, "normalized")
    encodings = positions(torch.tensor([[0, 3, 6], [0, 1, 2]]), torch.tensor([7, 3]))
    torch.testing.assert_close(encodings[0], encodings[1])
    torch.testing.assert_close(encodings[0], sincos(torch.tensor([0, 1.5, 3]), 6))
    torch.testing.assert_close(
        positions(torch.tensor([[0]]), torch.tensor([1]))[0], positions.table[:1]
    )


# Masking


@pytest.mark.parametrize(
    ("frames", "ratio", "count"),
    [(32, 0.4, 19), (32, 0.8, 6), (20, 0.8, 4), (10, 0.9, 1), (5, 0, 5), (5, 1, 0)],
)
def test_visible_frames_are_sorted_random_and_rounded_down(make_clips, frames, ratio, count):
    visible = draw_visible(make_clips(50, frames), ratio, seeded())
    assert visible.shape == (50, count)
    assert (visible.diff(dim=1) > 0).all()
    assert len({tuple(rows) for rows in visible.tolist()}) > 8 or count in (0, frames)


# Encoder


@pytest.mark.parametrize("position_in", ["features", "latent"])
def test_positions_are_added_to_features_or_latents(make_method, position_in):
    """The LayerNorm of the projection removes the scale of positions that are added to the
    features.
    """
    encoder = make_method(position_in=position_in).encoder
    features = torch.randn(4, 12)
    positions = torch.randn(4, encoder.positions.width)
    small, large = (
        encoder.embed_tokens(features * scale, positions * scale) for scale in (1, 1000)
    )
    expected = torch.zeros_like(small) if position_in == "features" else 999 * positions
    torch.testing.assert_close(large - small, expected, atol=0.1, rtol=1e-3)


@pytest.mark.parametrize("window", [None, 2])
def test_the_attention_window_limits_the_reach_of_a_frame(make_method, encode, window):
    encoder = make_method(depth=1, attention_window=window).encoder
    features = torch.randn(1, 9, 12, requires_grad=True)
    encode(encoder, features)[0, 4].square().sum().backward()
    reached = [frame for frame in range(9) if features.grad[0, frame].abs().sum() > 0]
    assert reached == (list(range(9)) if window is None else [2, 3, 4, 5, 6])


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(
    "position", [("interpolated", "features"), ("index", "features"), ("normalized", "latent")]
)
@pytest.mark.parametrize("frames", [1, 6, 11])
def test_embed_equals_the_forward_pass(make_method, encode, monkeypatch, frames, position, window):
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    encoder = make_method(
        position=position[0], position_in=position[1], attention_window=window
    ).encoder
    features = torch.randn(frames, 12)
    torch.testing.assert_close(
        encoder.embed(features), encode(encoder, features[None])[0], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("counts", [(8, 8), (5, 8), (1, 13)])
def test_interpolated_tables_are_those_of_each_clip_without_its_padding(counts):
    table = sincos(torch.arange(8), 6)
    interpolated = interpolate_table(table, torch.tensor(counts), 13)
    for rows, count in zip(interpolated, counts, strict=True):
        expected = F.interpolate(table.T[None], size=count, mode="linear")[0].T
        torch.testing.assert_close(rows[:count], expected, atol=1e-6, rtol=0)
        assert (rows[count:] == rows[count - 1]).all()
