import pytest
import torch

from byov.train.soft_dtw import final_costs, soft_dtw, soft_dtw_tables


def random_costs(*shape, seed=0, dtype=torch.float64):
    return torch.rand(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


@pytest.mark.parametrize("gamma", [0.01, 0.1, 2.0])
@pytest.mark.parametrize("size", [(1, 1), (1, 6), (6, 1), (5, 5), (4, 7), (7, 4)])
def test_tables_and_gradients_equal_a_loop_over_cells(naive_training, gamma, size):
    costs = random_costs(3, *size).requires_grad_()
    weights = random_costs(3, *size, seed=1)
    tables = [compute(costs, gamma) for compute in (soft_dtw, naive_training.naive_soft_dtw)]
    gradients = [torch.autograd.grad((table * weights).sum(), costs)[0] for table in tables]
    torch.testing.assert_close(*tables, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gamma", [1e-6, 0.1, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e12])
def test_tables_and_gradients_are_finite_in_float32(gamma, scale):
    costs = (random_costs(2, 6, 5, dtype=torch.float32) * scale).requires_grad_()
    table = soft_dtw(costs, gamma)
    table.sum().backward()
    assert table.isfinite().all()
    assert costs.grad.isfinite().all()


def test_tables_of_several_sizes_in_one_pass():
    costs = [
        random_costs(batch, *size, seed=batch)
        for batch, size in ((2, (5, 6)), (1, (3, 3)), (3, (2, 7)))
    ]
    for table, own in zip(soft_dtw_tables(costs, 0.1), costs, strict=True):
        torch.testing.assert_close(table, soft_dtw(own, 0.1))


def test_padded_cells_change_nothing_and_have_no_gradient():
    costs = random_costs(3, 6, 5).requires_grad_()
    rows = torch.tensor([6, 2, 1])
    columns = torch.tensor([5, 4, 1])
    paddings = torch.arange(6) >= rows[:, None], torch.arange(5) >= columns[:, None]
    together = final_costs(soft_dtw(costs, 0.1), *paddings)
    alone = [
        soft_dtw(table[None, :row, :column], 0.1)[0, -1, -1]
        for table, row, column in zip(costs, rows, columns, strict=True)
    ]
    torch.testing.assert_close(together, torch.stack(alone))
    (gradient,) = torch.autograd.grad(together.sum(), costs)
    assert not gradient[paddings[0][:, :, None] | paddings[1][:, None]].any()
