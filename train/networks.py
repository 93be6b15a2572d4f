"""Transformer building blocks: packed attention, positions, masking, BYOV's encoder and decoder.

Several sequences are packed row after row, and each attends within itself only. Linear layers see all rows at once,
which makes small batches fast; attention runs once per group of neighboring sequences of the same length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import floor

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.sampling import Clips
from byov.train.settings import Norm, Position, PositionIn

CHUNK_ROWS = 512  # frames of a long video that pass through a block at a time
BASE = 10000.0  # wavelength base of the sine-cosine positions


def at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def initialize(module: nn.Module) -> None:
    """Initialize linear layers as in MAE; the paper does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Group:
    """`batch` packed sequences of the same length."""

    batch: int
    length: int
    causal: bool = False
    mask: Tensor | None = None  # (batch, 1, length, length), True = may attend

    @property
    def rows(self) -> int:
        return self.batch * self.length


def pack(sequences: Sequence[Tensor]) -> Tensor:
    """(B_i, T_i, ...) each -> (rows, ...)."""
    return torch.cat([sequence.flatten(0, 1) for sequence in sequences])


def unpack(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Invert `pack`; the shapes (B_i, T_i) are those of `like`."""
    shapes = [sequence.shape[:2] for sequence in like]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def group(sequences: Sequence[Tensor], causal: Sequence[bool] | None = None) -> list[Group]:
    """Merge neighbors of the same length and causality, so that they attend in one call."""
    groups: list[Group] = []
    for sequence, is_causal in zip(sequences, causal or [False] * len(sequences), strict=True):
        batch, length = sequence.shape[:2]
        last = groups[-1] if groups else None
        if last and last.length == length and last.causal == is_causal:
            groups[-1] = replace(last, batch=last.batch + batch)
        else:
            groups.append(Group(batch, length, is_causal))
    return groups


def local_attention_mask(groups: Sequence[Group], frame_index: Tensor, window: int) -> list[Group]:
    """Restrict attention to frames at most `window` apart, by their (rows,) numbers within their clips."""
    masked = []
    for part, rows in zip(groups, torch.split(frame_index, [part.rows for part in groups]), strict=True):
        index = rows.view(part.batch, 1, part.length)
        masked.append(replace(part, mask=(index[..., :, None] - index[..., None, :]).abs() <= window))
    return masked


class Block(nn.Module):
    """Pre-norm transformer block as in ViT: attention, then an MLP of ratio 4."""

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
        """(rows, D) packed sequences -> (rows, D)."""
        parts = torch.split(self.qkv(self.norm1(x)), [part.rows for part in groups])
        attended = [self._attend(rows, part) for rows, part in zip(parts, groups, strict=True)]
        return self._update(x, torch.cat(attended))

    def forward_long(self, x: Tensor, window: int | None) -> Tensor:
        """Process one sequence (T, D) of any length without gradients; memory grows with T, not with T²."""
        chunks = [slice(first, first + CHUNK_ROWS) for first in range(0, len(x), CHUNK_ROWS)]
        heads = [self._split_heads(self.qkv(self.norm1(x[rows])), batch=1) for rows in chunks]
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*heads, strict=True))
        out = torch.empty_like(x)
        for rows in chunks:
            keys, mask = _visible_keys(rows, len(x), window, x.device)
            attended = F.scaled_dot_product_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], attn_mask=mask)
            out[rows] = self._update(x[rows], attended.transpose(1, 2).flatten(-2)[0])
        return out

    def _attend(self, qkv: Tensor, part: Group) -> Tensor:
        """(rows, 3 D) -> (rows, D)."""
        q, k, v = self._split_heads(qkv, batch=part.batch)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, part.mask, dropout, is_causal=part.causal)
        return attended.transpose(1, 2).flatten(-2).flatten(0, 1)

    def _split_heads(self, qkv: Tensor, *, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, 3 D) -> queries, keys, values, each (batch, heads, length, D / heads)."""
        rows, width = qkv.shape
        q, k, v = qkv.view(batch, rows // batch, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _update(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self._drop(self.proj(attended))
        hidden = self._drop(self.activation(self.fc1(self.norm2(x))))
        return x + self._drop(self.fc2(hidden))

    def _drop(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.dropout, self.training)


def _visible_keys(rows: slice, length: int, window: int | None, device: torch.device) -> tuple[slice, Tensor | None]:
    """Return the keys that the queries of `rows` may attend to, and the mask between the two."""
    if window is None or window >= length:
        return slice(0, length), None
    keys = slice(max(0, rows.start - window), min(length, rows.stop + window))
    queries = torch.arange(rows.start, min(length, rows.stop), device=device)
    return keys, (queries[:, None] - torch.arange(keys.start, keys.stop, device=device)).abs() <= window


def sincos(positions: Tensor, width: int) -> Tensor:
    """(..., T) positions -> (..., T, width) sine-cosine vectors: sines in the first half, then cosines."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64  # MPS has no float64
    frequencies = BASE ** (-torch.arange(width // 2, dtype=dtype, device=positions.device) / (width / 2))
    angles = positions.to(dtype)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Sine-cosine position vectors of a clip's frames.

    Args:
        frames: Frames per training clip, the rows of the table.
        width: Width of the vectors.
        mode: "interpolated": the table, stretched to the number of sampled frames. "share": normalized time within the
            clip on the table's scale, whatever the number of sampled frames. "index": the frame number within the clip.
            "none": zeros.
    """

    table: Tensor

    def __init__(self, frames: int, width: int, mode: Position) -> None:
        super().__init__()
        self.width, self.mode = width, mode
        self.register_buffer("table", sincos(torch.arange(frames), width), persistent=False)

    def forward(self, index: Tensor, length: Tensor) -> Tensor:
        """(B, T) frame numbers within clips of (B,) frames -> (B, T, width), or (1, T, width) if the same for all."""
        sampled = index.shape[-1]
        if self.mode == "index":
            return sincos(index, self.width)
        if self.mode == "share":
            return sincos(index / (length - 1).clamp(min=1)[:, None] * (len(self.table) - 1), self.width)
        if self.mode == "none":
            return self.table.new_zeros(1, sampled, self.width)
        if sampled == len(self.table):
            return self.table[None]
        return F.interpolate(self.table.T[None], size=sampled, mode="linear").transpose(1, 2)


def visible_count(frames: int, ratio: float) -> int:
    """Return how many frames stay visible at a masking ratio, rounded down (with a margin for rounding errors)."""
    return floor(frames * (1 - ratio) + 1e-6)


def draw_visible(clips: Clips, ratio: float, generator: torch.Generator) -> Tensor:
    """Draw the visible frames of each clip: (B, K) indices in temporal order."""
    shuffled = clips.rand(clips.sampled, generator=generator).argsort(dim=1)
    return shuffled[:, : visible_count(clips.sampled, ratio)].sort(dim=1).values


def take_frames(values: Tensor, frames: Tensor) -> Tensor:
    """(B, T, D) values, (B, K) indices -> (B, K, D)."""
    return values.gather(1, frames[:, :, None].expand(-1, -1, values.shape[-1]))


def fill_masked(visible: Tensor, frames: Tensor, length: int, mask_token: Tensor) -> Tensor:
    """Put (B, K, D) visible tokens back at their frames (B, K) of (B, length, D); the others become the mask token."""
    filled = mask_token.to(visible.dtype).expand(len(visible), length, -1)
    return filled.scatter(1, frames[:, :, None].expand(-1, -1, visible.shape[-1]), visible)


def masked_frames(visible: Tensor, length: int) -> Tensor:
    """(B, K) visible frames -> (B, length) True where a frame is masked."""
    return torch.ones(len(visible), length, dtype=torch.bool, device=visible.device).scatter(1, visible, False)


@dataclass(frozen=True)
class EncoderInput:
    """K frames of B clips: all sampled frames, or the visible ones."""

    features: Tensor  # (B, K, width)
    positions: Tensor  # (B, K, width or D)
    index: Tensor  # (B, K) frame number within the clip


@dataclass(frozen=True)
class DecoderInput:
    """Tokens to decode, with positions, and tokens that they may also attend to."""

    tokens: Tensor  # (B, T, D)
    context: Tensor | None = None  # (B, S, D)
    causal: bool = False


class Encoder(nn.Module):
    """BYOV's encoder: frame features (width) -> latents (D).

    Args:
        frames: Frames per training clip.
        position: Positional encoding, see `Positions`.
        position_in: Whether positions are added to the features or to the projected latents.
        norm: Whether the final LayerNorm is applied after the blocks or before them.
        attention_window: Largest attention distance in frames; None: unlimited.
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
        self.norm_first, self.attention_window = norm == "before", attention_window
        self.position_in = position_in
        self.positions = Positions(frames, width if position_in == "features" else latent, position)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(latent)

    def select(self, clips: Clips, visible: Tensor | None = None) -> EncoderInput:
        """Return the input of all sampled frames, or of the `visible` (B, K) ones, with their positions."""
        positions = self.positions(clips.index, clips.length).expand(len(clips.features), -1, -1)
        if visible is None:
            return EncoderInput(clips.features, positions, clips.index)
        features, positions = take_frames(clips.features, visible), take_frames(positions, visible)
        return EncoderInput(features, positions, clips.index.gather(1, visible))

    def forward(self, inputs: Sequence[EncoderInput]) -> list[Tensor]:
        """Return the latents (B, K, D) of each input, all encoded in one pass."""
        features = [sequence.features for sequence in inputs]
        groups = group(features)
        if self.attention_window is not None:
            index = pack([sequence.index for sequence in inputs])
            groups = local_attention_mask(groups, index, self.attention_window)
        x = self._embed_tokens(pack(features), pack([sequence.positions for sequence in inputs]))
        for block in self.blocks:
            x = block(x, groups)
        return unpack(self._final_norm(x), features)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        """(T, width) features of a whole clip -> (T, D); T may be large."""
        index = torch.arange(len(features), device=features.device)[None]
        length = torch.tensor([len(features)], device=features.device)
        x = self._embed_tokens(features, self.positions(index, length)[0])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, self.attention_window)
        return self._final_norm(x)

    def _embed_tokens(self, features: Tensor, positions: Tensor) -> Tensor:
        in_features = self.position_in == "features"
        x: Tensor = self.project(features + positions) if in_features else self.project(features) + positions
        return self.norm(x) if self.norm_first else x

    def _final_norm(self, x: Tensor) -> Tensor:
        return x if self.norm_first else self.norm(x)


class Decoder(nn.Module):
    """BYOV's decoder: latents (D) and mask tokens -> frame features (width).

    Position "none" is replaced by "interpolated", because mask tokens differ by their positions only.
    """

    def __init__(self, *, width: int, latent: int, depth: int, heads: int, frames: int, position: Position) -> None:
        super().__init__()
        self.positions = Positions(frames, latent, "interpolated" if position == "none" else position)
        self.project = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, latent))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, width))

    def mask_filled(self, clips: Clips, latents: Tensor, visible: Tensor) -> Tensor:
        """Return (B, T, D) tokens: latents (B, K, D) of the visible frames, mask tokens elsewhere, with positions."""
        tokens = fill_masked(self.project(latents), visible, clips.sampled, self.mask_token)
        filled: Tensor = tokens + self.positions(clips.index, clips.length)
        return filled

    def add_positions(self, clips: Clips, latents: Tensor) -> Tensor:
        """Return (B, T, D) tokens of the latents of all frames, with positions."""
        tokens: Tensor = self.project(latents) + self.positions(clips.index, clips.length)
        return tokens

    def forward(self, inputs: Sequence[DecoderInput]) -> list[Tensor]:
        """Return the frame features (B, T, width) of each input, all decoded in one pass."""
        sequences = [
            part.tokens if part.context is None else torch.cat([part.tokens, part.context], dim=1) for part in inputs
        ]
        groups = group(sequences, [part.causal for part in inputs])
        x = pack(sequences)
        for block in self.blocks:
            x = block(x, groups)
        decoded = [rows[:, : part.tokens.shape[1]] for rows, part in zip(unpack(x, sequences), inputs, strict=True)]
        return unpack(self.head(pack(decoded)), decoded)
