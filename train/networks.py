"""The pre-norm transformer block, as in ViT, over several sequences at once.

The sequences are packed row after row, and each attends only within itself. The linear layers see all rows together,
which is what makes small batches quick; attention runs once for each group of neighboring sequences of one length.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import floor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.baseline_settings import BackboneMethodSettings
from byov.train.sampling import Clips, before
from byov.train.settings import EncoderSettings, Norm, Position, PositionIn

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
    """Neighbors of the same length and kind attend in one call."""
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
            keys, mask = _neighborhood(rows, len(x), window, x.device)
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


def _neighborhood(rows: slice, length: int, window: int | None, device: torch.device) -> tuple[slice, Tensor | None]:
    """The keys that the queries of `rows` may see, and the mask between the two."""
    if window is None or window >= length:
        return slice(0, length), None
    keys = slice(max(0, rows.start - window), min(length, rows.stop + window))
    queries = torch.arange(rows.start, min(length, rows.stop), device=device)
    return keys, (queries[:, None] - torch.arange(keys.start, keys.stop, device=device)).abs() <= window


BASE = 10000.0


def sincos(places: Tensor, width: int) -> Tensor:
    """(..., T) places on the time axis → (..., T, width): sines in the first half of the channels, then cosines."""
    precision = torch.float32 if places.device.type == "mps" else torch.float64  # which MPS does not have
    frequencies = BASE ** (-torch.arange(width // 2, dtype=precision, device=places.device) / (width / 2))
    angles = places.to(precision)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Vectors to add to the frames of a clip.

    interpolated: a table of `frames` rows, stretched or squeezed to as many frames as were sampled.
    share: the frame's share of its clip, on the same scale; the same however many frames of the clip are sampled.
    index: the frame's own number, counted from the clip's first frame.
    none: zeros.
    """

    table: Tensor

    def __init__(self, frames: int, width: int, mode: Position) -> None:
        super().__init__()
        self.width, self.mode = width, mode
        self.register_buffer("table", sincos(torch.arange(frames), width), persistent=False)

    def forward(self, index: Tensor, length: Tensor) -> Tensor:
        """(B, T) number of each frame in its clip, (B,) the clips' lengths → (B, T, width), or (1, T, width) where all
        clips have the same."""
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
    """How many of the frames stay visible at a masking ratio; rounded down, but not for a rounding error's sake."""
    return floor(frames * (1 - ratio) + 1e-6)


def draw_visible(clips: Clips, ratio: float, random: torch.Generator) -> Tensor:
    """(B, K) which of the sampled frames stay visible, in temporal order; another random choice for each clip."""
    shuffled = clips.rand(clips.sampled, random=random).argsort(dim=1)
    return shuffled[:, : visible_count(clips.sampled, ratio)].sort(dim=1).values


def take(frames: Tensor, kept: Tensor) -> Tensor:
    """(B, T, D) frames, (B, K) indices → (B, K, D)."""
    return frames.gather(1, kept[:, :, None].expand(-1, -1, frames.shape[-1]))


def fill(visible: Tensor, kept: Tensor, frames: int, mask_token: Tensor) -> Tensor:
    """Put (B, K, D) visible tokens back to their places among T frames; the others become the mask token."""
    filled = mask_token.to(visible.dtype).expand(len(visible), frames, -1)
    return filled.scatter(1, kept[:, :, None].expand(-1, -1, visible.shape[-1]), visible)


def masked(kept: Tensor, frames: int) -> Tensor:
    """(B, T): True where a frame was removed."""
    return torch.ones(len(kept), frames, dtype=torch.bool, device=kept.device).scatter(1, kept, False)


@dataclass(frozen=True, eq=False)
class Seen:
    """What the encoder sees of B clips: all frames that were sampled, or those that a mask leaves; K of them."""

    features: Tensor  # (B, K, width)
    positions: Tensor  # (B, K, width of the features or D)
    index: Tensor  # (B, K) number of each frame in its clip


@dataclass(frozen=True)
class ToDecode:
    """Tokens that are to become frame features again, and those that stand beside them; with their positions."""

    tokens: Tensor  # (B, T, D)
    beside: Tensor | None = None  # (B, S, D)
    causal: bool = False  # a token sees itself and those before it alone


