import itertools
from dataclasses import replace

import pytest
import torch

from byov.train.cycle import cycle_loss
from byov.train.networks import ToDecode, draw_visible, masked

MASK_SEED = 5


def seeded():
    return torch.Generator().manual_seed(MASK_SEED)


def kept_frames(method, clips):
    """What the method leaves visible: {"self": (ego, exo), "cross": (ego, exo)}."""
    random = seeded()
    return {
        name: [draw_visible(view, ratio, random) for view in clips]
        for name, ratio in (("self", method.settings.mask_self), ("cross", method.settings.mask_cross))
    }


def modeling(method):
    """The masked objectives that are on."""
    return ["self"] * method.settings.self_view + ["cross"] * method.settings.cross_view


def reconstructions(method, clips):
    """What the decoder's head gives for each objective that is on: {"self": (ego, exo), "cross": (ego, exo)}."""
    outputs = []
    hook = method.decoder.head.register_forward_hook(lambda _, __, frames: outputs.append(frames))
    try:
        method(clips, seeded())
    finally:
        hook.remove()
    (rows,) = outputs
    shapes = [view.features.shape[:2] for _ in modeling(method) for view in clips]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    frames = iter(part.view(*shape, -1) for part, shape in zip(parts, shapes, strict=True))
    return {name: [next(frames), next(frames)] for name in modeling(method)}


@pytest.fixture
def pair(make_clips):
    """An ego and an exo clip of two items, of different lengths."""
    return make_clips(2, 6), make_clips(2, 9, seed=1)


def with_gradient(clips):
    return replace(clips, features=clips.features.clone().requires_grad_())


def reached(output, clips):
    """(B, T): the frames that `output` depends on."""
    (gradient,) = torch.autograd.grad(output.square().sum(), clips.features, retain_graph=True, allow_unused=True)
    if gradient is None:
        return torch.zeros(clips.features.shape[:2], dtype=torch.bool)
    return gradient.abs().sum(-1) > 0


def losses_and_gradients(step, method):
    method.zero_grad()
    losses = step()
    losses["loss"].backward()
    gradients = {
        name: torch.zeros_like(weights) if weights.grad is None else weights.grad.clone()
        for name, weights in method.named_parameters()
    }
    return {name: loss.item() for name, loss in losses.items()}, gradients


