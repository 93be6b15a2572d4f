from math import log

import pytest
import torch
import torch.nn.functional as F

from byov.train.cycle import cycle_loss


def cycles(there, back, order_prior=None):
    """The loss of clips without padding."""
    return cycle_loss(there, None, back, None, order_prior)


def naive(there, back, order_prior=None):
    """The formula, frame by frame, of one pair of clips."""
    there, back = F.normalize(there, dim=-1), F.normalize(back, dim=-1)
    costs = []
    for t, frame in enumerate(there):
        scores = torch.stack([frame @ other for other in back]) / 0.1
        if order_prior is not None:
            apart = torch.tensor([t / max(len(there) - 1, 1) - s / max(len(back) - 1, 1) for s in range(len(back))])
            scores = scores - apart**2 / (2 * order_prior**2)
        towards = torch.softmax(scores, dim=0)
        neighbor = sum(weight * other for weight, other in zip(towards, back, strict=True))
        home = torch.softmax(torch.stack([neighbor @ other for other in there]) / 0.1, dim=0)
        mu = sum(weight * i for i, weight in enumerate(home))
        var = sum(weight * (i - mu) ** 2 for i, weight in enumerate(home))
        costs.append((mu - t) ** 2 / (var + 1) + 0.1 * torch.log(var + 1))
    return sum(costs) / len(costs) / len(there)


def moving(frames, turns=0.6):
    """A clip whose content goes on steadily: neighboring frames are alike, distant ones are not."""
    angle = torch.linspace(0, turns * 6.28, frames)
    return torch.stack([torch.cos(k * angle) for k in range(1, 7)] + [torch.sin(k * angle) for k in range(1, 7)], -1)


def shuffled(clip, seed=0):
    return clip[torch.randperm(len(clip), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize(("frames", "others"), [(6, 6), (5, 9), (9, 4), (1, 3), (3, 1)])
def test_the_loss_is_the_formula_averaged_over_the_batch(frames, others):
    there, back = torch.randn(3, frames, 8), torch.randn(3, others, 8)
    expected = torch.stack([naive(*pair) for pair in zip(there, back, strict=True)]).mean()
    torch.testing.assert_close(cycles(there, back), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("order_prior", [0.05, 0.2, 1.0])
@pytest.mark.parametrize(("frames", "others"), [(6, 6), (5, 9), (1, 3)])
def test_the_order_prior_is_a_gaussian_of_its_deviation(frames, others, order_prior):
    there, back = torch.randn(2, frames, 8), torch.randn(2, others, 8)
    expected = torch.stack([naive(*pair, order_prior) for pair in zip(there, back, strict=True)]).mean()
    torch.testing.assert_close(cycles(there, back, order_prior), expected, atol=1e-6, rtol=1e-5)


def padded(clip, length):
    """The clip with its last frame repeated, and which frames are repeats."""
    repeats = length - len(clip)
    return torch.cat([clip, clip[-1:].expand(repeats, -1)]), torch.arange(length) >= len(clip)


@pytest.mark.parametrize("order_prior", [None, 0.2])
@pytest.mark.parametrize(("frames", "others"), [(6, 9), (9, 6), (1, 4), (9, 9)])
def test_padding_changes_nothing(frames, others, order_prior):
    there, back = torch.randn(frames, 8), torch.randn(others, 8)
    (long_there, there_padding), (long_back, back_padding) = padded(there, 12), padded(back, 10)
    loss = cycle_loss(long_there[None], there_padding[None], long_back[None], back_padding[None], order_prior)
    torch.testing.assert_close(loss, cycles(there[None], back[None], order_prior), atol=1e-6, rtol=1e-5)


def test_a_short_clip_is_not_punished_for_its_repeats():
    clip, padding = padded(torch.eye(16)[:4], 16)
    told = cycle_loss(clip[None], padding[None], clip[None], padding[None])
    assert told < 0.01
    assert cycles(clip[None], clip[None]) > 10 * told


def test_identical_sequences_of_different_frames_cost_about_nothing():
    clip = torch.eye(16)[None]
    assert cycles(clip, clip) < 0.01


def test_a_sequence_whose_order_is_shuffled_costs_much():
    clip = moving(32)
    alike = cycles(clip[None], clip[None])
    assert cycles(shuffled(clip)[None], clip[None]) > 10 * alike
    assert cycles(clip[None], clip[None].flip(1)) == pytest.approx(alike.item(), rel=1e-4)


def test_with_an_order_prior_a_clip_that_runs_backwards_costs_more():
    clip = moving(32)[None]
    alike, backwards = cycles(clip, clip, 0.15), cycles(clip, clip.flip(1), 0.15)
    assert backwards > 5 * alike
    assert cycles(clip, clip, 100.0).item() == pytest.approx(cycles(clip, clip).item(), rel=1e-3)


def test_sequences_that_have_nothing_to_do_with_each_other_cost_much():
    torch.manual_seed(0)
    clip = moving(32)[None]
    assert cycles(clip, torch.randn(1, 32, 12)) > 5 * cycles(clip, clip)


def test_the_same_action_at_another_pace_costs_little():
    slow, quick = moving(40)[None], moving(20)[None]
    unrelated = torch.randn(1, 20, 12, generator=torch.Generator().manual_seed(0))
    assert cycles(slow, quick) < 0.2 * cycles(slow, unrelated)
    assert cycles(quick, slow) < 0.2 * cycles(unrelated, slow)


def test_frames_that_are_all_the_same_cost_what_chance_costs():
    frames = 5
    clip = torch.ones(1, frames, 3)
    mean, variance = 2.0, 2.0
    expected = sum((mean - t) ** 2 / (variance + 1) + 0.1 * log(variance + 1) for t in range(frames)) / frames**2
    assert cycles(clip, clip).item() == pytest.approx(expected, rel=1e-5)


def test_only_the_direction_of_a_latent_counts():
    there, back = torch.randn(1, 5, 8), torch.randn(1, 6, 8)
    torch.testing.assert_close(cycles(3 * there, 0.2 * back), cycles(there, back))


def test_gradients_flow_to_both_clips_and_descending_on_them_helps():
    torch.manual_seed(0)
    clips = [torch.randn(2, frames, 8, requires_grad=True) for frames in (8, 11)]
    optimizer = torch.optim.Adam(clips, lr=0.05)
    losses = []
    for _ in range(60):
        loss = cycles(*clips) + cycles(*clips[::-1])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert all(clip.grad.isfinite().all() and clip.grad.abs().sum() > 0 for clip in clips)
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]


def test_mixed_precision_does_not_make_it_coarse():
    clip = moving(32)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = cycles(clip, clip)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, cycles(clip, clip))