class Encoder(nn.Module):
    """Frame features → latents."""

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

    def see(self, clips: Clips, kept: Tensor | None = None) -> Seen:
        """kept: (B, K) which of the sampled frames; all, if left out."""
        positions = self.positions(clips.index, clips.length).expand(len(clips.features), -1, -1)
        if kept is None:
            return Seen(clips.features, positions, clips.index)
        return Seen(take(clips.features, kept), take(positions, kept), clips.index.gather(1, kept))

    def forward(self, seen: Sequence[Seen]) -> list[Tensor]:
        """The latents (B, K, D) of each."""
        features = [sequence.features for sequence in seen]
        groups = group(features)
        if self.attention_window is not None:
            groups = within(groups, pack([sequence.index for sequence in seen]), self.attention_window)
        x = self._enter(pack(features), pack([sequence.positions for sequence in seen]))
        for block in self.blocks:
            x = block(x, groups)
        return unpack(self._leave(x), features)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        """(T, width) features of a whole clip → (T, D); T may be large."""
        index = torch.arange(len(features), device=features.device)[None]
        x = self._enter(features, self.positions(index, torch.tensor([len(features)], device=features.device))[0])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, self.attention_window)
        return self._leave(x)

    def _enter(self, features: Tensor, positions: Tensor) -> Tensor:
        in_features = self.position_in == "features"
        x: Tensor = self.project(features + positions) if in_features else self.project(features) + positions
        return self.norm(x) if self.norm_first else x

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.norm_first else self.norm(x)


class Decoder(nn.Module):
    """Latents and mask tokens → frame features."""

    def __init__(self, *, width: int, latent: int, depth: int, heads: int, frames: int, position: Position) -> None:
        super().__init__()
        # Mask tokens differ by nothing but their positions, so there are always some.
        self.positions = Positions(frames, latent, "interpolated" if position == "none" else position)
        self.project = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, latent))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, width))

    def mask_filled(self, clips: Clips, latents: Tensor, kept: Tensor) -> Tensor:
        """(B, K, D) latents of the kept frames at their places, mask tokens at the others, positions added."""
        tokens = fill(self.project(latents), kept, clips.sampled, self.mask_token)
        return self._with_positions(clips, tokens)

    def placed(self, clips: Clips, latents: Tensor) -> Tensor:
        """(B, T, D) latents of all frames, positions added."""
        return self._with_positions(clips, self.project(latents))

    def forward(self, given: Sequence[ToDecode]) -> list[Tensor]:
        """The frame features (B, T, width) of each."""
        whole = [part.tokens if part.beside is None else torch.cat([part.tokens, part.beside], dim=1) for part in given]
        groups = group(whole, [part.causal for part in given])
        x = pack(whole)
        for block in self.blocks:
            x = block(x, groups)
        own = [rows[:, : part.tokens.shape[1]] for rows, part in zip(unpack(x, whole), given, strict=True)]
        return unpack(self.head(pack(own)), own)

    def _with_positions(self, clips: Clips, tokens: Tensor) -> Tensor:
        placed: Tensor = tokens + self.positions(clips.index, clips.length)
        return placed


# A loss in the making: yields what it wants encoded, is sent the latents, yields what it wants decoded, is sent the
# frame features, and returns the loss.
Asking = Generator[Sequence[Any], Sequence[Tensor], Tensor]


def side_by_side(encoder: Encoder, decoder: Decoder, parts: Mapping[str, Asking]) -> dict[str, Tensor]:
    """The losses of several parts, with one pass of each network over all that they ask for.

    It is what makes small batches quick. What two of them ask for runs once; the longest sequences come first.
    """
    seen = {name: next(part) for name, part in parts.items()}
    each = sorted(dict.fromkeys(chain(*seen.values())), key=lambda sequence: -sequence.features.shape[1])
    latents = dict(zip(each, encoder(each), strict=True))
    given = {name: part.send([latents[sequence] for sequence in seen[name]]) for name, part in parts.items()}
    tokens = list(chain(*given.values()))
    decoded = iter(decoder(tokens) if tokens else ())
    return {name: _end(part, list(islice(decoded, len(given[name])))) for name, part in parts.items()}


def _end(part: Asking, answers: Sequence[Tensor]) -> Tensor:
    try:
        part.send(answers)
    except StopIteration as done:
        loss: Tensor = done.value
        return loss
    raise RuntimeError("it asks for a third time")


def build_encoder(width: int, frames: int, settings: EncoderSettings) -> Encoder:
    return Encoder(
        width=width,
        frames=frames,
        **{name: getattr(settings, name) for name in EncoderSettings.model_fields},
    )


def initialize(module: nn.Module) -> None:
    """As in MAE; the paper does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


HIDDEN, DROPOUT = 512, 0.1  # of the published heads of TCC, GTA and CARL
WIDTH, HEADS, BLOCKS = 256, 8, 3  # of CARL's transformer


class Backbone(nn.Module):
    """Clips as a method's `prepare` leaves them → a vector for each frame."""

    context = 0  # what its sampler must give with each frame
    needs_whole_steps: str | None = None  # why one process must see all items of a step

    @abstractmethod
    def forward(self, clips: Sequence[Clips], random: torch.Generator) -> list[Tensor]:
        """(B, T, D) of each, for training."""

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """(T, width) a whole clip → (T, D), without gradients and without chance."""


