from itertools import permutations

import pytest
import torch

from byov.train.soft_dtw import final_costs, matching_costs, soft_dtw, soft_dtw_tables


def random_costs(*shape, seed=0, dtype=torch.float64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_frames(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def no_padding(clips):
    return torch.zeros(clips.shape[:2], dtype=torch.bool)


@pytest.mark.parametrize("gamma", [0.01, 0.1, 2.0])
@pytest.mark.parametrize("size", [(1, 1), (1, 6), (6, 1), (5, 5), (4, 7), (7, 4)])
def test_tables_and_gradients_equal_a_loop_over_cells(naive_training, gamma, size):
    costs = random_costs(3, *size).requires_grad_()
    weights = random_costs(3, *size, seed=1)
    tables = [compute(costs, gamma) for compute in (soft_dtw, naive_training.naive_soft_dtw)]
    gradients = [torch.autograd.grad((table * weights).sum(), costs)[0] for table in tables]
    torch.testing.assert_close(*tables, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    assert torch.autograd.gradcheck(lambda costs: soft_dtw(costs, 0.3), random_costs(2, 4, 5).requires_grad_())


def test_second_derivatives_raise():
    costs = random_costs(2, 3, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(soft_dtw(costs, 0.3).square().sum(), costs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("gamma", [1e-6, 0.1, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e12])
def test_tables_and_gradients_are_finite_in_float32(gamma, scale):
    costs = (random_costs(2, 6, 5, dtype=torch.float32) * scale).requires_grad_()
    table = soft_dtw(costs, gamma)
    table.sum().backward()
    assert table.isfinite().all()
    assert costs.grad.isfinite().all()


def test_tables_of_several_sizes_in_one_pass():
    costs = [random_costs(batch, *size, seed=batch) for batch, size in ((2, (5, 6)), (1, (3, 3)), (3, (2, 7)))]
    for table, own in zip(soft_dtw_tables(costs, 0.1), costs, strict=True):
        torch.testing.assert_close(table, soft_dtw(own, 0.1))


def test_padded_cells_change_nothing_and_have_no_gradient():
    costs = random_costs(3, 6, 5).requires_grad_()
    rows, columns = torch.tensor([6, 2, 1]), torch.tensor([5, 4, 1])
    paddings = torch.arange(6) >= rows[:, None], torch.arange(5) >= columns[:, None]
    found = final_costs(soft_dtw(costs, 0.1), *paddings)
    alone = [
        soft_dtw(table[None, :row, :column], 0.1)[0, -1, -1]
        for table, row, column in zip(costs, rows, columns, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(alone))
    (gradient,) = torch.autograd.grad(found.sum(), costs)
    assert not gradient[paddings[0][:, :, None] | paddings[1][:, None]].any()


def test_costs_are_normalized_over_the_frames_of_the_first_clip():
    first, second = random_frames(2, 4, 8), random_frames(2, 5, 8, seed=1)
    costs = matching_costs(first, second, 0.5, no_padding(first))
    torch.testing.assert_close((-costs).exp().sum(dim=1), torch.ones(2, 5, dtype=torch.float64))
    torch.testing.assert_close(costs[0, 1, 2] - costs[0, 0, 2], (first[0, 0] - first[0, 1]) @ second[0, 2] / 0.5)
    padding = torch.arange(4).expand(2, -1) >= 3
    padded = matching_costs(first, second, 0.5, padding)
    torch.testing.assert_close(padded[:, :3], matching_costs(first[:, :3], second, 0.5, padding[:, :3]))
    assert not padded[:, 3:].any()


def test_the_same_order_costs_least():
    first = 3 * torch.eye(4, dtype=torch.float64)[None]
    costs = {
        order: soft_dtw(matching_costs(first, first[:, list(order)], 1.0, no_padding(first)), 0.1)[0, -1, -1].item()
        for order in permutations(range(4))
    }
    in_order = costs.pop((0, 1, 2, 3))
    assert in_order < min(costs.values())
    assert costs[3, 2, 1, 0] > 5 * in_order
