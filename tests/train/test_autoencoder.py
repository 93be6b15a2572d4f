import subprocess
import sys

import pytest
import torch

from byov.train import networks
from byov.train.method_settings import ByovSettings
from byov.train.methods.method_registry import build_method
from byov.train.networks import Seen, ToDecode, side_by_side

POSITIONS = ["interpolated", "share", "index", "none"]


def millions(model):
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.fixture
def encode(make_clips):
    """encode(encoder, features): (B, T, width) features of whole clips → (B, T, D) latents."""

    def run(encoder, features):
        batch, frames = features.shape[:2]
        clips = make_clips(batch, frames, features=features, index=torch.arange(frames).expand(batch, -1))
        (latents,) = encoder([encoder.see(clips)])
        return latents

    return run


@pytest.mark.parametrize(
    ("width", "latent", "expected"),
    [(768, 64, 0.905), (768, 128, 3.389), (768, 256, 13.100), (768, 512, 51.494), (1024, 512, 51.757)],
)
def test_the_model_has_as_many_parameters_as_the_papers(width, latent, expected):
    with torch.device("meta"):
        assert round(millions(build_method(width, ByovSettings(latent=latent))), 3) == expected


def test_encoder_and_decoder_have_their_share_of_the_parameters():
    with torch.device("meta"):
        method, large = build_method(768, ByovSettings()), build_method(1024, ByovSettings(latent=512))
    assert (round(millions(method.encoder), 2), round(millions(method.decoder), 2)) == (9.68, 3.42)
    assert (round(millions(large.encoder), 2), round(millions(large.decoder), 2)) == (38.36, 13.40)


def test_clips_that_pass_together_are_those_that_pass_alone(make_method, make_clips, encode):
    encoder, clips, others = make_method().encoder, make_clips(3, 9), make_clips(2, 4, seed=1)
    of_clips, of_others = encoder([encoder.see(clips), encoder.see(others)])
    for given, latents in ((clips, of_clips), (others, of_others)):
        for clip in range(len(given.features)):
            alone = encode(encoder, given.features[clip : clip + 1])[0]
            torch.testing.assert_close(alone, latents[clip], atol=1e-6, rtol=1e-5)


def test_the_decoder_gives_back_the_frames_of_the_tokens_and_not_those_beside_them(make_method):
    decoder = make_method().decoder
    tokens, beside = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    alone, helped, all_of_them = decoder(
        [ToDecode(tokens), ToDecode(tokens, beside=beside), ToDecode(torch.cat([tokens, beside], dim=1))]
    )
    assert alone.shape == helped.shape == (2, 3, 12)
    torch.testing.assert_close(helped, all_of_them[:, :3])
    assert not torch.allclose(helped, alone)


def test_parts_that_run_side_by_side_get_the_answers_to_their_own_questions(make_method, make_clips):
    """Whatever else is asked, in whatever order, and by how many at once."""
    method = make_method()
    clips, others = make_clips(3, 4), make_clips(2, 9, seed=1)
    shared, alone = method.encoder.see(clips), method.encoder.see(others)
    passes = []
    for network in (method.encoder, method.decoder):
        network.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))

    def asking(*seen):
        latents = yield list(seen)
        frames = yield [ToDecode(sequence) for sequence in latents[:1]]
        return torch.stack([part.sum() for part in (*latents, *frames)])

    def silent():
        latents = yield [shared]
        yield []
        return latents[0].sum()

    parts = {"a": asking(shared, alone), "b": asking(alone), "c": silent()}
    found = side_by_side(method.encoder, method.decoder, parts)
    assert passes == [2, 2]  # each sequence once
    (of_shared,), (of_alone,) = method.encoder([shared]), method.encoder([alone])
    expected = {
        "a": [of_shared, of_alone, *method.decoder([ToDecode(of_shared)])],
        "b": [of_alone, *method.decoder([ToDecode(of_alone)])],
    }
    assert list(found) == ["a", "b", "c"]
    for name, tensors in expected.items():
        torch.testing.assert_close(found[name], torch.stack([tensor.sum() for tensor in tensors]))
    torch.testing.assert_close(found["c"], of_shared.sum())


def test_kept_frames_are_seen_with_their_own_positions_and_numbers(make_method, make_clips):
    encoder, clips = make_method(position="index").encoder, make_clips(2, 6)
    kept = torch.tensor([[0, 3], [2, 5]])
    seen, whole = encoder.see(clips, kept), encoder.see(clips)
    for clip, rows in enumerate(kept):
        for name in ("features", "positions", "index"):
            assert torch.equal(getattr(seen, name)[clip], getattr(whole, name)[clip, rows])