class FrameHead(Backbone):
    """Each frame by itself, or with the one `context` frames before it: a network that knows of no order.

    TCC, GTA and AE2 have two 3-D convolutions here, of which cached features leave the two fully connected layers.
    """

    def __init__(self, width: int, latent: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.norm = nn.LayerNorm(width * (2 if context else 1))
        self.fc1 = nn.Linear(width * (2 if context else 1), HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, latent)

    def forward(self, clips: Sequence[Clips], random: torch.Generator) -> list[Tensor]:
        x = self.norm(torch.cat([_with_context(clip.features, clip.context) for clip in clips]))
        x = F.relu(self.fc1(x)) * _dropout(clips, random)
        x = F.relu(self.fc2(x)) * _dropout(clips, random)
        return _of_each(self.out(x), clips)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        rows = torch.arange(len(features), device=features.device)
        x = self.norm(_with_context(features, features[before(rows, self.context)] if self.context else None))
        embedding: Tensor = self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return embedding


class ClipEncoder(Backbone):
    """BYOV's own encoder: all frames of a clip together."""

    def __init__(self, width: int, settings: BackboneMethodSettings) -> None:
        super().__init__()
        self.encoder = build_encoder(width, settings.frames, settings)

    def forward(self, clips: Sequence[Clips], random: torch.Generator) -> list[Tensor]:  # noqa: ARG002
        latents: list[Tensor] = self.encoder([self.encoder.see(clip) for clip in clips])
        return latents

    def embed(self, features: Tensor) -> Tensor:
        return self.encoder.embed(features)


class ClipTransformer(Backbone):
    """CARL's network behind its convolutions: two layers for each frame, then a small transformer over the clip.

    Its positions are a table of as many rows as frames were sampled in training, stretched to any other number.
    """

    needs_whole_steps = "the BatchNorms of its transformer see all clips of a step together"

    def __init__(self, width: int, latent: int, frames: int) -> None:
        super().__init__()
        self.frame = nn.Sequential(*_layer(width, HIDDEN), *_layer(HIDDEN, HIDDEN), nn.Linear(HIDDEN, WIDTH))
        self.positions = Positions(frames, WIDTH, "interpolated")
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, activation=F.relu, dropout=DROPOUT) for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, latent)

    def forward(self, clips: Sequence[Clips], random: torch.Generator) -> list[Tensor]:
        features = torch.cat([clip.features for clip in clips])
        seen = ~torch.cat([clip.repeated for clip in clips])[:, None, None]  # of each frame by all others
        batch, length = features.shape[:2]
        with seeded(random, features.device):
            x = self._enter(features)
            for block in self.blocks:
                x = block(x, [Group(batch, length, mask=seen)])
            latents: Tensor = self.out(x)
        return _of_each(latents.view(batch, length, -1), clips)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        with evaluating(self):
            x = self._enter(features[None])
            for block in self.blocks:
                assert isinstance(block, Block)
                x = block.forward_long(x, None)
            latents: Tensor = self.out(x)
        return latents

    def _enter(self, features: Tensor) -> Tensor:
        """(B, T, width) → (B T, WIDTH), positions added. The BatchNorms count padding too."""
        index = torch.arange(features.shape[1], device=features.device)[None]
        x = self.frame(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        placed: Tensor = x + self.positions(index, index[:, -1] + 1)
        return placed.flatten(0, 1)


def build_backbone(width: int, settings: BackboneMethodSettings) -> Backbone:
    if settings.backbone == "encoder":
        return ClipEncoder(width, settings)
    if settings.backbone == "transformer":
        return ClipTransformer(width, settings.latent, settings.frames)
    return FrameHead(width, settings.latent, settings.context)


def _of_each(latents: Tensor, clips: Sequence[Clips]) -> list[Tensor]:
    """All clips' after one another → each one's."""
    return list(torch.split(latents, [len(clip.features) for clip in clips]))


def _with_context(features: Tensor, context: Tensor | None) -> Tensor:
    return features if context is None else torch.cat([context, features], dim=-1)


def _dropout(clips: Sequence[Clips], random: torch.Generator) -> Tensor:
    """(clips B, T, HIDDEN) what to multiply with: an item's is the same whatever other items are beside it."""
    drawn = torch.cat([clip.rand(clip.sampled, HIDDEN, random=random) for clip in clips])
    return (drawn >= DROPOUT) / (1 - DROPOUT)


def _layer(width: int, hidden: int) -> tuple[nn.Module, ...]:
    return nn.Dropout(DROPOUT), nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()


@contextmanager
def seeded(random: torch.Generator, device: torch.device) -> Iterator[None]:
    """Within, PyTorch's own modules draw by `random` alone; after it, all is as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(torch.randint(2**62, (), generator=random)))
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    was = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was)
