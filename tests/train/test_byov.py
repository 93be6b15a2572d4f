import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.train.conftest import seeded

from byov.train.methods.byov import cycle_loss, retrieve
from byov.train.networks import draw_visible, masked_frames


def visible_frames(method, clips):
    generator = seeded()
    ratios = {"self": method.mask_self, "cross": method.mask_cross}
    return {
        name: [draw_visible(view, ratio, generator) for view in clips]
        for name, ratio in ratios.items()
    }


def reconstructions(method, clips):
    """Return the decoder's outputs for each objective: {"self": [ego, exo], "cross": [ego,
    exo]}.
    """
    outputs = []
    hook = method.decoder.register_forward_hook(lambda _, __, frames: outputs.extend(frames))
    method(clips, seeded())
    hook.remove()
    names = ["self"] * method.self_view + ["cross"] * method.cross_view
    return {name: outputs[2 * number : 2 * number + 2] for number, name in enumerate(names)}


@pytest.fixture
def pair(make_clips):
    return make_clips(2, 6), make_clips(2, 9, seed=1)


def with_gradient(clips):
    return replace(clips, features=clips.features.clone().requires_grad_())


def reached(output, clips):
    """Return a mask (B, T) that is True for the frames that the output depends on."""
    (gradient,) = torch.autograd.grad(
        output.square().sum(), clips.features, retain_graph=True, allow_unused=True
    )
    return torch.zeros_like(clips.padding) if gradient is None else gradient.abs().sum(-1) > 0


def losses_and_gradients(forward, method):
    method.zero_grad()
    losses = forward()
    losses["loss"].backward()
    gradients = {
        name: weights.grad
        for name, weights in method.named_parameters()
        if weights.grad is not None
    }
    return {name: loss.item() for name, loss in losses.items()}, gradients