@pytest.mark.parametrize("norm", ["after", "before"])
def test_the_last_norm_stands_behind_or_before_the_blocks(make_method, make_clips, encode, norm):
    encoder = make_method(norm=norm).encoder
    with torch.no_grad():
        encoder.norm.weight.fill_(1)
        encoder.norm.bias.fill_(0)
    entering = []
    encoder.blocks[0].register_forward_hook(lambda _, given, __: entering.append(given[0]))
    latents = encode(encoder, make_clips(2, 6).features)
    for rows, normed in ((entering[0], norm == "before"), (latents, norm == "after")):
        deviation = rows.std(dim=-1, unbiased=False)
        assert torch.allclose(deviation, torch.ones_like(deviation), atol=1e-2) == normed


@pytest.mark.parametrize("position_in", ["features", "latent"])
@pytest.mark.parametrize("position", POSITIONS)
def test_positions_tell_frames_apart_that_are_alike(make_method, encode, position, position_in):
    encoder = make_method(position=position, position_in=position_in).encoder
    latents = encode(encoder, torch.ones(1, 6, 12))[0]
    assert torch.allclose(latents[0], latents[3], atol=1e-5) == (position == "none")


def test_positions_are_added_to_the_features_or_to_what_they_are_projected_to(make_method):
    """The LayerNorm before the projection takes the size of features away, and that of positions added before it."""
    features, index = torch.randn(1, 4, 12), torch.arange(4)[None]
    entered = {}
    for place, width in (("features", 12), ("latent", 8)):
        encoder = make_method(position_in=place, depth=1).encoder
        assert encoder.positions.width == width
        rows = []
        encoder.blocks[0].register_forward_hook(lambda _, given, __, rows=rows: rows.append(given[0]))
        positions = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0))
        for scale in (1, 1000):
            encoder([Seen(features * scale, positions * scale, index)])
        entered[place] = rows
    first, scaled = entered["features"]
    torch.testing.assert_close(first, scaled, atol=1e-3, rtol=1e-3)
    first, scaled = entered["latent"]
    torch.testing.assert_close(scaled - first, 999 * positions[0], atol=1e-1, rtol=1e-3)


@pytest.mark.parametrize("position", POSITIONS)
def test_mask_tokens_always_have_positions(make_method, make_clips, position):
    decoder = make_method(position=position).decoder
    kept = torch.zeros(1, 0, dtype=torch.int64)
    tokens = decoder.mask_filled(make_clips(1, 6), torch.zeros(1, 0, 8), kept)
    assert not torch.allclose(tokens[0, 0], tokens[0, 3], atol=1e-3)


@pytest.mark.parametrize("window", [None, 2])
def test_the_window_bounds_how_far_a_frame_reaches(make_method, encode, window):
    encoder = make_method(depth=1, attention_window=window).encoder
    features = torch.randn(1, 9, 12, requires_grad=True)
    encode(encoder, features)[0, 4].square().sum().backward()
    reached = [frame for frame in range(9) if features.grad[0, frame].abs().sum() > 0]
    assert reached == (list(range(9)) if window is None else [2, 3, 4, 5, 6])


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", [("interpolated", "features"), ("index", "features"), ("share", "latent")])
@pytest.mark.parametrize("frames", [1, 6, 11])
def test_embedding_a_whole_video_is_the_forward_pass(make_method, encode, monkeypatch, frames, position, window):
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    encoder = make_method(position=position[0], position_in=position[1], attention_window=window).encoder
    features = torch.randn(frames, 12)
    found = encoder.embed(features)
    assert not found.requires_grad
    torch.testing.assert_close(found, encode(encoder, features[None])[0].detach(), atol=1e-5, rtol=1e-5)


LONG_VIDEO = """
import resource, sys, torch
from byov.train.method_settings import choose
from byov.train.methods.method_registry import build_method
torch.set_num_threads(1)
window = None if sys.argv[2] == "None" else int(sys.argv[2])
settings = choose("demo", latent=8, depth=1, decoder_depth=1, heads=2, attention_window=window)
model = build_method(16, settings)
features = torch.randn(int(sys.argv[1]), 16)
model.embed(features[:100])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert model.embed(features).isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 30])
def test_memory_does_not_grow_with_the_square_of_the_length(window):
    """12,000 frames: a matrix of all their pairs alone would take 576 MB for each head."""
    run = subprocess.run(
        [sys.executable, "-c", LONG_VIDEO, "12000", str(window)], capture_output=True, text=True, check=True
    )
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    assert int(run.stdout) * unit_bytes < 200 * 2**20
