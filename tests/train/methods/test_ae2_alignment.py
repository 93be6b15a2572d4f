import numpy as np
import pytest
import torch
from tests.train.methods.golden_cases import cases
from tests.train.methods.random_clips import nowhere, random_frames

from byov.train.methods.ae2_alignment import ae2_losses, half_of
from byov.train.soft_dtw import matching_costs, soft_dtw

CASES = cases("ae2_alignment")
MINIMA = ["weighted", "log-sum-exp"]


def at(*positions):
    """The same positions in both clips of each pair."""
    return torch.tensor(positions), torch.tensor(positions)


def losses_of(first, second, positions, **switches):
    return ae2_losses(first, second, nowhere(first), nowhere(second), positions, **switches)


def golden_positions(arrays, constants, pairs):
    if "subset_0" not in arrays:
        return None
    positions = [torch.stack([torch.tensor(arrays[f"subset_{pair[k]}"]) for pair in pairs]) for k in (0, 1)]
    if constants["cyclic_half"] is not None:
        later = torch.tensor([constants["cyclic_half"] == 1] * len(pairs))
        positions = [half_of(of_clip, later) for of_clip in positions]
    return tuple(positions)


@pytest.mark.parametrize("behind", [0, 3], ids=["full", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_the_golden_cases_are_met(meets_golden, lengthened, case, behind):
    arrays, constants = CASES[case]

    def loss_of(clips):
        pairs = [(k, k + 1) for k in range(0, len(clips), 2)]
        first, first_padding = lengthened(torch.cat([clips[i] for i, _ in pairs]), behind)
        second, second_padding = lengthened(torch.cat([clips[j] for _, j in pairs]), 2 * behind, seed=1)
        loss, alignment, hinge = ae2_losses(
            first,
            second,
            first_padding,
            second_padding,
            golden_positions(arrays, constants, pairs),
            hinge_weight=constants["ratio"],
            margin=constants["beta"],
            gamma=constants["gamma_s"],
            temperature=constants["gamma_f"],
        )
        assert hinge.item() == pytest.approx(arrays["weighted_hinge"].item(), rel=1e-5, abs=1e-6)
        assert loss.item() == pytest.approx((alignment + hinge).item())
        return loss

    assert constants["scale_factor"] == 0.01
    meets_golden(loss_of, arrays, constants)


@pytest.mark.parametrize("case", CASES)
def test_the_golden_costs_and_tables_are_met(case):
    arrays, constants = CASES[case]
    first, second = (torch.tensor(arrays[f"embeddings_{k}"])[None] for k in (0, 1))
    costs = matching_costs(first, second, constants["gamma_f"])
    table = soft_dtw(costs, constants["gamma_s"])
    np.testing.assert_allclose(costs[0], arrays["cost_of_first_pair"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(table[0], arrays["table_of_first_pair"], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def cost_of(load_benchmark):
    """cost_of((T, D), (S, D), minimum): R of the plain soft DTW at its end."""
    naive_soft_dtw = load_benchmark("naive_soft_dtw").naive_soft_dtw

    def cost(first, second, minimum):
        products = first @ second.T / 0.1
        return naive_soft_dtw((products.logsumexp(0) - products)[None], 0.1, minimum)[0, -1, -1].item()

    return cost


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_batch_is_each_mean_of_the_formula_over_its_pairs_without_their_padding(cost_of, minimum, margin):
    first, second = random_frames(3, 6, 8) / 2, random_frames(3, 5, 8, seed=1) / 2
    lengths = (6, 3, 5), (2, 5, 4)
    paddings = tuple(
        torch.arange(clips.shape[1]) >= torch.tensor(of)[:, None]
        for clips, of in zip((first, second), lengths, strict=True)
    )
    positions = (
        torch.tensor([[1, 2, 4, 5], [0, 1, 2, 5], [0, 2, 3, 4]]),
        torch.tensor([[0, 1, 3, 4], [0, 1, 2, 4], [1, 2, 3, 4]]),
    )
    found = ae2_losses(first, second, *paddings, positions, hinge_weight=2.0, margin=margin, minimum=minimum)
    alignments, hinges = [], []
    for item, (rows, columns) in enumerate(zip(*lengths, strict=True)):
        a, b = first[item, :rows], second[item, :columns]
        some_a, some_b = (
            clip[[place for place in of_clip[item].tolist() if place < len(clip)]]
            for clip, of_clip in zip((a, b), positions, strict=True)
        )
        forwards, backwards = (0.01 * cost_of(some_a, other, minimum) for other in (some_b, some_b.flip(0)))
        alignments.append((0.01 * cost_of(a, b, minimum) + forwards) / 2)
        hinges.append(2 * max(0, forwards - backwards + margin))
    alignment, hinge = (sum(values) / 3 for values in (alignments, hinges))
    assert hinge > 0
    assert [loss.item() for loss in found] == pytest.approx([alignment + hinge, alignment, hinge], rel=1e-9)


@pytest.mark.parametrize("positions", [None, at([0, 2, 3], [1, 2, 4])], ids=["plain", "contrastive"])
def test_padded_frames_are_not_aligned(lengthened, same_without_padding, positions):
    short = [random_frames(2, 6, 8), random_frames(2, 5, 8, seed=1)]
    long, paddings = zip(*(lengthened(clips, frames) for clips, frames in zip(short, (2, 4), strict=True)), strict=True)
    for clips in (*short, *long):
        clips.requires_grad_()
    padded_positions = positions and tuple(  # and three that are padding behind them
        torch.cat([of_clip, clips.shape[1] + torch.tensor([[0, 1, 1]] * 2)], dim=1)
        for of_clip, clips in zip(positions, short, strict=True)
    )
    found = ae2_losses(*long, *paddings, padded_positions, margin=0.5)
    same_without_padding(found, long, losses_of(*short, positions, margin=0.5), short)


@pytest.mark.parametrize("places", [([0, 1, 2], [3, 4, 5]), ([3, 4, 5], [0, 1, 2]), ([3, 4, 5], [3, 4, 5])], ids=str)
def test_positions_that_are_all_padding_are_one_frame(places):
    first, second = random_frames(1, 6, 8), random_frames(1, 6, 8, seed=1)
    padding = torch.arange(6)[None] >= 3
    first[:, 3:], second[:, 3:] = first[:, 2:3], second[:, 2:3]  # as clips are padded: the last frame again
    first.requires_grad_(), second.requires_grad_()
    switches = {"margin": 0.5, "gamma": 2.0, "temperature": 2.0}  # soft: more frames are more paths
    found = ae2_losses(first, second, padding, padding, tuple(torch.tensor([of]) for of in places), **switches)
    without = tuple(torch.tensor([[2] if of[0] == 3 else of]) for of in places)
    expected = ae2_losses(first, second, padding, padding, without, **switches)
    assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in expected])
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found[0], (first, second)))


def test_gradients_are_those_of_finite_differences():
    clips = [random_frames(2, 4, 3).requires_grad_(), random_frames(2, 3, 3, seed=1).requires_grad_()]
    positions = at([0, 1, 2], [0, 1, 2])
    assert torch.autograd.gradcheck(lambda *given: losses_of(*given, positions, gamma=0.5, margin=0.3), clips)


def test_in_order_costs_least_and_reversed_is_punished_twice():
    clip, positions = 3 * torch.eye(6)[None], at([0, 1, 2, 4, 5])
    orders = {"same": clip, "two swapped": clip[:, [0, 2, 1, 3, 4, 5]], "reversed": clip.flip(1)}
    losses = {name: [loss.item() for loss in losses_of(clip, other, positions)] for name, other in orders.items()}
    assert losses["same"][1] < losses["two swapped"][1] < losses["reversed"][1]
    assert losses["same"][2] == losses["two swapped"][2] == 0
    assert losses["reversed"][2] > losses["reversed"][1] / 4


def test_the_margin_is_by_how_much_reversed_must_cost_more():
    clip, positions = 3 * torch.eye(6)[None], at([0, 1, 2, 4, 5])
    loss, alignment, hinge = losses_of(clip, clip, positions, margin=10.0, hinge_weight=3.0)
    without = losses_of(clip, clip, positions, margin=20.0, hinge_weight=3.0)
    assert without[2].item() - hinge.item() == pytest.approx(30)
    assert loss.item() == pytest.approx((alignment + hinge).item())


def test_the_half_of_the_positions():
    positions = torch.arange(7).repeat(2, 1)
    assert half_of(positions, torch.tensor([False, True])).tolist() == [[0, 1, 2], [4, 5, 6]]
    assert half_of(positions[:, :6], torch.tensor([False, True])).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert half_of(positions[:, :1], torch.tensor([False, True])).tolist() == [[0], [0]]


def test_pairs_in_another_order_cost_the_same():
    clips, order = (random_frames(3, 6, 8), random_frames(3, 5, 8, seed=1)), [2, 0, 1]
    positions = at([0, 1, 3], [1, 2, 4], [0, 2, 3])
    swapped = losses_of(*(clip[order] for clip in clips), tuple(of_clip[order] for of_clip in positions))
    expected = losses_of(*clips, positions)
    assert [loss.item() for loss in swapped] == pytest.approx([loss.item() for loss in expected], rel=1e-12)


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_and_gradients_are_finite(finite_on_extremes, minimum, dtype):
    def losses(*clips):
        positions = tuple(torch.arange(min(3, clip.shape[1])).expand(2, -1) for clip in clips)
        return losses_of(*clips, positions, minimum=minimum, margin=0.1)

    finite_on_extremes(losses, dtype)


def test_autocast_around_it_does_not_make_it_coarse():
    clips = random_frames(2, 6, 8, dtype=torch.float32), random_frames(2, 5, 8, seed=1, dtype=torch.float32)
    positions = at([0, 1, 3], [1, 2, 4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = losses_of(*clips, positions)
    assert all(torch.equal(*losses) for losses in zip(mixed, losses_of(*clips, positions), strict=True))
