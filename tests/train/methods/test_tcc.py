from math import log

import pytest
import torch
from tests.train.methods.golden_cases import cases
from tests.train.methods.random_clips import nowhere, random_frames

from byov.train.methods.tcc import LEAST_VARIANCE, cycle_back

CASES = cases("tcc")
LOSSES = {"regression_mse_var": "variance", "regression_mse": "mse", "classification": "classification"}
SIMILARITIES = {"l2": "l2", "cosine": "dot"}


def random_times(*shape, seed=2):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).sort().values


def pairs_of(constants, clips):
    if constants["pairs"].startswith("every ordered pair"):
        return [(i, j) for i in range(clips) for j in range(clips) if i != j]
    return [(i, i + 1) for i in range(0, clips, 2)]


@pytest.mark.parametrize("behind", [0, 3], ids=["full", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_the_golden_cases_are_met(meets_golden, lengthened, case, behind):
    arrays, constants = CASES[case]
    optional = {"variance_lambda": "variance_weight", "label_smoothing": "label_smoothing"}
    switches = {ours: constants[theirs] for theirs, ours in optional.items() if theirs in constants}

    def loss_of(clips):
        pairs = pairs_of(constants, len(clips))
        home, home_padding = lengthened(torch.cat([clips[i] for i, _ in pairs]), behind)
        away, away_padding = lengthened(torch.cat([clips[j] for _, j in pairs]), 2 * behind, seed=1)
        times = [torch.tensor(arrays[f"frames_{i}"] / arrays["video_lengths"][i]) for i, _ in pairs]
        return cycle_back(
            home,
            away,
            lengthened(torch.stack(times), behind)[0],
            home_padding,
            away_padding,
            loss=LOSSES[constants["loss_type"]],
            similarity=SIMILARITIES[constants["similarity_type"]],
            temperature=constants["temperature"],
            **switches,
        )

    meets_golden(loss_of, arrays, constants)


def softmax(logits):
    weights = torch.exp(torch.stack(logits) - max(logits))
    return weights / weights.sum()


def naive(home, away, times, loss, similarity, temperature=0.1, variance_weight=0.001, smoothing=0.1):
    """The formula, frame by frame, of one pair without padding."""

    def s(x, y):
        return (x @ y if similarity == "dot" else -(x - y).square().sum()) / (len(x) * temperature)

    costs = []
    for i, u in enumerate(home):
        there = softmax([s(u, v) for v in away])
        neighbor = sum(weight * v for weight, v in zip(there, away, strict=True))
        back = softmax([s(neighbor, u) for u in home])
        mean = back @ times
        variance = back @ (times - mean).square()
        error = (times[i] - mean).square()
        if loss == "classification":
            target = torch.full_like(back, smoothing / len(home))
            target[i] += 1 - smoothing
            costs.append(-(target @ back.log()))
        else:
            costs.append(error if loss == "mse" else error / variance + variance_weight * variance.log())
    return sum(costs) / len(costs)


@pytest.mark.parametrize("similarity", ["l2", "dot"])
@pytest.mark.parametrize("loss", LOSSES.values())
def test_a_batch_is_the_mean_of_the_formula_over_its_pairs_without_their_padding(loss, similarity):
    home, away, times = random_frames(3, 6, 8), random_frames(3, 5, 8, seed=1), random_times(3, 6)
    lengths = torch.tensor([6, 4, 3]), torch.tensor([2, 5, 4])
    paddings = torch.arange(6) >= lengths[0][:, None], torch.arange(5) >= lengths[1][:, None]
    found = cycle_back(home, away, times, *paddings, loss=loss, similarity=similarity)
    pairs = zip(home, away, times, *lengths, strict=True)
    expected = [naive(u[:t], v[:s], at[:t], loss, similarity) for u, v, at, t, s in pairs]
    assert found.item() == pytest.approx((sum(expected) / 3).item(), rel=1e-9)


@pytest.mark.parametrize("similarity", ["l2", "dot"])
@pytest.mark.parametrize("loss", LOSSES.values())
def test_padded_frames_neither_go_nor_are_found(lengthened, loss, similarity):
    home, away, times = random_frames(2, 6, 8), random_frames(2, 5, 8, seed=1), random_times(2, 6)
    longer_home, home_padding = lengthened(home, 3)
    longer_away, away_padding = lengthened(away, 2)
    longer_times, _ = lengthened(times, 3)
    short, long = [home, away], [longer_home, longer_away]
    for clips in short + long:
        clips.requires_grad_()
    switches = {"loss": loss, "similarity": similarity}
    expected = cycle_back(*short, times, nowhere(home), nowhere(away), **switches)
    found = cycle_back(*long, longer_times, home_padding, away_padding, **switches)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = torch.autograd.grad(found, long)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected, short), strict=True):
        frames = wanted.shape[1]
        torch.testing.assert_close(gradient[:, :frames], wanted)
        assert not gradient[:, frames:].any()


