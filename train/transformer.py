"""The pre-norm transformer block, as in ViT."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.packing import Group

CHUNK_ROWS = 512  # frames of a long video that pass through a block at a time


class Block(nn.Module):
    """Attention and a two-layer perceptron of ratio 4, each behind a LayerNorm and a residual sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
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
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask, is_causal=part.causal)
        return attended.transpose(1, 2).flatten(-2).flatten(0, 1)

    def _heads(self, qkv: Tensor, *, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, 3 D) → queries, keys, values, each (batch, heads, length, D / heads)."""
        rows, width = qkv.shape
        q, k, v = qkv.view(batch, rows // batch, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.proj(attended)
        refined: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return refined


def _neighbourhood(rows: slice, length: int, window: int | None, device: torch.device) -> tuple[slice, Tensor | None]:
    """The keys that the queries of `rows` may see, and the mask between the two."""
    if window is None or window >= length:
        return slice(0, length), None
    keys = slice(max(0, rows.start - window), min(length, rows.stop + window))
    queries = torch.arange(rows.start, min(length, rows.stop), device=device)
    return keys, (queries[:, None] - torch.arange(keys.start, keys.stop, device=device)).abs() <= window
