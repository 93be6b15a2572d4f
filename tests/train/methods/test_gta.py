from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from tests.train.methods.golden_cases import cases
from tests.train.methods.random_clips import nowhere, random_frames

from byov.train.methods.gta import gta_losses

CASES = cases("gta")
MINIMA = {"dtw_prob": "weighted", "dtw_minGamma": "log-sum-exp"}


def unit_vectors(*shape, seed=0, dtype=torch.float64):
    return F.normalize(random_frames(*shape, seed=seed, dtype=dtype), dim=-1)


def losses_of(first, second, **switches):
    return gta_losses(first, second, nowhere(first), nowhere(second), **switches)


@pytest.mark.parametrize("behind", [0, 3], ids=["full", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_the_golden_cases_are_met(meets_golden, lengthened, case, behind):
    arrays, constants = CASES[case]

    def loss_of(clips):
        firsts = torch.cat([clips[0]] * (len(clips) - 1))  # the first video with each other
        first, first_padding = lengthened(firsts, behind)
        second, second_padding = lengthened(torch.cat(clips[1:]), 2 * behind, seed=1)
        loss, *parts = gta_losses(
            first,
            second,
            first_padding,
            second_padding,
            gamma=constants["gamma_s"],
            temperature=constants["gamma_f"],
            label_smoothing=constants["label_smoothing"],
            cycle=constants["alignment_type"].endswith("consistency"),
            minimum=MINIMA[constants["softning"]],
            factor=constants.get("outer_factor", 1.0),
        )
        assert loss.item() == pytest.approx(sum(parts).item())
        return loss

    meets_golden(loss_of, arrays, constants)


@pytest.fixture(scope="module")
def naive(load_benchmark):
    """naive(first, second, **switches): the formula of one pair without padding, (T, D) and (S, D)."""
    naive_soft_dtw = load_benchmark("naive_soft_dtw").naive_soft_dtw

    def spread(table):
        columns = [torch.exp(-column) / torch.exp(-column).sum() for column in table.T]
        return torch.stack(columns, dim=1)

    def compute(first, second, gamma, temperature, smoothing, weight, minimum):
        products = first @ second.T / temperature
        there = naive_soft_dtw((products.logsumexp(0) - products)[None], gamma, minimum)[0]
        back = naive_soft_dtw((products.T.logsumexp(0) - products.T)[None], gamma, minimum)[0]
        returns = (spread(there) @ spread(back)).T
        torch.testing.assert_close(returns.sum(1), torch.ones_like(returns[0]))
        cycle = F.cross_entropy(returns, torch.arange(len(first)), label_smoothing=smoothing)
        return cycle.item(), weight * (there[-1, -1] + back[-1, -1]).item()

    return compute


@pytest.mark.parametrize("minimum", MINIMA.values())
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_is_the_mean_of_the_formula_over_its_pairs_without_their_padding(naive, minimum, smoothing):
    first, second = unit_vectors(3, 6, 8), unit_vectors(3, 5, 8, seed=1)
    lengths = (6, 3, 1), (2, 5, 1)
    paddings = (
        torch.arange(6) >= torch.tensor(lengths[0])[:, None],
        torch.arange(5) >= torch.tensor(lengths[1])[:, None],
    )
    switches = {"gamma": 0.2, "temperature": 0.3, "minimum": minimum}
    found = gta_losses(
        first, second, *paddings, label_smoothing=smoothing, alignment_weight=0.4, factor=0.5, **switches
    )
    items = [
        naive(u[:t], v[:s], smoothing=smoothing, weight=0.4, **switches)
        for u, v, t, s in zip(first, second, *lengths, strict=True)
    ]
    cycle, alignment = (0.5 * sum(values) / 3 for values in zip(*items, strict=True))
    assert [loss.item() for loss in found] == pytest.approx([cycle + alignment, cycle, alignment], rel=1e-9)


@pytest.mark.parametrize("cycle", [True, False])
@pytest.mark.parametrize("minimum", MINIMA.values())
def test_padded_frames_have_no_weight(lengthened, same_without_padding, minimum, cycle):
    short = [unit_vectors(2, 6, 8), unit_vectors(2, 5, 8, seed=1)]
    long, paddings = zip(*(lengthened(clips, frames) for clips, frames in zip(short, (2, 4), strict=True)), strict=True)
    for clips in (*short, *long):
        clips.requires_grad_()
    found = gta_losses(*long, *paddings, minimum=minimum, cycle=cycle)
    same_without_padding(found, long, losses_of(*short, minimum=minimum, cycle=cycle), short)


def test_gradients_are_those_of_finite_differences():
    clips = [unit_vectors(2, 4, 3).requires_grad_(), unit_vectors(2, 3, 3, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *given: losses_of(*given, gamma=0.5, temperature=0.5), clips)


def test_even_a_perfect_cycle_has_the_cost_of_its_second_softmax():
    clip = 9 * torch.eye(20)[None]
    _, cycle, alignment = losses_of(clip, clip)
    assert cycle.item() == pytest.approx(log(exp(1) + 19) - 0.9 - 0.1 / 20)  # 2.17
    assert alignment.item() == pytest.approx(0, abs=1e-4)


def test_in_order_costs_least_and_reversed_more():
    clip = 3 * torch.eye(6)[None]
    orders = {"same": clip, "two swapped": clip[:, [0, 2, 1, 3, 4, 5]], "reversed": clip.flip(1)}
    losses = {name: [loss.item() for loss in losses_of(clip, other)] for name, other in orders.items()}
    assert losses["same"][0] < losses["two swapped"][0] < losses["reversed"][0]
    assert losses["same"][2] < losses["two swapped"][2] < losses["reversed"][2]


def test_pairs_in_another_order_cost_the_same():
    clips, order = (unit_vectors(3, 6, 8), unit_vectors(3, 5, 8, seed=1)), [2, 0, 1]
    swapped = losses_of(*(clip[order] for clip in clips))
    assert [loss.item() for loss in swapped] == pytest.approx([loss.item() for loss in losses_of(*clips)], rel=1e-12)


@pytest.mark.parametrize("minimum", MINIMA.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_and_gradients_are_finite(finite_on_extremes, minimum, dtype):
    finite_on_extremes(lambda first, second: losses_of(first, second, minimum=minimum), dtype)


def test_autocast_around_it_does_not_make_it_coarse():
    clips = unit_vectors(2, 6, 8, dtype=torch.float32), unit_vectors(2, 5, 8, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = losses_of(*clips)
    assert all(torch.equal(*losses) for losses in zip(mixed, losses_of(*clips), strict=True))