@pytest.mark.parametrize("loss", LOSSES.values())
def test_gradients_are_those_of_finite_differences(loss):
    home, away = random_frames(2, 4, 3).requires_grad_(), random_frames(2, 3, 3, seed=1).requires_grad_()
    times, paddings = random_times(2, 4), (nowhere(home), nowhere(away))
    assert torch.autograd.gradcheck(lambda u, v: cycle_back(u, v, times, *paddings, loss=loss), (home, away))


@pytest.mark.parametrize("loss", LOSSES.values())
def test_a_clip_finds_itself_at_least_cost_in_any_order(loss):
    home, times = 9 * torch.eye(5)[None], torch.linspace(0, 1, 5)[None]
    away = {"same": home, "reversed": home.flip(1), "two alike": home[:, [0, 0, 2, 3, 4]], "one": home[:, [0] * 5]}
    costs = {
        name: cycle_back(home, frames, times, nowhere(home), nowhere(home), loss=loss, label_smoothing=0.0).item()
        for name, frames in away.items()
    }
    assert costs["same"] == pytest.approx(costs["reversed"])  # any one-to-one map returns
    assert costs["same"] < costs["two alike"] < costs["one"]


def test_pairs_in_another_order_cost_the_same():
    clips, times, order = (random_frames(3, 6, 8), random_frames(3, 5, 8, seed=1)), random_times(3, 6), [2, 0, 1]
    paddings = [nowhere(clip) for clip in clips]
    swapped = cycle_back(*(clip[order] for clip in clips), times[order], *paddings)
    assert swapped.item() == pytest.approx(cycle_back(*clips, times, *paddings).item(), rel=1e-12)


def clips_of(kind, frames, dtype):
    home, away = random_frames(2, frames[0], 8, dtype=dtype), random_frames(2, frames[1], 8, seed=1, dtype=dtype)
    if kind == "all the same":
        return torch.ones_like(home), torch.ones_like(away)
    if kind == "zero":
        return torch.zeros_like(home), torch.zeros_like(away)
    if kind == "one video":
        return home * 100, home[:, :1].repeat(1, frames[1], 1) * 100
    return home * kind, away * kind


@pytest.mark.parametrize("similarity", ["l2", "dot"])
@pytest.mark.parametrize("loss", LOSSES.values())
@pytest.mark.parametrize("frames", [(6, 5), (1, 5), (6, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["all the same", "zero", "one video", 1e-15, 1.0, 30.0, 1e6, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_and_gradients_are_finite(loss, similarity, frames, kind, dtype):
    home, away = (clips.requires_grad_() for clips in clips_of(kind, frames, dtype))
    times = random_times(2, frames[0]).float()
    cost = cycle_back(home, away, times, nowhere(home), nowhere(away), loss=loss, similarity=similarity)
    cost.backward()
    assert cost.dtype == torch.float32
    assert cost.isfinite()
    assert home.grad.isfinite().all()
    assert away.grad.isfinite().all()


def test_a_hard_match_costs_what_the_least_variance_costs():
    home, times = 1000 * torch.eye(5)[None], torch.linspace(0, 1, 5)[None]
    right = cycle_back(home, home, times, nowhere(home), nowhere(home))
    assert right.item() == pytest.approx(0.001 * log(LEAST_VARIANCE))
    wrong = cycle_back(home, home[:, :1], times, nowhere(home), nowhere(home[:, :1]))  # all return to time 0
    assert wrong.item() == pytest.approx((times.square().mean() / LEAST_VARIANCE).item() + 0.001 * log(LEAST_VARIANCE))


def test_frames_that_are_all_the_same_cost_what_chance_costs():
    clips, times = torch.ones(2, 5, 8), torch.linspace(0, 1, 5).expand(2, 5)
    paddings = nowhere(clips), nowhere(clips)
    assert cycle_back(clips, clips, times, *paddings, loss="classification").item() == pytest.approx(log(5))
    assert cycle_back(clips, clips, times, *paddings, loss="mse").item() == pytest.approx(0.125)
    assert cycle_back(clips, clips, times, *paddings).item() == pytest.approx(1 + 0.001 * log(0.125))


def test_distances_do_not_drown_far_from_the_origin():
    home, away, times = random_frames(2, 6, 8), random_frames(2, 5, 8, seed=1), random_times(2, 6)
    paddings = nowhere(home), nowhere(away)
    near = cycle_back(home, away, times, *paddings).item()
    offset = 1024.0  # float32 keeps 1e-4 of a frame there, and its square has only 0.1 left
    far = cycle_back((home + offset).float(), (away + offset).float(), times, *paddings).item()
    assert far == pytest.approx(near, rel=1e-2)


def test_autocast_around_it_does_not_make_it_coarse():
    home, away = random_frames(2, 6, 8, dtype=torch.float32), random_frames(2, 5, 8, seed=1, dtype=torch.float32)
    arguments = home, away, random_times(2, 6), nowhere(home), nowhere(away)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = cycle_back(*arguments)
    assert torch.equal(mixed, cycle_back(*arguments))
