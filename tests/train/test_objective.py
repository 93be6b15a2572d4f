import itertools

import pytest
import torch

from byov.train.cycle import cycle_loss
from byov.train.objective import MaskedEgoExo, draw_visible, masked
from byov.train.sampling import Clips
from byov.train.settings import ObjectiveSettings

MASK_SEED = 5


def seeded():
    return torch.Generator().manual_seed(MASK_SEED)


def kept_frames(objective, ego, exo):
    """What `objective` leaves visible: {"self": (ego, exo), "cross": (ego, exo)}."""
    generator = seeded()
    return {
        name: [draw_visible(len(view.frames), view.length, ratio, generator) for view in (ego, exo)]
        for name, ratio in (("self", objective.settings.mask_self), ("cross", objective.settings.mask_cross))
    }


def reconstructions(objective, model, ego, exo):
    """What the decoder's head gives for each objective that is on: {"self": (ego, exo), "cross": (ego, exo)}."""
    outputs = []
    hook = model.decoder.head.register_forward_hook(lambda _, __, frames: outputs.append(frames))
    try:
        objective(model, ego, exo, seeded())
    finally:
        hook.remove()
    (rows,) = outputs
    shapes = [(len(view.frames), view.length) for _ in objective.modeling for view in (ego, exo)]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    frames = iter(part.view(*shape, -1) for part, shape in zip(parts, shapes, strict=True))
    return {name: [next(frames), next(frames)] for name in objective.modeling}


def with_gradient(clips):
    return Clips(clips.frames.clone().requires_grad_(), clips.index)


def reached(output, clips):
    """(B, T): the frames that `output` depends on."""
    (gradient,) = torch.autograd.grad(output.square().sum(), clips.frames, retain_graph=True, allow_unused=True)
    if gradient is None:
        return torch.zeros(clips.frames.shape[:2], dtype=torch.bool)
    return gradient.abs().sum(-1) > 0


