"""Soft DTW written down plainly: one cell after the other.

The tests hold the one by anti-diagonals against it, and the benchmark measures what those save.
"""

import torch
from torch import Tensor


def naive_soft_dtw(costs: Tensor, gamma: float, minimum: str = "weighted") -> Tensor:
    """(N, T, S) → (N, T, S): each cell is its cost and the soft minimum over the cells before it."""
    _, rows, columns = costs.shape
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(rows):
        for j in range(columns):
            before = [table[cell] for cell in ((i, j - 1), (i - 1, j - 1), (i - 1, j)) if cell in table]
            table[i, j] = costs[:, i, j] + (_soft_minimum(torch.stack(before), gamma, minimum) if before else 0)
    return torch.stack([torch.stack([table[i, j] for j in range(columns)], dim=-1) for i in range(rows)], dim=1)


def _soft_minimum(before: Tensor, gamma: float, minimum: str) -> Tensor:
    """(up to 3, N) → (N,)"""
    if minimum == "log-sum-exp":
        return -gamma * (-before / gamma).logsumexp(dim=0)
    return ((-before / gamma).softmax(dim=0) * before).sum(dim=0)
