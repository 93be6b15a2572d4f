from itertools import permutations

import pytest
import torch
from tests.train.methods.random_clips import random_frames

from byov.train.soft_dtw import ends, matching_costs, soft_dtw, soft_dtw_tables

MINIMA = ["weighted", "log-sum-exp"]
SIZES = [(1, 1), (1, 6), (6, 1), (5, 5), (4, 7), (7, 4), (2, 2)]


def random_values(*shape, seed=0, dtype=torch.float64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture(scope="module")
def naive_soft_dtw(load_benchmark):
    return load_benchmark("naive_soft_dtw").naive_soft_dtw


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("gamma", [0.01, 0.1, 2.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_tables_and_gradients_are_those_of_a_loop_over_cells(naive_soft_dtw, minimum, gamma, size, batch):
    costs = random_values(batch, *size).requires_grad_()
    weights = random_values(batch, *size, seed=1)  # each cell's share in what is differentiated
    found, expected = (compute(costs, gamma, minimum) for compute in (soft_dtw, naive_soft_dtw))
    gradients = [torch.autograd.grad((table * weights).sum(), costs)[0] for table in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("minimum", MINIMA)
def test_gradients_are_those_of_finite_differences(minimum):
    costs = random_values(2, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: soft_dtw(values, 0.3, minimum), costs)


@pytest.mark.parametrize("minimum", MINIMA)
def test_no_second_derivative_is_given_rather_than_a_wrong_one(minimum):
    costs = random_values(2, 3, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(soft_dtw(costs, 0.3, minimum).square().sum(), costs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("size", [(1, 6), (6, 1)])
def test_along_an_edge_there_is_one_path(minimum, size):
    costs = random_values(2, *size)
    torch.testing.assert_close(soft_dtw(costs, 0.1, minimum).flatten(1), costs.flatten(1).cumsum(1))


def hard_dtw(costs):
    table = {}
    for i in range(costs.shape[0]):
        for j in range(costs.shape[1]):
            before = [table[cell] for cell in ((i, j - 1), (i - 1, j - 1), (i - 1, j)) if cell in table]
            table[i, j] = costs[i, j].item() + min(before, default=0)
    return table[costs.shape[0] - 1, costs.shape[1] - 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_one_minimum_is_never_below_the_hard_one_the_other_never_above(seed):
    costs = random_values(1, 6, 5, seed=seed)
    hard = hard_dtw(costs[0])
    for gamma in (1.0, 0.1, 0.01):
        weighted, log_sum_exp = (soft_dtw(costs, gamma, minimum)[0, -1, -1].item() for minimum in MINIMA)
        assert log_sum_exp <= hard + 1e-12
        assert weighted >= hard - 1e-12
    assert [soft_dtw(costs, 1e-5, minimum)[0, -1, -1].item() for minimum in MINIMA] == pytest.approx([hard] * 2)


@pytest.mark.parametrize("minimum", MINIMA)
def test_tables_in_another_order_are_the_same_tables(minimum):
    costs, order = random_values(4, 5, 6), torch.tensor([2, 0, 3, 1])
    assert torch.equal(soft_dtw(costs[order], 0.1, minimum), soft_dtw(costs, 0.1, minimum)[order])


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("gamma", [1e-6, 0.1, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e6, 1e12])
def test_tables_and_gradients_are_finite_in_single_precision(minimum, gamma, scale):
    costs = (random_values(2, 6, 5, dtype=torch.float32) * scale).requires_grad_()
    table = soft_dtw(costs, gamma, minimum)
    table.sum().backward()
    assert table.isfinite().all()
    assert costs.grad.isfinite().all()


@pytest.mark.parametrize("minimum", MINIMA)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(minimum, dtype):
    costs = random_values(2, 6, 5, dtype=dtype).requires_grad_()
    table = soft_dtw(costs, 0.1, minimum)
    assert table.dtype == torch.float32
    assert torch.equal(table, soft_dtw(costs.float(), 0.1, minimum))
    table.sum().backward()
    assert costs.grad.dtype == dtype
    assert costs.grad.isfinite().all()


def test_autocast_around_them_makes_neither_costs_nor_tables_coarse():
    first, second = random_frames(2, 6, 8, dtype=torch.float32), random_frames(2, 5, 8, seed=1, dtype=torch.float32)
    costs = matching_costs(first, second, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = matching_costs(first, second, 0.1)
        tables = soft_dtw(mixed, 0.1)
    assert torch.equal(mixed, costs)
    assert torch.equal(tables, soft_dtw(costs, 0.1))
    assert matching_costs(first.bfloat16(), second.bfloat16(), 0.1).dtype == torch.float32


@pytest.mark.parametrize("minimum", MINIMA)
def test_tables_of_several_sizes_in_one_pass_are_those_of_each_alone(minimum):
    several = [random_values(batch, *size, seed=batch) for batch, size in ((2, (5, 6)), (1, (3, 3)), (3, (2, 7)))]
    joined = soft_dtw_tables(several, 0.1, minimum)
    for found, costs in zip(joined, several, strict=True):
        torch.testing.assert_close(found, soft_dtw(costs, 0.1, minimum))


@pytest.mark.parametrize("minimum", MINIMA)
def test_cells_behind_the_end_of_a_table_change_nothing_and_have_no_gradient(minimum):
    costs = random_values(3, 6, 5).requires_grad_()
    rows, columns = torch.tensor([6, 2, 1]), torch.tensor([5, 4, 1])
    paddings = torch.arange(6) >= rows[:, None], torch.arange(5) >= columns[:, None]
    found = ends(soft_dtw(costs, 0.1, minimum), *paddings)
    alone = [
        soft_dtw(table[None, :row, :column], 0.1, minimum)[0, -1, -1]
        for table, row, column in zip(costs, rows, columns, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(alone))
    (gradient,) = torch.autograd.grad(found.sum(), costs)
    behind = paddings[0][:, :, None] | paddings[1][:, None]
    assert not gradient[behind].any()
    other = torch.where(behind, 1e9, costs.detach()).requires_grad_()
    again = ends(soft_dtw(other, 0.1, minimum), *paddings)
    assert torch.equal(again, found)
    assert torch.equal(torch.autograd.grad(again.sum(), other)[0], gradient)


def test_costs_are_normalized_over_the_frames_of_the_first_clip():
    first, second = random_frames(2, 4, 8), random_frames(2, 5, 8, seed=1)
    costs = matching_costs(first, second, 0.5)
    for item in range(2):
        for j in range(5):
            weights = [torch.exp(first[item, i] @ second[item, j] / 0.5).item() for i in range(4)]
            expected = [-torch.tensor(weight / sum(weights)).log().item() for weight in weights]
            assert costs[item, :, j].tolist() == pytest.approx(expected, rel=1e-5)


def test_padded_frames_of_the_first_clip_are_left_out_of_the_costs(lengthened):
    first, second = random_frames(2, 4, 8), random_frames(2, 5, 8, seed=1)
    longer, padding = lengthened(first, 3)
    longer.requires_grad_()
    costs = matching_costs(longer, second, 0.1, padding)
    torch.testing.assert_close(costs[:, :4], matching_costs(first, second, 0.1))
    assert not costs[:, 4:].any()
    costs.square().sum().backward()
    assert not longer.grad[:, 4:].any()
    assert longer.grad[:, :4].all()


def test_the_order_that_is_the_same_costs_least_and_the_reversed_one_more():
    first = 3 * torch.eye(4, dtype=torch.float64)[None]
    costs = {
        order: soft_dtw(matching_costs(first, first[:, list(order)], 1.0), 0.1)[0, -1, -1].item()
        for order in permutations(range(4))
    }
    in_order = costs.pop((0, 1, 2, 3))
    assert in_order < min(costs.values())
    assert costs[3, 2, 1, 0] > 5 * in_order