def losses_and_gradients(step, model):
    model.zero_grad()
    losses = step()
    losses["loss"].backward()
    gradients = {
        name: torch.zeros_like(weights) if weights.grad is None else weights.grad.clone()
        for name, weights in model.named_parameters()
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


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("position", ["interpolated", "index"])
def test_the_joined_step_is_the_plain_one(naive_training, make_model, make_clips, window, switches, position):
    model = make_model(attention_window=window, position=position)
    sizes = ((1, 6, 6), (3, 6, 9), (2, 7, 4))
    for (batch, frames, others), ratios in itertools.product(sizes, ((0.4, 0.8), (0, 1), (1, 0))):
        # not checked: some have nothing to learn from, which a training refuses
        settings = ObjectiveSettings.model_construct(mask_self=ratios[0], mask_cross=ratios[1], **switches)
        objective = MaskedEgoExo(settings)
        ego, exo = make_clips(batch, frames), make_clips(batch, others, seed=1)
        joined = losses_and_gradients(lambda: objective(model, ego, exo, seeded()), model)  # noqa: B023
        plain = losses_and_gradients(
            lambda: naive_training.naive_losses(objective, model, ego, exo, seeded()),  # noqa: B023
            model,
        )
        assert joined[0] == pytest.approx(plain[0], abs=1e-5)
        for name, gradient in plain[1].items():
            torch.testing.assert_close(
                joined[1][name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_the_loss_is_the_sum_of_those_that_are_on(make_model, make_clips, switches):
    objective = MaskedEgoExo(ObjectiveSettings(**switches))
    losses = objective(make_model(), make_clips(2, 6), make_clips(2, 9, seed=1), seeded())
    assert set(losses) == {"loss", *objective.modeling}
    assert losses["loss"].item() == pytest.approx(sum(losses[name].item() for name in objective.modeling))


def test_the_error_is_the_mean_over_all_frames_or_over_the_masked_ones(make_model, make_clips):
    model, ego, exo = make_model(), make_clips(2, 6), make_clips(2, 9, seed=1)
    for masked_only in (False, True):
        objective = MaskedEgoExo(ObjectiveSettings(masked_only=masked_only))
        losses = objective(model, ego, exo, seeded())
        kept, frames_hat = kept_frames(objective, ego, exo), reconstructions(objective, model, ego, exo)
        for name in ("self", "cross"):
            expected = 0.0
            for view, visible, decoded in zip((ego, exo), kept[name], frames_hat[name], strict=True):
                error = (decoded - view.frames).square().mean(-1)
                expected += (error[masked(visible, view.length)] if masked_only else error).mean().item()
            assert losses[name].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("mask_self", "mask_cross"), [(0, 0), (0, 1), (1, 0), (1, 1), (0.99, 0.01)])
@pytest.mark.parametrize("masked_only", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_masking_nothing_and_everything_both_work(make_model, make_clips, mask_self, mask_cross, masked_only, window):
    objective = MaskedEgoExo(
        ObjectiveSettings(mask_self=mask_self, mask_cross=mask_cross, masked_only=masked_only, cycle=1.0)
    )
    model = make_model(attention_window=window)
    losses, gradients = losses_and_gradients(
        lambda: objective(model, make_clips(2, 6), make_clips(2, 9, seed=1), seeded()), model
    )
    assert all(torch.tensor(value).isfinite() for value in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert (losses["self"] == 0) == (masked_only and mask_self == 0)
    assert (losses["cross"] == 0) == (masked_only and mask_cross == 0)


def test_with_everything_masked_msm_sees_nothing_at_all(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(mask_self=1, cross_view=False))
    model = make_model()
    seen = [
        reconstructions(objective, model, make_clips(2, 6, seed), make_clips(2, 9, seed + 10))["self"]
        for seed in (0, 1)
    ]
    for first, second in zip(*seen, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("causal", [True, False])
def test_in_msm_the_content_of_a_masked_frame_reaches_no_reconstruction(make_model, make_clips, causal):
    objective = MaskedEgoExo(ObjectiveSettings(mask_self=0.5, causal=causal, cross_view=False))
    model = make_model()
    ego, exo = with_gradient(make_clips(3, 8)), with_gradient(make_clips(3, 10, seed=1))
    decoded = reconstructions(objective, model, ego, exo)["self"]
    kept = kept_frames(objective, ego, exo)["self"]
    for view, other, frames_hat, visible in zip((ego, exo), (exo, ego), decoded, kept, strict=True):
        for clip in range(3):
            found = reached(frames_hat[clip], view)
            assert found[clip].tolist() == (~masked(visible, view.length)[clip]).tolist()
            assert not found[[other for other in range(3) if other != clip]].any()
        assert not reached(frames_hat, other).any()


def test_in_msm_a_masked_frame_may_be_anything_and_its_reconstruction_stays_the_same(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(mask_self=0.5, cross_view=False))
    model, ego, exo = make_model(), make_clips(3, 8), make_clips(3, 8, seed=1)
    hidden = masked(kept_frames(objective, ego, exo)["self"][0], 8)
    changed = Clips(torch.where(hidden[..., None], 1000.0, ego.frames), ego.index)
    before = reconstructions(objective, model, ego, exo)["self"][0]
    assert torch.equal(before, reconstructions(objective, model, changed, exo)["self"][0])
    changed = Clips(torch.where(hidden[..., None], ego.frames, 1000.0), ego.index)
    assert not torch.allclose(before, reconstructions(objective, model, changed, exo)["self"][0])


def test_in_mcm_all_frames_of_the_other_view_reach_each_frame_and_masked_own_ones_do_not(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(mask_cross=0.7))
    model = make_model()
    ego, exo = with_gradient(make_clips(2, 7)), with_gradient(make_clips(2, 10, seed=1))
    decoded = reconstructions(objective, model, ego, exo)["cross"]
    kept = kept_frames(objective, ego, exo)["cross"]
    for own, other, frames_hat, visible in zip((ego, exo), (exo, ego), decoded, kept, strict=True):
        for clip, frame in itertools.product(range(2), range(own.length)):
            own_reached, other_reached = (reached(frames_hat[clip, frame], view) for view in (own, other))
            assert other_reached[clip].all()
            assert not other_reached[1 - clip].any()
            assert own_reached[clip].tolist() == (~masked(visible, own.length)[clip]).tolist()
            assert not own_reached[1 - clip].any()


def test_with_all_own_frames_masked_mcm_sees_the_other_view_alone(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(mask_cross=1, self_view=False))
    ego, exo = with_gradient(make_clips(1, 7)), with_gradient(make_clips(1, 5, seed=1))
    decoded = reconstructions(objective, make_model(), ego, exo)["cross"]
    assert not reached(decoded[0], ego).any()
    assert reached(decoded[0], exo).all()
    assert not reached(decoded[1], exo).any()
    assert reached(decoded[1], ego).all()


@pytest.mark.parametrize("causal", [True, False])
def test_the_decoder_lets_nothing_flow_backwards_in_msm(make_model, causal):
    decoder = make_model().decoder
    tokens, others = torch.randn(2, 6, 8, requires_grad=True), torch.randn(2, 9, 8)
    decoded, _ = decoder([tokens, others], [causal, False])
    for frame in range(6):
        (gradient,) = torch.autograd.grad(decoded[:, frame].square().sum(), tokens, retain_graph=True)
        found = (gradient.abs().sum(-1) > 0).tolist()
        assert found == [[not causal or earlier <= frame for earlier in range(6)]] * 2


@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_step_reconstructs_each_frame_from_those_before_it(make_model, make_clips, causal):
    """The encoder mixes visible frames in both directions, unless they are further apart than its window reaches."""
    objective = MaskedEgoExo(ObjectiveSettings(mask_self=0.4, causal=causal))
    model = make_model(attention_window=1)
    ego, exo = (
        Clips(with_gradient(clips).frames, 10 * torch.arange(clips.length)[None])
        for clips in (make_clips(1, 8), make_clips(1, 10, seed=1))
    )
    decoded = reconstructions(objective, model, ego, exo)
    kept = kept_frames(objective, ego, exo)
    for place, view in enumerate((ego, exo)):
        seen = {name: (~masked(kept[name][place], view.length)[0]).tolist() for name in ("self", "cross")}
        for frame in range(view.length):
            by_self = reached(decoded["self"][place][0, frame], view)[0].tolist()
            past = [visible and (not causal or t <= frame) for t, visible in enumerate(seen["self"])]
            assert by_self == past
            by_cross = reached(decoded["cross"][place][0, frame], view)[0].tolist()
            assert by_cross == seen["cross"]  # MCM is never causal


def test_positions_belong_to_the_frame_and_not_to_its_place_among_the_visible(make_model, make_clips):
    """A clip is encoded like itself with all masked frames cut out, if these keep their numbers."""
    model = make_model(position="index")
    objective = MaskedEgoExo(ObjectiveSettings(mask_self=0.5, cross_view=False))
    ego, exo = make_clips(2, 8), make_clips(2, 8, seed=1)
    kept = kept_frames(objective, ego, exo)["self"][0]
    encoded = []
    hook = model.encoder.register_forward_hook(lambda _, __, latents: encoded.append(latents))
    objective(model, ego, exo, seeded())
    hook.remove()
    for clip, rows in enumerate(kept):
        frames, index = ego.frames[clip, rows][None], ego.index[clip, rows][None]
        (alone,) = model.encoder([model.encoder.place(frames, index)], [index])
        torch.testing.assert_close(encoded[0][0][clip], alone[0], atol=1e-6, rtol=1e-5)


def test_the_cycle_term_is_added_with_its_weight_in_both_directions(make_model, make_clips):
    model, ego, exo = make_model(), make_clips(2, 6), make_clips(2, 9, seed=1)
    plain = MaskedEgoExo(ObjectiveSettings())(model, ego, exo, seeded())
    losses = MaskedEgoExo(ObjectiveSettings(cycle=3.0))(model, ego, exo, seeded())
    there, back = (model.encoder([model.encoder.place(v.frames, v.index)], [v.index])[0] for v in (ego, exo))
    expected = (cycle_loss(there, back) + cycle_loss(back, there)).item()
    assert losses["cycle"].item() == pytest.approx(expected, rel=1e-4)
    assert losses["loss"].item() == pytest.approx(plain["loss"].item() + 3 * expected, rel=1e-5)


def test_the_cycle_term_alone_trains_the_encoder_alone(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(self_view=False, cross_view=False, cycle=1.0))
    model = make_model()
    losses, gradients = losses_and_gradients(
        lambda: objective(model, make_clips(2, 6), make_clips(2, 9, seed=1), seeded()), model
    )
    assert set(losses) == {"loss", "cycle"}
    trained = {name.split(".")[0] for name, gradient in gradients.items() if gradient.abs().sum() > 0}
    assert trained == {"encoder"}


def test_every_weight_learns_in_a_full_step(make_model, make_clips):
    model = make_model()
    _, gradients = losses_and_gradients(
        lambda: MaskedEgoExo(ObjectiveSettings())(model, make_clips(2, 6), make_clips(2, 9, seed=1), seeded()), model
    )
    assert [name for name, gradient in gradients.items() if gradient.abs().sum() == 0] == []


def test_the_masks_come_from_the_generator_alone(make_model, make_clips):
    model, ego, exo = make_model(), make_clips(2, 6), make_clips(2, 9, seed=1)
    first, again = (MaskedEgoExo(ObjectiveSettings())(model, ego, exo, seeded())["loss"].item() for _ in range(2))
    other = MaskedEgoExo(ObjectiveSettings())(model, ego, exo, torch.Generator().manual_seed(MASK_SEED + 1))[
        "loss"
    ].item()
    assert first == again != other


def test_a_switch_that_is_off_does_not_change_the_masks_of_the_others(make_model, make_clips):
    model, ego, exo = make_model(), make_clips(2, 6), make_clips(2, 9, seed=1)
    both = MaskedEgoExo(ObjectiveSettings())(model, ego, exo, seeded())
    for name, switch in (("self", "cross_view"), ("cross", "self_view")):
        alone = MaskedEgoExo(ObjectiveSettings(**{switch: False}))(model, ego, exo, seeded())
        assert alone[name].item() == pytest.approx(both[name].item(), rel=1e-5)


def test_mixed_precision_gives_the_same_losses_roughly(make_model, make_clips):
    objective = MaskedEgoExo(ObjectiveSettings(cycle=1.0))
    model, ego, exo = make_model(), make_clips(2, 6), make_clips(2, 9, seed=1)
    exact, _ = losses_and_gradients(lambda: objective(model, ego, exo, seeded()), model)

    def mixed_step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return objective(model, ego, exo, seeded())

    mixed, gradients = losses_and_gradients(mixed_step, model)
    assert mixed == pytest.approx(exact, rel=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize(
    "switches",
    [{"cross_view": False}, {"self_view": False}, {}],
    ids=["MSM alone", "MCM alone", "both"],
)
def test_one_batch_is_learnt_by_heart(make_model, make_clips, switches):
    objective = MaskedEgoExo(ObjectiveSettings(**switches))
    model = make_model(latent=32, heads=4)
    ego, exo = make_clips(1, 6), make_clips(1, 5, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(250):
        loss = objective(model, ego, exo, seeded())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]
