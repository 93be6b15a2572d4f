"""Transformer blocks, positional encodings, masking, and BYOV's encoder and decoder.

Sequences are packed into one (rows, D) tensor. Linear layers process all rows at once, which makes
small batches fast. Attention stays within each sequence and is computed once per group of adjacent
sequences of the same length.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import groupby
from math import floor
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.config import Norm, Position, PositionIn
from byov.train.sampling import Clips

CHUNK_ROWS = 512  # number of frames of a long video processed at a time

Loss = TypeVar("Loss", bound=Callable[..., Any])


def at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def full_precision(loss: Loss) -> Loss:
    """Decorator that computes a loss in at least float32, even under autocast; its first argument
    must be a tensor.
    """

    @wraps(loss)
    def compute(*args: Any, **kwargs: Any) -> Any:
        values = [
            at_least_float32(arg) if torch.is_tensor(arg) and arg.is_floating_point() else arg
            for arg in args
        ]
        with torch.autocast(values[0].device.type, enabled=False):
            return loss(*values, **kwargs)

    return cast(Loss, compute)


def initialize(module: nn.Module) -> None:
    """Initialize linear layers as in MAE; the paper does not specify an initialization."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Group:
    """Group of `batch` adjacent packed sequences of the same length."""

    batch: int
    length: int
    causal: bool = False
    mask: Tensor | None = None  # (batch, 1, length, length), True where attention is allowed

    @property
    def rows(self) -> int:
        return self.batch * self.length


