"""Soft dynamic time warping: the cost of aligning two clips frame by frame, in order.

The tables of a batch are filled together, one anti-diagonal at a time; its cells depend on the previous two only.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from byov.train.networks import full_precision

ABSENT = -1e25  # score of cells outside the table: finite, because 0 times infinity is NaN


@full_precision
def matching_costs(first: Tensor, second: Tensor, temperature: float, padding: Tensor) -> Tensor:
    """Compute the costs c_ij = -log softmax_i(u_i·v_j / temperature), normalized over the frames of the *first* clip.

    Shapes: u (N, T, D), v (N, S, D), padding of the first clip (N, T), costs (N, T, S). Padded frames are excluded from
    the softmax and cost 0.
    """
    logits = first @ second.mT / temperature
    hidden = padding[..., None]
    return -logits.masked_fill(hidden, -torch.inf).log_softmax(dim=1).masked_fill(hidden, 0)


@full_precision
def soft_dtw(costs: Tensor, gamma: float) -> Tensor:
    """(N, T, S) matching costs c -> (N, T, S) tables R of path costs.

    R_ij = c_ij + Σ_k π_k n_k, where n are the R of (i, j-1), (i-1, j-1) and (i-1, j) that exist, and
    π = softmax(-n / gamma). R_11 = c_11.
    """
    scores: Tensor = _PathScores.apply(costs / -gamma, False)  # type: ignore[no-untyped-call]
    return scores * -gamma


def path_probabilities(costs: Tensor, gamma: float) -> Tensor:
    """(N, T, S) matching costs -> (N, T, S) probabilities that the alignment path visits each cell.

    A path has the probability exp(-cost / gamma), normalized over all paths: the gradient of soft DTW with the
    log-sum-exp minimum.
    """
    with torch.enable_grad():
        cells = (costs.detach() / -gamma).requires_grad_()
        scores: Tensor = _PathScores.apply(cells, True)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(scores[:, -1, -1].sum(), cells)[0]


def soft_dtw_tables(costs: Sequence[Tensor], gamma: float) -> list[Tensor]:
    """Compute the tables of (N, T, S) costs of different sizes in one padded batch."""
    rows, columns = (max(table.shape[axis] for table in costs) for axis in (1, 2))
    padded = [F.pad(table, (0, columns - table.shape[2], 0, rows - table.shape[1])) for table in costs]
    tables = torch.split(soft_dtw(torch.cat(padded), gamma), [len(table) for table in costs])
    return [table[:, : own.shape[1], : own.shape[2]] for table, own in zip(tables, costs, strict=True)]


def final_costs(tables: Tensor, first_padding: Tensor, second_padding: Tensor) -> Tensor:
    """(N, T, S) tables -> (N,) costs at the last frames before the padding, (N, T) and (N, S)."""
    row, column = ((~padding).sum(dim=1) - 1 for padding in (first_padding, second_padding))
    return tables[torch.arange(len(tables), device=tables.device), row, column]


class _PathScores(torch.autograd.Function):
    """(N, T, S) scores of cells, s = -c / gamma -> (N, T, S) scores of paths, q = -R / gamma.

    q_ij = s_ij + Σ_k π_k q_k over the three previous cells, π = softmax(q), with the derivative π_k (1 + q_k - Σ π q)
    by q_k; or, with `log_sum_exp`, q_ij = s_ij + log Σ_k exp(q_k), with the derivative π_k. Written by hand because
    autograd takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, log_sum_exp: bool) -> Tensor:
        diagonals = _shear(cells, ABSENT)
        paths = F.pad(diagonals, (0, 0, 1, 0, 2, 0), value=ABSENT)  # two more diagonals and one more row
        paths[0, 0] = 0  # before the first cell
        own, above = paths[:, 1:].unbind(), paths[:, :-1].unbind()
        for d, scores in enumerate(diagonals.unbind()):
            left, corner, up = own[d + 1], above[d], above[d + 1]  # (T, N)
            # Softmax of two at a time: torch.softmax would start threads for these few cells.
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
        before = torch.stack((paths[1:-1, 1:], paths[:-2, :-1], paths[1:-1, :-1]))  # (3, T + S - 1, T, N)
        weights = before.softmax(dim=0)
        if not ctx.log_sum_exp:
            weights = weights * (1 + before - (weights * before).sum(dim=0))
        flows = F.pad(_shear(gradient, 0), (0, 0, 1, 0, 2, 0))
        own, above = flows[:, 1:].unbind(), flows[:, :-1].unbind()
        left, corner, up = (weight.unbind() for weight in weights)
        for d in reversed(range(len(flows) - 2)):
            own[d + 1].addcmul_(left[d], own[d + 2])
            above[d].addcmul_(corner[d], own[d + 2])
            above[d + 1].addcmul_(up[d], own[d + 2])
        return _unshear(flows[2:, 1:]), None


def _shear(table: Tensor, absent: float) -> Tensor:
    """(N, T, S) -> (T + S - 1, T, N): cell (i, j) moves to row i of anti-diagonal i + j; `absent` fills the rest.

    Padding each row by T and reading rows of T + S - 1 shifts each row by one against the previous one.
    """
    batch, rows, columns = table.shape
    longer = F.pad(table, (0, rows), value=absent).flatten(1)
    return longer[:, :-rows].view(batch, rows, rows + columns - 1).permute(2, 1, 0).contiguous()


def _unshear(diagonals: Tensor) -> Tensor:
    """Invert `_shear`: (T + S - 1, T, N) -> (N, T, S)."""
    length, rows, batch = diagonals.shape
    longer = F.pad(diagonals.permute(2, 1, 0).reshape(batch, -1), (0, rows))
    return longer.view(batch, rows, length + 1)[..., : length + 1 - rows]
