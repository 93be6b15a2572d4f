"""The paper's encoder and decoder: B clips, T frames, width of the features, D latent dimensions.

Both take any number of sequences at once and run them in one pass; none sees another.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from byov.train.clips import Clips
from byov.train.masking import fill, take
from byov.train.positions import Positions
from byov.train.settings import EncoderSettings, Norm, Position, PositionIn
from byov.train.transformer import Block, group, pack, unpack, within


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


def initialise(module: nn.Module) -> None:
    """As in MAE; the paper does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