SWITCHES = [
    {},
    {"causal": False},
    {"self_view": False},
    {"cross_view": False},
    {"masked_only": True},
    {"masked_only": True, "causal": False, "cross_view": False},
]
POSITIONS = [
    {"position": "interpolated"},
    {"position": "index"},
    {"position": "share", "position_in": "latent"},
]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_the_joined_step_is_the_plain_one(naive_training, make_method, make_clips, window, switches, position):
    sizes = ((1, 6, 6), (3, 6, 9), (2, 7, 4))
    for (batch, frames, others), ratios in itertools.product(sizes, ((0.4, 0.8), (0, 1), (1, 0))):
        method = make_method(
            attention_window=window,
            **{"mask_self": ratios[0], "mask_cross": ratios[1]} | position | switches,
            unchecked=True,  # some have nothing to learn from
        )
        clips = make_clips(batch, frames), make_clips(batch, others, seed=1)
        joined = losses_and_gradients(lambda: method(clips, seeded()), method)  # noqa: B023
        plain = losses_and_gradients(lambda: naive_training.naive_losses(method, clips, seeded()), method)  # noqa: B023
        assert joined[0] == pytest.approx(plain[0], abs=1e-5)
        for name, gradient in plain[1].items():
            torch.testing.assert_close(
                joined[1][name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_the_loss_is_the_sum_of_those_that_are_on(make_method, pair, switches):
    method = make_method(**switches)
    losses = method(pair, seeded())
    assert set(losses) == {"loss", *modeling(method)}
    assert losses["loss"].item() == pytest.approx(sum(losses[name].item() for name in modeling(method)))


def test_the_error_is_the_mean_over_all_frames_or_over_the_masked_ones(make_method, pair):
    for masked_only in (False, True):
        method = make_method(masked_only=masked_only)
        losses = method(pair, seeded())
        kept, decoded = kept_frames(method, pair), reconstructions(method, pair)
        for name in ("self", "cross"):
            expected = 0.0
            for view, visible, reconstructed in zip(pair, kept[name], decoded[name], strict=True):
                error = (reconstructed - view.features).square().mean(-1)
                expected += (error[masked(visible, view.sampled)] if masked_only else error).mean().item()
            assert losses[name].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("mask_self", "mask_cross"), [(0, 0), (0, 1), (1, 0), (1, 1), (0.99, 0.01)])
@pytest.mark.parametrize("masked_only", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_masking_nothing_and_everything_both_work(make_method, pair, mask_self, mask_cross, masked_only, window):
    method = make_method(
        mask_self=mask_self, mask_cross=mask_cross, masked_only=masked_only, cycle=1.0, attention_window=window
    )
    losses, gradients = losses_and_gradients(lambda: method(pair, seeded()), method)
    assert all(torch.tensor(value).isfinite() for value in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert (losses["self"] == 0) == (masked_only and mask_self == 0)
    assert (losses["cross"] == 0) == (masked_only and mask_cross == 0)


def test_with_everything_masked_msm_sees_nothing_at_all(make_method, make_clips):
    method = make_method(mask_self=1, cross_view=False)
    seen = [reconstructions(method, (make_clips(2, 6, seed), make_clips(2, 9, seed + 10)))["self"] for seed in (0, 1)]
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("causal", [True, False])
def test_in_msm_the_content_of_a_masked_frame_reaches_no_reconstruction(make_method, make_clips, causal):
    method = make_method(mask_self=0.5, causal=causal, cross_view=False)
    ego, exo = with_gradient(make_clips(3, 8)), with_gradient(make_clips(3, 10, seed=1))
    decoded = reconstructions(method, (ego, exo))["self"]
    kept = kept_frames(method, (ego, exo))["self"]
    for view, other, reconstructed, visible in zip((ego, exo), (exo, ego), decoded, kept, strict=True):
        for clip in range(3):
            found = reached(reconstructed[clip], view)
            assert found[clip].tolist() == (~masked(visible, view.sampled)[clip]).tolist()
            assert not found[[other for other in range(3) if other != clip]].any()
        assert not reached(reconstructed, other).any()


def test_in_msm_a_masked_frame_may_be_anything_and_its_reconstruction_stays_the_same(make_method, make_clips):
    method, ego, exo = make_method(mask_self=0.5, cross_view=False), make_clips(3, 8), make_clips(3, 8, seed=1)
    hidden = masked(kept_frames(method, (ego, exo))["self"][0], 8)
    changed = replace(ego, features=torch.where(hidden[..., None], 1000.0, ego.features))
    before = reconstructions(method, (ego, exo))["self"][0]
    assert torch.equal(before, reconstructions(method, (changed, exo))["self"][0])
    changed = replace(ego, features=torch.where(hidden[..., None], ego.features, 1000.0))
    assert not torch.allclose(before, reconstructions(method, (changed, exo))["self"][0])


def test_in_mcm_all_frames_of_the_other_view_reach_each_frame_and_masked_own_ones_do_not(make_method, make_clips):
    method = make_method(mask_cross=0.7)
    ego, exo = with_gradient(make_clips(2, 7)), with_gradient(make_clips(2, 10, seed=1))
    decoded = reconstructions(method, (ego, exo))["cross"]
    kept = kept_frames(method, (ego, exo))["cross"]
    for own, other, reconstructed, visible in zip((ego, exo), (exo, ego), decoded, kept, strict=True):
        for clip, frame in itertools.product(range(2), range(own.sampled)):
            own_reached, other_reached = (reached(reconstructed[clip, frame], view) for view in (own, other))
            assert other_reached[clip].all()
            assert not other_reached[1 - clip].any()
            assert own_reached[clip].tolist() == (~masked(visible, own.sampled)[clip]).tolist()
            assert not own_reached[1 - clip].any()


def test_with_all_own_frames_masked_mcm_sees_the_other_view_alone(make_method, make_clips):
    ego, exo = with_gradient(make_clips(1, 7)), with_gradient(make_clips(1, 5, seed=1))
    decoded = reconstructions(make_method(mask_cross=1, self_view=False), (ego, exo))["cross"]
    assert not reached(decoded[0], ego).any()
    assert reached(decoded[0], exo).all()
    assert not reached(decoded[1], exo).any()
    assert reached(decoded[1], ego).all()


@pytest.mark.parametrize("causal", [True, False])
def test_the_decoder_lets_nothing_flow_backwards_in_msm(make_method, causal):
    decoder = make_method().decoder
    tokens, others = torch.randn(2, 6, 8, requires_grad=True), torch.randn(2, 9, 8)
    decoded, _ = decoder([ToDecode(tokens, causal=causal), ToDecode(others)])
    for frame in range(6):
        (gradient,) = torch.autograd.grad(decoded[:, frame].square().sum(), tokens, retain_graph=True)
        found = (gradient.abs().sum(-1) > 0).tolist()
        assert found == [[not causal or earlier <= frame for earlier in range(6)]] * 2


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_step_reconstructs_each_frame_from_those_before_it(make_method, make_clips, causal):
    """The encoder mixes visible frames in both directions, unless they are further apart than its window reaches."""
    method = make_method(mask_self=0.4, causal=causal, attention_window=1)
    clips = tuple(
        with_gradient(make_clips(1, frames, seed, index=10 * torch.arange(frames)[None]))
        for seed, frames in enumerate((8, 10))
    )
    decoded, kept = reconstructions(method, clips), kept_frames(method, clips)
    for place, view in enumerate(clips):
        seen = {name: (~masked(kept[name][place], view.sampled)[0]).tolist() for name in ("self", "cross")}
        for frame in range(view.sampled):
            by_self = reached(decoded["self"][place][0, frame], view)[0].tolist()
            past = [visible and (not causal or t <= frame) for t, visible in enumerate(seen["self"])]
            assert by_self == past
            by_cross = reached(decoded["cross"][place][0, frame], view)[0].tolist()
            assert by_cross == seen["cross"]  # MCM is never causal


@pytest.mark.parametrize("position", ["index", "share"])
def test_positions_belong_to_the_frame_and_not_to_its_place_among_the_visible(make_method, make_clips, position):
    """A clip is encoded like itself with all masked frames cut out, if these keep their numbers."""
    method = make_method(position=position, mask_self=0.5, cross_view=False)
    ego, exo = make_clips(2, 8), make_clips(2, 8, seed=1)
    kept = kept_frames(method, (ego, exo))["self"][0]
    encoded = []
    hook = method.encoder.register_forward_hook(lambda _, __, latents: encoded.append(latents))
    method((ego, exo), seeded())
    hook.remove()
    of_ego, _ = encoded[0]
    for clip, rows in enumerate(kept):
        alone = replace(
            ego,
            features=ego.features[clip, rows][None],
            index=ego.index[clip, rows][None],
            length=ego.length[clip : clip + 1],
        )
        (latents,) = method.encoder([method.encoder.see(alone)])
        torch.testing.assert_close(of_ego[clip], latents[0], atol=1e-6, rtol=1e-5)


def test_the_cycle_term_is_added_with_its_weight_in_both_directions(make_method, pair):
    method = make_method(cycle=3.0)
    plain, losses = make_method()(pair, seeded()), method(pair, seeded())
    there, back = method.encoder([method.encoder.see(view) for view in pair])
    expected = (cycle_loss(there, None, back, None) + cycle_loss(back, None, there, None)).item()
    assert losses["cycle"].item() == pytest.approx(expected, rel=1e-4)
    assert losses["loss"].item() == pytest.approx(plain["loss"].item() + 3 * expected, rel=1e-5)


def test_the_cycle_term_is_told_of_padding_and_of_the_order_prior(make_method, pair):
    padding = [torch.arange(view.sampled).expand(2, -1) >= view.sampled - 2 for view in pair]
    padded = tuple(replace(view, padding=repeats) for view, repeats in zip(pair, padding, strict=True))
    method = make_method(cycle=1.0, order_prior=0.2)
    there, back = method.encoder([method.encoder.see(view) for view in padded])
    ways = (there, padding[0], back, padding[1]), (back, padding[1], there, padding[0])
    expected = sum(cycle_loss(*way, 0.2).item() for way in ways)
    assert method(padded, seeded())["cycle"].item() == pytest.approx(expected, rel=1e-4)
    assert method(pair, seeded())["cycle"].item() != pytest.approx(expected, rel=1e-2)


def test_the_cycle_term_alone_trains_the_encoder_alone(make_method, pair):
    method = make_method(self_view=False, cross_view=False, cycle=1.0)
    losses, gradients = losses_and_gradients(lambda: method(pair, seeded()), method)
    assert set(losses) == {"loss", "cycle"}
    trained = {name.split(".")[0] for name, gradient in gradients.items() if gradient.abs().sum() > 0}
    assert trained == {"encoder"}


def test_every_weight_learns_in_a_full_step(make_method, pair):
    method = make_method()
    _, gradients = losses_and_gradients(lambda: method(pair, seeded()), method)
    assert [name for name, gradient in gradients.items() if gradient.abs().sum() == 0] == []


def test_the_masks_come_from_the_generator_alone(make_method, pair):
    method = make_method()
    first, again = (method(pair, seeded())["loss"].item() for _ in range(2))
    other = method(pair, torch.Generator().manual_seed(MASK_SEED + 1))["loss"].item()
    assert first == again != other


def test_a_switch_that_is_off_does_not_change_the_masks_of_the_others(make_method, pair):
    both = make_method()(pair, seeded())
    for name, switch in (("self", "cross_view"), ("cross", "self_view")):
        alone = make_method(**{switch: False})(pair, seeded())
        assert alone[name].item() == pytest.approx(both[name].item(), rel=1e-5)


def test_mixed_precision_gives_the_same_losses_roughly(make_method, pair):
    method = make_method(cycle=1.0)
    exact, _ = losses_and_gradients(lambda: method(pair, seeded()), method)

    def mixed_step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return method(pair, seeded())

    mixed, gradients = losses_and_gradients(mixed_step, method)
    assert mixed == pytest.approx(exact, rel=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches",
    [{"cross_view": False}, {"self_view": False}, {}],
    ids=["MSM alone", "MCM alone", "both"],
)
def test_one_batch_is_learned_by_heart(make_method, make_clips, switches):
    method = make_method(latent=32, heads=4, **switches)
    clips = make_clips(1, 6), make_clips(1, 5, seed=1)
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    losses = []
    for _ in range(250):
        loss = method(clips, seeded())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]


@pytest.mark.parametrize("recipe", ["paper", "official", "cycle"])
def test_a_recipe_takes_the_clips_that_it_names(make_method, training_data, recipe):
    sampler = make_method(width=training_data.width, recipe=recipe).sampler(training_data.of("train"))
    draws = [sampler.draw(0, epoch, item) for epoch in range(40) for item in range(sampler.items)]
    views = {(first.video.view, second.video.view) for first, second in draws}
    assert views == ({("ego", "exo")} if recipe != "official" else set(itertools.product(("ego", "exo"), repeat=2)))
    whole = {draw.end - draw.first == draw.video.frames for pair in draws for draw in pair}
    assert whole == ({True} if recipe != "cycle" else {True, False})
    assert sampler.items == len(training_data.of("train"))