SWITCHES = [
    {},
    {"causal": "none"},
    {"causal": "strict"},
    {"self_view": False},
    {"cross_view": False},
    {"masked_only": True},
]
POSITIONS = [
    {"position": "interpolated"},
    {"position": "index"},
    {"position": "normalized", "position_in": "latent"},
]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_joined_passes_equal_separate_ones(
    naive_training, make_method, make_clips, window, switches, position
):
    sizes = ((1, 6, 6), (2, 7, 4))
    for (batch, frames, others), ratios in itertools.product(sizes, ((0.4, 0.8), (0, 1), (1, 0))):
        masks = {"mask_self": ratios[0], "mask_cross": ratios[1]}
        method = make_method(attention_window=window, **masks | position | switches)
        clips = make_clips(batch, frames), make_clips(batch, others, seed=1)
        joined = losses_and_gradients(lambda m=method, c=clips: m(c, seeded()), method)
        naive = losses_and_gradients(
            lambda m=method, c=clips: naive_training.naive_losses(m, c, seeded()), method
        )
        assert joined[0] == pytest.approx(naive[0], abs=1e-5)
        for name, gradient in naive[1].items():
            torch.testing.assert_close(joined[1][name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("mask_self", "mask_cross"), [(0, 0), (0, 1), (1, 0), (1, 1), (0.99, 0.01)]
)
@pytest.mark.parametrize("masked_only", [False, True])
def test_any_masking_ratio_works(make_method, pair, mask_self, mask_cross, masked_only):
    method = make_method(
        mask_self=mask_self, mask_cross=mask_cross, masked_only=masked_only, cycle=1.0
    )
    losses, gradients = losses_and_gradients(lambda: method(pair, seeded()), method)
    assert all(torch.tensor(value).isfinite() for value in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert (losses["self"] == 0) == (masked_only and mask_self == 0)
    assert (losses["cross"] == 0) == (masked_only and mask_cross == 0)


def test_cross_view_modeling_sees_visible_own_frames_and_all_of_the_other_view(
    make_method, make_clips
):
    method = make_method(mask_cross=0.7)
    ego = with_gradient(make_clips(2, 7))
    exo = with_gradient(make_clips(2, 10, seed=1))
    decoded = reconstructions(method, (ego, exo))["cross"]
    visible = visible_frames(method, (ego, exo))["cross"]
    for own, other, reconstructed, rows in zip(
        (ego, exo), (exo, ego), decoded, visible, strict=True
    ):
        for clip, frame in itertools.product(range(2), range(own.sampled)):
            from_own, from_other = (
                reached(reconstructed[clip, frame], view) for view in (own, other)
            )
            assert from_other[clip].all()
            assert from_own[clip].tolist() == (~masked_frames(rows, own.sampled)[clip]).tolist()
            assert not from_other[1 - clip].any()
            assert not from_own[1 - clip].any()


@pytest.mark.parametrize("causal", [True, False])
def test_the_causal_decoder_sees_no_later_frame(make_method, make_clips, causal):
    """Use an attention window smaller than the distance between frames, so that the encoder does
    not mix them.
    """
    method = make_method(mask_self=0.4, causal="decoder" if causal else "none", attention_window=1)
    clips = tuple(
        with_gradient(make_clips(1, frames, seed, index=10 * torch.arange(frames)[None]))
        for seed, frames in enumerate((8, 10))
    )
    decoded = reconstructions(method, clips)
    visible = visible_frames(method, clips)
    for number, view in enumerate(clips):
        seen = {
            name: (~masked_frames(visible[name][number], view.sampled)[0]).tolist()
            for name in decoded
        }
        for frame in range(view.sampled):
            from_self = reached(decoded["self"][number][0, frame], view)[0].tolist()
            assert from_self == [
                shown and (not causal or t <= frame) for t, shown in enumerate(seen["self"])
            ]
            assert reached(decoded["cross"][number][0, frame], view)[0].tolist() == seen["cross"]


@pytest.mark.parametrize("window", [None, 20])
def test_strict_causal_modeling_sees_only_earlier_frames(make_method, make_clips, window):
    method = make_method(mask_self=0.4, causal="strict", attention_window=window)
    clips = tuple(with_gradient(make_clips(1, 8, seed)) for seed in range(2))
    decoded = reconstructions(method, clips)
    visible = visible_frames(method, clips)
    for view, frames, rows in zip(clips, decoded["self"], visible["self"], strict=True):
        shown = (~masked_frames(rows, view.sampled)[0]).tolist()
        for t, frame in enumerate(frames[0]):
            assert reached(frame, view)[0].tolist() == [
                is_shown and s < t for s, is_shown in enumerate(shown)
            ]


def test_official_recipe_averages_self_view_modeling_over_both_views(make_method, pair):
    losses = make_method(recipe="official")(pair, seeded())
    torch.testing.assert_close(losses["loss"], losses["self"] / 2 + losses["cross"])


def naive_retrieval(ego, exo, prior):
    """Retrieve the frames of one exo clip for each frame of one ego clip; clips are (latents,
    times, padding).
    """
    (queries, query_times, _) = ego
    (keys, key_times, padding) = exo
    retrieved = []
    for query, time in zip(queries, query_times, strict=True):
        weights = torch.tensor(
            [
                0.0
                if hidden
                else math.exp(
                    torch.cosine_similarity(query, key, dim=0) / 0.1
                    - (time - s) ** 2 / 2 / prior**2
                )
                for key, s, hidden in zip(keys, key_times.tolist(), padding.tolist(), strict=True)
            ]
        )
        unit_keys = torch.stack([key / key.norm() for key in keys])
        retrieved.append((weights / weights.sum()) @ unit_keys * len(query) ** 0.5)
    return torch.stack(retrieved)


def test_the_bottleneck_retrieves_similar_frames_at_a_similar_time():
    queries = torch.randn(2, 5, 4, generator=seeded())
    keys = torch.randn(2, 7, 4, generator=seeded(1))
    times = torch.rand(2, 5, generator=seeded(2))
    other_times = torch.rand(2, 7, generator=seeded(3))
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    retrieved = retrieve(queries, keys, times, other_times, padding, 0.3)
    for clip in range(2):
        own = queries[clip], times[clip], None
        other = keys[clip], other_times[clip], padding[clip]
        torch.testing.assert_close(retrieved[clip], naive_retrieval(own, other, 0.3))


def test_the_bottleneck_sees_the_other_view_only_where_the_prior_allows_it(make_method, make_clips):
    """With a narrow prior, a frame of one view is reconstructed from the frame of the other at the
    same time.
    """
    method = make_method(recipe="bottleneck", time_prior=1e-3, attention_window=1)
    index = 10 * torch.arange(6)[None]
    same = {
        "index": index,
        "first": torch.zeros(1, dtype=torch.int64),
        "video_length": torch.tensor([51]),
    }
    clips = tuple(with_gradient(make_clips(1, 6, seed, **same)) for seed in range(2))
    latents = method.encoder(clips)
    for own, other, frames in zip(
        clips, clips[::-1], method.bottleneck(clips, latents, latents), strict=True
    ):
        for t, frame in enumerate(frames[0]):
            assert reached(frame, other)[0].nonzero().flatten().tolist() == [t]
            assert reached(frame, own).all(), "the mean features of the own clip"


def test_diagnostics_of_a_model_that_uses_the_other_view(make_method, make_clips):
    """The context changes matter for the bottleneck, and trivial losses are those of mean
    frames.
    """
    method = make_method(recipe="bottleneck", time_prior=0.05)
    clips = make_clips(3, 6), make_clips(3, 6, seed=1)
    values = method.diagnose(clips, seeded())
    assert values["self"] == pytest.approx(method(clips, seeded())["self"].item())
    changed = {name: values[f"cross/{name}"] for name in ("other", "reversed", "mean")}
    assert all(value != pytest.approx(values["cross"], rel=1e-4) for value in changed.values())
    features = [view.features for view in clips]
    both = torch.cat(features).flatten(0, 1)
    assert values["trivial/constant"] == pytest.approx(
        2 * both.var(dim=0, correction=0).mean().item(), rel=1e-5
    )
    view = sum(x.flatten(0, 1).var(dim=0, correction=0).mean().item() for x in features)
    assert values["trivial/view"] == pytest.approx(view, rel=1e-5)
    video = sum(x.var(dim=1, correction=0).mean().item() for x in features)
    assert values["trivial/video"] == pytest.approx(video, rel=1e-5)


def test_diagnostics_of_a_decoder_that_ignores_the_other_view(make_method, make_clips):
    method = make_method()
    for block in method.decoder.blocks:  # without attention, a token sees only itself
        torch.nn.init.zeros_(block.proj.weight)
    values = method.diagnose((make_clips(3, 6), make_clips(3, 6, seed=1)), seeded())
    assert [values[f"cross/{name}"] for name in ("other", "reversed", "mean")] == [
        values["cross"]
    ] * 3


@pytest.mark.parametrize("position", ["interpolated", "normalized", "index", "none"])
def test_mask_tokens_always_have_positions(make_method, make_clips, position):
    visible = torch.zeros(1, 0, dtype=torch.int64)
    tokens = make_method(position=position).decoder.tokens(
        make_clips(1, 6), torch.zeros(1, 0, 8), visible
    )
    assert not torch.allclose(tokens[0, 0], tokens[0, 3], atol=1e-3)


def test_cycles_are_added_in_both_directions(make_method, pair):
    padding = [torch.arange(view.sampled).expand(2, -1) >= view.sampled - 2 for view in pair]
    clips = tuple(replace(view, padding=each) for view, each in zip(pair, padding, strict=True))
    method = make_method(cycle=3.0, order_prior=0.2)
    losses = method(clips, seeded())
    plain = make_method()(clips, seeded())
    there, back = method.encoder(clips)
    forward = cycle_loss(there, padding[0], back, padding[1], 0.2)
    expected = forward + cycle_loss(back, padding[1], there, padding[0], 0.2)
    assert losses["cycle"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert losses["loss"].item() == pytest.approx(
        plain["loss"].item() + 3 * expected.item(), rel=1e-4
    )


def naive_cycle(home, away, order_prior):
    """Compute the cycle loss of one pair of clips without padding, frame by frame."""
    home = torch.nn.functional.normalize(home, dim=-1)
    away = torch.nn.functional.normalize(away, dim=-1)
    index = torch.arange(len(home)).float()
    costs = []
    for t, frame in enumerate(home):
        logits = away @ frame / 0.1
        if order_prior is not None:
            times = torch.arange(len(away)) / max(1, len(away) - 1)
            logits = logits - (t / max(1, len(home) - 1) - times).square() / (2 * order_prior**2)
        returns = (home @ (logits.softmax(dim=0) @ away) / 0.1).softmax(dim=0)
        mean = returns @ index
        variance = returns @ (index - mean).square()
        costs.append((mean - t).square() / (variance + 1) + 0.1 * torch.log1p(variance))
    return sum(costs) / len(home) ** 2


@pytest.mark.parametrize("order_prior", [None, 0.2])
def test_the_cycle_loss_equals_the_formula_without_padding(order_prior):
    home = torch.randn(3, 6, 8, generator=seeded())
    away = torch.randn(3, 5, 8, generator=seeded(1))
    lengths = torch.tensor([6, 4, 1]), torch.tensor([5, 2, 3])
    paddings = torch.arange(6) >= lengths[0][:, None], torch.arange(5) >= lengths[1][:, None]
    items = [
        naive_cycle(h[:t], a[:s], order_prior)
        for h, a, t, s in zip(home, away, *lengths, strict=True)
    ]
    loss = cycle_loss(home, paddings[0], away, paddings[1], order_prior)
    assert loss.item() == pytest.approx(sum(items).item() / 3, rel=1e-4)


def test_the_model_has_as_many_parameters_as_the_papers(make_method):
    for width, latent, expected in (
        (768, 64, 0.905),
        (768, 128, 3.389),
        (768, 256, 13.1),
        (1024, 512, 51.757),
    ):
        with torch.device("meta"):
            method = make_method(
                width=width, latent=latent, depth=12, decoder_depth=4, heads=16, frames=32
            )
        assert round(sum(weights.numel() for weights in method.parameters()) / 1e6, 3) == expected
