"""Soft dynamic time warping: what it costs to match two clips frame by frame, in order.

Tables of a batch are filled together, one anti-diagonal after the other: the cells of one need only the two before.
Everything is computed in float32 or wider, also under autocast.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from byov.train.padded_frames import wide

Minimum = Literal["weighted", "log-sum-exp"]

ABSENT = -1e25  # the score of what is outside the table: e to its power is 0, and 0 times it is 0


def matching_costs(first: Tensor, second: Tensor, temperature: float, padding: Tensor | None = None) -> Tensor:
    """(N, T, D), (N, S, D) → (N, T, S): c_ij = -log softmax_i(u_i·v_j / temperature), over the frames of the *first*.

    Padding, (N, T) of the first clip, True: no part of the softmax; what such a frame itself costs is 0.
    """
    with torch.autocast(first.device.type, enabled=False):
        logits = wide(first) @ wide(second).mT / temperature
        if padding is None:
            return -logits.log_softmax(dim=1)
        hidden = padding[..., None]
        return -logits.masked_fill(hidden, -torch.inf).log_softmax(dim=1).masked_fill(hidden, 0)


def soft_dtw(costs: Tensor, gamma: float, minimum: Minimum = "weighted") -> Tensor:
    """(N, T, S) costs of cells → (N, T, S) tables R of the costs of paths, which begin at the first cell.

    R_ij = c_ij + Σ_k π_k n_k, where n are the R of (i, j-1), (i-1, j-1), (i-1, j) as far as they exist and
    π = softmax(-n / gamma); "log-sum-exp": c_ij - gamma log Σ_k exp(-n_k / gamma). R_11 = c_11.
    """
    with torch.autocast(costs.device.type, enabled=False):
        scores: Tensor = _Paths.apply(wide(costs) / -gamma, minimum == "weighted")  # type: ignore[no-untyped-call]
        return scores * -gamma


def soft_dtw_tables(costs: Sequence[Tensor], gamma: float, minimum: Minimum = "weighted") -> list[Tensor]:
    """(N, T, S) of any sizes → their tables, filled in one pass: small tables in the corners of large ones."""
    rows, columns = (max(of_batch.shape[axis] for of_batch in costs) for axis in (1, 2))
    joined = [F.pad(of_batch, (0, columns - of_batch.shape[2], 0, rows - of_batch.shape[1])) for of_batch in costs]
    tables = torch.split(soft_dtw(torch.cat(joined), gamma, minimum), [len(of_batch) for of_batch in costs])
    return [table[:, : own.shape[1], : own.shape[2]] for table, own in zip(tables, costs, strict=True)]


def ends(tables: Tensor, first_padding: Tensor, second_padding: Tensor) -> Tensor:
    """(N, T, S) → (N,): R where the last frames of both clips meet, those before the padding, (N, T) and (N, S)."""
    row, column = ((~padding).sum(dim=1) - 1 for padding in (first_padding, second_padding))
    return tables[torch.arange(len(tables), device=tables.device), row, column]


class _Paths(torch.autograd.Function):
    """(N, T, S) scores of cells, s = -c / gamma → (N, T, S) scores of paths, q = -R / gamma.

    q_ij = s_ij + Σ_k π_k q_k over the three cells before, π = softmax(q), or s_ij + log Σ_k exp(q_k). The derivative by
    q_k is π_k (1 + q_k - Σ π q), or π_k. Autograd takes three times as long: most of the time is its own.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, weighted: bool) -> Tensor:
        diagonals = _shear(cells, ABSENT)
        paths = _framed(diagonals, ABSENT)
        paths[0, 0] = 0  # before the first cell
        own, above = paths[:, 1:].unbind(), paths[:, :-1].unbind()
        for d, scores in enumerate(diagonals.unbind()):
            left, corner, up = own[d + 1], above[d], above[d + 1]  # (T, N)
            best_of_two = torch.logaddexp(left, corner)
            if weighted:  # two at a time: torch.softmax would start its threads for each of these few cells
                mean_of_two = torch.lerp(corner, left, (left - corner).sigmoid_())
                best = torch.lerp(up, mean_of_two, best_of_two.sub_(up).sigmoid_())
            else:
                best = torch.logaddexp(best_of_two, up)
            torch.add(scores, best, out=own[d + 2])
        ctx.save_for_backward(paths)
        ctx.weighted = weighted
        return _unshear(paths[2:, 1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (paths,) = ctx.saved_tensors
        before = torch.stack((paths[1:-1, 1:], paths[:-2, :-1], paths[1:-1, :-1]))  # (3, T + S - 1, T, N)
        weights = before.softmax(dim=0)
        if ctx.weighted:
            weights = weights * (1 + before - (weights * before).sum(dim=0))
        diagonals = _shear(gradient, 0)
        flows = _framed(diagonals, 0)
        flows[2:, 1:] = diagonals
        own, above = flows[:, 1:].unbind(), flows[:, :-1].unbind()
        left, corner, up = (weight.unbind() for weight in weights)
        for d in reversed(range(len(diagonals))):
            own[d + 1].addcmul_(left[d], own[d + 2])
            above[d].addcmul_(corner[d], own[d + 2])
            above[d + 1].addcmul_(up[d], own[d + 2])
        return _unshear(flows[2:, 1:]), None


def _shear(table: Tensor, absent: float) -> Tensor:
    """(N, T, S) → (T + S - 1, T, N): cell (i, j) on anti-diagonal i + j in the place i, `absent` where there is none.

    Rows that are T longer, read as rows that are T - 1 longer: each begins one further to the right than the last.
    """
    batch, rows, columns = table.shape
    longer = F.pad(table, (0, rows), value=absent).flatten(1)
    return longer[:, :-rows].view(batch, rows, rows + columns - 1).permute(2, 1, 0).contiguous()


def _unshear(diagonals: Tensor) -> Tensor:
    """(T + S - 1, T, N) → (N, T, S)"""
    length, rows, batch = diagonals.shape
    longer = F.pad(diagonals.permute(2, 1, 0).reshape(batch, -1), (0, rows))
    return longer.view(batch, rows, length + 1)[..., : length + 1 - rows]


def _framed(diagonals: Tensor, value: float) -> Tensor:
    """(diagonals, T, N) → (2 + diagonals, 1 + T, N) of one value: two diagonals before the first, a row above."""
    length, rows, batch = diagonals.shape
    return diagonals.new_full((length + 2, rows + 1, batch), value)
