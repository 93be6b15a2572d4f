"""Soft dynamic time warping (DTW): differentiable cost of aligning two clips in temporal order.

Tables are filled one anti-diagonal at a time, because the cells of an anti-diagonal depend only on
the previous two.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from byov.train.networks import full_precision

ABSENT = -1e25  # score of cells outside the table; finite, because 0 * inf is NaN


@full_precision
def matching_costs(first: Tensor, second: Tensor, temperature: float, padding: Tensor) -> Tensor:
    """Compute matching costs c_ij = -log softmax_i(u_i·v_j / temperature), normalized over the
    *first* clip's frames.

    Shapes: u (N, T, D), v (N, S, D), padding of the first clip (N, T), costs (N, T, S). Padded
    frames are excluded from the softmax and have cost 0.
    """
    logits = first @ second.mT / temperature
    hidden = padding[..., None]
    return -logits.masked_fill(hidden, -torch.inf).log_softmax(dim=1).masked_fill(hidden, 0)


@full_precision
def soft_dtw(costs: Tensor, gamma: float) -> Tensor:
    """Compute tables R of path costs, (N, T, S), from matching costs c, (N, T, S).

    R_11 = c_11 and R_ij = c_ij + Σ_k π_k n_k, where n are the values of R at the existing cells
    among (i, j-1), (i-1, j-1) and (i-1, j), and π = softmax(-n / gamma).
    """
    scores: Tensor = _PathScores.apply(costs / -gamma, False)  # type: ignore[no-untyped-call]
    return scores * -gamma


def path_probabilities(costs: Tensor, gamma: float) -> Tensor:
    """Compute the probability that the alignment path visits each cell, (N, T, S), from matching
    costs (N, T, S).

    The probability of a path is proportional to exp(-cost / gamma). The result is the gradient of
    soft DTW with a log-sum-exp minimum.
    """
    with torch.enable_grad():
        cells = (costs.detach() / -gamma).requires_grad_()
        scores: Tensor = _PathScores.apply(cells, True)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(scores[:, -1, -1].sum(), cells)[0]


def soft_dtw_tables(costs: Sequence[Tensor], gamma: float) -> list[Tensor]:
    """Compute soft DTW tables for (N, T, S) matching costs of different sizes in one padded
    batch.
    """
    rows, columns = (max(table.shape[axis] for table in costs) for axis in (1, 2))
    padded = [
        F.pad(table, (0, columns - table.shape[2], 0, rows - table.shape[1])) for table in costs
    ]
    tables = torch.split(soft_dtw(torch.cat(padded), gamma), [len(table) for table in costs])
    return [
        table[:, : own.shape[1], : own.shape[2]] for table, own in zip(tables, costs, strict=True)
    ]


def final_costs(tables: Tensor, first_padding: Tensor, second_padding: Tensor) -> Tensor:
    """Return the (N,) costs in (N, T, S) tables at the last unpadded frames; paddings have shapes
    (N, T) and (N, S).
    """
    row, column = ((~padding).sum(dim=1) - 1 for padding in (first_padding, second_padding))
    return tables[torch.arange(len(tables), device=tables.device), row, column]


class _PathScores(torch.autograd.Function):
    """Compute path scores q = -R / gamma, (N, T, S), from cell scores s = -c / gamma, (N, T, S).

    q_ij = s_ij + Σ_k π_k q_k over the three preceding cells, where π = softmax(q); the derivative
    with respect to q_k is π_k (1 + q_k - Σ π q). With `log_sum_exp`, q_ij = s_ij + log Σ_k
    exp(q_k), with derivative π_k. The backward pass is written by hand because autograd takes three
    times as long.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, log_sum_exp: bool) -> Tensor:
        diagonals = _shear(cells, ABSENT)
        paths = F.pad(diagonals, (0, 0, 1, 0, 2, 0), value=ABSENT)  # add two diagonals and one row
        paths[0, 0] = 0  # virtual cell before the first one
        own = paths[:, 1:].unbind()
        above = paths[:, :-1].unbind()
        for d, scores in enumerate(diagonals.unbind()):
            left = own[d + 1]
            corner = above[d]
            up = above[d + 1]  # (T, N)
            # Combine two cells at a time, because torch.softmax would start threads for these few
            # cells.
            log_sum = torch.logaddexp(left, corner)
            if log_sum_exp:
                best = torch.logaddexp(log_sum, up)
            else:
                mean = torch.lerp(corner, left, (left - corner).sigmoid_())
                best = torch.lerp(up, mean, log_sum.sub_(up).sigmoid_())
            torch.add(scores, best, out=own[d + 2])
        ctx.save_for_backward(paths)
        ctx.log_sum_exp = log_sum_exp
        return _unshear(paths[2:, 1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (paths,) = ctx.saved_tensors
        # (3, T + S - 1, T, N).
        before = torch.stack((paths[1:-1, 1:], paths[:-2, :-1], paths[1:-1, :-1]))
        weights = before.softmax(dim=0)
        if not ctx.log_sum_exp:
            weights = weights * (1 + before - (weights * before).sum(dim=0))
        flows = F.pad(_shear(gradient, 0), (0, 0, 1, 0, 2, 0))
        own = flows[:, 1:].unbind()
        above = flows[:, :-1].unbind()
        left, corner, up = (weight.unbind() for weight in weights)
        for d in reversed(range(len(flows) - 2)):
            own[d + 1].addcmul_(left[d], own[d + 2])
            above[d].addcmul_(corner[d], own[d + 2])
            above[d + 1].addcmul_(up[d], own[d + 2])
        return _unshear(flows[2:, 1:]), None


def _shear(table: Tensor, absent: float) -> Tensor:
    """Shear (N, T, S) to (T + S - 1, T, N): cell (i, j) moves to row i of anti-diagonal i + j;
    `absent` fills the rest.

    Padding each row by T cells and reshaping to rows of T + S - 1 cells shifts each row one cell
    further.
    """
    batch, rows, columns = table.shape
    longer = F.pad(table, (0, rows), value=absent).flatten(1)
    return longer[:, :-rows].view(batch, rows, rows + columns - 1).permute(2, 1, 0).contiguous()


def _unshear(diagonals: Tensor) -> Tensor:
    """Invert `_shear`, from (T + S - 1, T, N) to (N, T, S)."""
    length, rows, batch = diagonals.shape
    longer = F.pad(diagonals.permute(2, 1, 0).reshape(batch, -1), (0, rows))
    return longer.view(batch, rows, length + 1)[..., : length + 1 - rows]
