"""The pre-norm transformer block, as in ViT, over several sequences at once.

The sequences are packed row after row, and each attends only within itself. The linear layers see all rows together,
which is what makes small batches quick; attention runs once for each group of neighbouring sequences of one length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK_ROWS = 512  # frames of a long video that pass through a block at a time


@dataclass(frozen=True)
class Group:
    """`batch` packed sequences of the same length; causal: no frame sees what lies ahead of it."""

    batch: int
    length: int
    causal: bool = False
    mask: Tensor | None = None  # (batch, 1, length, length), True = may attend

    @property
    def rows(self) -> int:
        return self.batch * self.length


def pack(sequences: Sequence[Tensor]) -> Tensor:
    """(B_i, T_i, ...) each → (rows, ...)."""
    return torch.cat([sequence.flatten(0, 1) for sequence in sequences])


def unpack(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `pack`: shapes (B_i, T_i) are taken from `like`."""
    shapes = [sequence.shape[:2] for sequence in like]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def group(sequences: Sequence[Tensor], causal: Sequence[bool] | None = None) -> list[Group]:
    """Neighbours of the same length and kind attend in one call."""
    groups: list[Group] = []
    for sequence, is_causal in zip(sequences, causal or [False] * len(sequences), strict=True):
        batch, length = sequence.shape[:2]
        last = groups[-1] if groups else None
        if last and last.length == length and last.causal == is_causal:
            groups[-1] = replace(last, batch=last.batch + batch)
        else:
            groups.append(Group(batch, length, is_causal))
    return groups


def within(groups: Sequence[Group], frame_index: Tensor, window: int) -> list[Group]:
    """The groups, with frames that are more than `window` frames apart hidden from each other.

    frame_index: (rows,) number of each frame in its clip.
    """
    narrowed = []
    for part, rows in zip(groups, torch.split(frame_index, [part.rows for part in groups]), strict=True):
        index = rows.view(part.batch, 1, part.length)
        near = (index[..., :, None] - index[..., None, :]).abs() <= window
        narrowed.append(replace(part, mask=near))
    return narrowed


class Block(nn.Module):
    """Attention and a two-layer perceptron of ratio 4, each behind a LayerNorm and a residual sum."""

    def __init__(
        self, width: int, heads: int, *, activation: Callable[[Tensor], Tensor] = F.gelu, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.activation, self.dropout = heads, activation, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, groups: Sequence[Group]) -> Tensor:
        """(rows, D) packed sequences → (rows, D)."""
        parts = torch.split(self.qkv(self.norm1(x)), [part.rows for part in groups])
        attended = [self._attend(rows, part) for rows, part in zip(parts, groups, strict=True)]
        return self._update(x, torch.cat(attended))

    def forward_long(self, x: Tensor, window: int | None) -> Tensor:
        """One sequence (T, D) of any length, without gradients: memory grows with T, not with T²."""
        chunks = [slice(first, first + CHUNK_ROWS) for first in range(0, len(x), CHUNK_ROWS)]
        heads = [self._heads(self.qkv(self.norm1(x[rows])), batch=1) for rows in chunks]
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*heads, strict=True))
        out = torch.empty_like(x)
        for rows in chunks:
            keys, mask = _neighbourhood(rows, len(x), window, x.device)
            attended = F.scaled_dot_product_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], attn_mask=mask)
            out[rows] = self._update(x[rows], attended.transpose(1, 2).flatten(-2)[0])
        return out

    def _attend(self, qkv: Tensor, part: Group) -> Tensor:
        """(rows, 3 D) → (rows, D)."""
        q, k, v = self._heads(qkv, batch=part.batch)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, part.mask, dropout, is_causal=part.causal)
        return attended.transpose(1, 2).flatten(-2).flatten(0, 1)

    def _heads(self, qkv: Tensor, *, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, 3 D) → queries, keys, values, each (batch, heads, length, D / heads)."""
        rows, width = qkv.shape
        q, k, v = qkv.view(batch, rows // batch, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self._drop(self.proj(attended))
        hidden = self._drop(self.activation(self.fc1(self.norm2(x))))
        return x + self._drop(self.fc2(hidden))

    def _drop(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.dropout, self.training)


def _neighbourhood(rows: slice, length: int, window: int | None, device: torch.device) -> tuple[slice, Tensor | None]:
    """The keys that the queries of `rows` may see, and the mask between the two."""
    if window is None or window >= length:
        return slice(0, length), None
    keys = slice(max(0, rows.start - window), min(length, rows.stop + window))
    queries = torch.arange(rows.start, min(length, rows.stop), device=device)
    return keys, (queries[:, None] - torch.arange(keys.start, keys.stop, device=device)).abs() <= window