def pack(sequences: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors (B_i, T_i, ...) along their flattened first two dimensions to (rows,
    ...).
    """
    return torch.cat([sequence.flatten(0, 1) for sequence in sequences])


def unpack(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Invert `pack`: split rows into tensors (B_i, T_i, ...) with the first two dimensions of those
    in `like`.
    """
    shapes = [sequence.shape[:2] for sequence in like]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def group(sequences: Sequence[Tensor], causal: Sequence[bool] | None = None) -> list[Group]:
    """Group adjacent sequences of the same length and causality, so that each group needs one
    attention call.
    """
    shapes = [sequence.shape[:2] for sequence in sequences]
    kinds = zip(shapes, causal or [False] * len(shapes), strict=True)
    return [
        Group(sum(batch for (batch, _), _ in same), length, is_causal)
        for (length, is_causal), same in groupby(kinds, key=lambda kind: (kind[0][1], kind[1]))
    ]


def local_attention_mask(
    groups: Sequence[Group], frame_index: Tensor, window: int | None
) -> list[Group]:
    """Add masks that restrict attention to frames at most `window` apart;

    `frame_index` is (rows,).
    """
    if window is None:
        return list(groups)
    masked = []
    for part, rows in zip(
        groups, torch.split(frame_index, [part.rows for part in groups]), strict=True
    ):
        index = rows.view(part.batch, 1, part.length)
        mask = (index[..., :, None] - index[..., None, :]).abs() <= window
        if part.causal:  # attention calls take either a mask or a causal flag
            mask = mask.tril()
        masked.append(replace(part, causal=False, mask=mask))
    return masked


class Block(nn.Module):
    """Pre-norm transformer block as in ViT: attention, then an MLP with expansion ratio 4."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.activation = activation
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, groups: Sequence[Group]) -> Tensor:
        """Apply the block to packed sequences (rows, D)."""
        dropout = self.dropout if self.training else 0.0
        attended = []
        parts = torch.split(self.qkv(self.norm1(x)), [part.rows for part in groups])
        for qkv, part in zip(parts, groups, strict=True):
            q, k, v = self._split_heads(qkv, batch=part.batch)
            values = F.scaled_dot_product_attention(
                q, k, v, part.mask, dropout, is_causal=part.causal
            )
            attended.append(values.transpose(1, 2).flatten(-2).flatten(0, 1))
        return self._update(x, torch.cat(attended))

    def forward_long(self, x: Tensor, window: int | None = None, *, causal: bool = False) -> Tensor:
        """Apply the block to one sequence (T, D) without gradients; memory grows with T, not with
        T².
        """
        if torch.compiler.is_exporting():  # loops of dynamic length cannot be exported
            index = torch.arange(x.shape[0], device=x.device)
            groups = local_attention_mask([Group(1, x.shape[0], causal)], index, window)
            return self.forward(x, groups)
        chunks = [slice(first, first + CHUNK_ROWS) for first in range(0, len(x), CHUNK_ROWS)]
        heads = [self._split_heads(self.qkv(self.norm1(x[rows])), batch=1) for rows in chunks]
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*heads, strict=True))
        index = torch.arange(len(x), device=x.device)
        out = torch.empty_like(x)
        for rows in chunks:
            keys = slice(None)
            mask = None
            if window is not None and window < len(x):
                keys = slice(max(0, rows.start - window), rows.stop + window)
                mask = (index[rows, None] - index[keys]).abs() <= window
            elif causal:
                keys = slice(0, rows.stop)
                mask = index[rows, None] >= index[keys]
            attended = F.scaled_dot_product_attention(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], attn_mask=mask
            )
            out[rows] = self._update(x[rows], attended.transpose(1, 2).flatten(-2)[0])
        return out

    def _split_heads(self, qkv: Tensor, *, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split (rows, 3 D) into queries, keys and values, each (batch, heads, length, D /
        heads).
        """
        rows, width = qkv.shape
        q, k, v = qkv.view(batch, rows // batch, 3, self.heads, width // 3 // self.heads).permute(
            2, 0, 3, 1, 4
        )
        return q, k, v

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self._drop(self.proj(attended))
        hidden = self._drop(self.activation(self.fc1(self.norm2(x))))
        return x + self._drop(self.fc2(hidden))

    def _drop(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.dropout, self.training)


def sincos(positions: Tensor, width: int) -> Tensor:
    """Encode positions (..., T) as vectors (..., T, width): sines in the first half, cosines in the
    second.
    """
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64  # MPS has no float64
    exponents = -torch.arange(width // 2, dtype=dtype, device=positions.device) / (width / 2)
    angles = positions.to(dtype)[..., None] * 10000.0**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Sine-cosine positional encodings for the frames of a clip.

    Args:
        frames: Number of frames per training clip, and of rows in the table of encodings.
        width: Width of the encodings.
        mode: "interpolated": the table, interpolated to the number of sampled frames.
            "normalized": normalized time within the clip, multiplied by the number of rows minus
            one. "index": frame index within the clip. "none": zeros.
    """

    def __init__(self, frames: int, width: int, mode: Position) -> None:
        super().__init__()
        self.width = width
        self.mode = mode
        self.table = nn.Buffer(sincos(torch.arange(frames), width), persistent=False)

    def forward(self, index: Tensor, length: Tensor) -> Tensor:
        """Encode frame indices (B, T) in clips of lengths (B,) as (B, T, width), or (1, T, width)
        if all are equal.

        In the mode "interpolated", padding counts as sampled frames, as in the published code of
        BYOV.
        """
        if self.mode == "index":
            return sincos(index, self.width)
        if self.mode == "normalized":
            return sincos(
                index / (length - 1).clamp(min=1)[:, None] * (len(self.table) - 1), self.width
            )
        sampled = index.shape[-1]
        if self.mode == "none":
            return self.table.new_zeros(1, sampled, self.width)
        return F.interpolate(self.table.T[None], size=sampled, mode="linear").transpose(1, 2)


def interpolate_table(table: Tensor, counts: Tensor, length: int) -> Tensor:
    """Interpolate a table (N, D) linearly to `counts` rows (B,) each; the result (B, length, D)
    repeats the last row.

    Equal to `F.interpolate` with the mode "linear" for each clip, without its padding.
    """
    # (B, length).
    rank = torch.minimum(torch.arange(length, device=table.device), counts[:, None] - 1)
    position = ((rank + 0.5) * (len(table) / counts[:, None]) - 0.5).clamp(0, len(table) - 1)
    lower = position.floor().long()
    upper = (lower + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[lower], table[upper], (position - lower)[..., None].to(table.dtype))


def draw_visible(clips: Clips, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw the sorted indices (B, K) of the frames in each clip that stay visible at a given
    masking ratio.
    """
    shuffled = clips.rand(clips.sampled, generator=generator).argsort(dim=1)
    # 1e-6 because 10 * (1 - 0.9) is slightly less than 1.
    count = floor(clips.sampled * (1 - ratio) + 1e-6)
    return shuffled[:, :count].sort(dim=1).values


def take_frames(values: Tensor, frames: Tensor) -> Tensor:
    """Gather (B, K, D) from values (B, T, D) at the frame indices (B, K)."""
    return values.gather(1, frames[:, :, None].expand(-1, -1, values.shape[-1]))


def masked_frames(visible: Tensor, length: int) -> Tensor:
    """Return a (B, length) mask that is True except at the visible frames (B, K)."""
    return torch.ones(len(visible), length, dtype=torch.bool, device=visible.device).scatter(
        1, visible, False
    )


class FrameBackbone(nn.Module):
    """Base class for backbones, which map each frame of a clip to a vector."""

    context = 0  # distance from a frame back to its context frame, in frames; 0 disables context
    # Whether the embedding of the last frame does not depend on where in the action the clip ends.
    is_causal = False
    # Reason why a batch cannot be split over processes, if any.
    needs_whole_batch: str | None = None

    @abstractmethod
    def forward(self, clips: Sequence[Clips], generator: torch.Generator) -> list[Tensor]:
        """Compute frame vectors (B, T, D) for each element of `clips`, for training."""

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """Embed the features (T, width) of a clip as (T, D), without gradients and dropout."""


class Encoder(FrameBackbone):
    """BYOV's encoder, which maps frame features to latents.

    Args:
        frames: Number of frames per training clip.
        position: Type of positional encoding; see `Positions`.
        position_in: Whether positions are added to the features or to the projected latents.
        norm: Whether the final LayerNorm is applied after the blocks or before them.
        attention_window: Maximum attention distance in frames. None means unlimited.
    """

    def __init__(
        self,
        *,
        width: int,
        latent: int,
        depth: int,
        heads: int,
        frames: int,
        position: Position = "interpolated",
        position_in: PositionIn = "features",
        norm: Norm = "after",
        attention_window: int | None = None,
    ) -> None:
        super().__init__()
        self.is_causal = position in ("index", "none")
        self.norm_first = norm == "before"
        self.attention_window = attention_window
        self.position_in = position_in
        self.positions = Positions(frames, width if position_in == "features" else latent, position)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(latent)

    def forward(
        self,
        clips: Sequence[Clips],
        generator: torch.Generator | None = None,  # noqa: ARG002
        visible: Sequence[Tensor | None] | None = None,
        causal: Sequence[bool] | None = None,
    ) -> list[Tensor]:
        """Encode the visible frames (B, K) of each batch of clips, or all frames if None, as
        latents (B, K, D).

        Where `causal` is true, each frame attends only to itself and earlier frames.
        """
        inputs = []
        for clip, frames in zip(clips, visible or [None] * len(clips), strict=True):
            positions = self.positions(clip.index, clip.length).expand(len(clip.features), -1, -1)
            values = [clip.features, positions, clip.index[..., None]]
            inputs.append(
                values if frames is None else [take_frames(value, frames) for value in values]
            )
        features, positions, index = zip(*inputs, strict=True)
        groups = local_attention_mask(group(features, causal), pack(index), self.attention_window)
        x = self.embed_tokens(pack(features), pack(positions))
        for block in self.blocks:
            x = block(x, groups)
        return unpack(self._final_norm(x), features)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        index = torch.arange(features.shape[0], device=features.device)[None]
        x = self.embed_tokens(features, self.positions(index, index[:, -1] + 1)[0])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, self.attention_window)
        return self._final_norm(x)

    def embed_tokens(self, features: Tensor, positions: Tensor) -> Tensor:
        """Project frame features (rows, width) to latents (rows, D) and add positional
        encodings.
        """
        if self.position_in == "features":
            x: Tensor = self.project(features + positions)
        else:
            x = self.project(features) + positions
        return self.norm(x) if self.norm_first else x

    def _final_norm(self, x: Tensor) -> Tensor:
        return x if self.norm_first else self.norm(x)


class Decoder(nn.Module):
    """BYOV's decoder, which maps latents and mask tokens to frame features.

    `position="none"` is replaced by "interpolated", because mask tokens differ only in their
    positional encodings.
    """

    def __init__(
        self, *, width: int, latent: int, depth: int, heads: int, frames: int, position: Position
    ) -> None:
        super().__init__()
        self.positions = Positions(
            frames, latent, "interpolated" if position == "none" else position
        )
        self.project = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, latent))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, width))

    def tokens(
        self, clips: Clips, latents: Tensor, visible: Tensor | None = None, *, shifted: bool = False
    ) -> Tensor:
        """Project latents, insert mask tokens for frames that are not visible, and add positions:
        (B, T, D).

        If `shifted`, token t holds frame t - 1 with the position of frame t, so that a causal
        decoder reconstructs each frame only from earlier ones.
        """
        x: Tensor = self.project(latents)
        if visible is not None:
            masked = self.mask_token.to(x.dtype).expand(len(x), clips.sampled, -1)
            x = masked.scatter(1, visible[:, :, None].expand(-1, -1, x.shape[-1]), x)
        if shifted:
            x = torch.cat([self.mask_token.to(x.dtype).expand(len(x), -1, -1), x[:, :-1]], dim=1)
        tokens: Tensor = x + self.positions(clips.index, clips.length)
        return tokens

    def forward(
        self, sequences: Sequence[Tensor], frames: Sequence[int], causal: Sequence[bool]
    ) -> list[Tensor]:
        """Decode the first T = `frames` tokens of each sequence; the remaining tokens are context.

        Shapes: sequences (B, T + S, D), results (B, T, width). All sequences are decoded in one
        pass.
        """
        groups = group(sequences, causal)
        x = pack(sequences)
        for block in self.blocks:
            x = block(x, groups)
        decoded = [
            tokens[:, :count] for tokens, count in zip(unpack(x, sequences), frames, strict=True)
        ]
        return unpack(self.head(pack(decoded)), decoded)
