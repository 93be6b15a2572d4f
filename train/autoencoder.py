"""The masked ego-exo autoencoder: B clips, T frames, width of the features, D latent dimensions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byov.cache.standardize import standardized
from byov.train.hub import HubModel
from byov.train.positions import Positions
from byov.train.settings import ModelArguments, Norm, Position, Standardize, checked
from byov.train.transformer import Block, group, pack, unpack, within


class Encoder(nn.Module):
    """Frame features → latents. Positions are added to the features, before the projection."""

    def __init__(
        self,
        *,
        width: int,
        latent: int,
        depth: int,
        heads: int,
        frames: int,
        position: Position = "interpolated",
        norm: Norm = "after",
        attention_window: int | None = None,
    ) -> None:
        super().__init__()
        self.norm_first, self.attention_window = norm == "before", attention_window
        self.positions = Positions(frames, width, position)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(latent)

    def forward(self, sequences: Sequence[Tensor], frame_index: Sequence[Tensor]) -> list[Tensor]:
        """Latents of several sequences of placed frames, (B, T_i, width) each, in one pass; none sees another.

        frame_index: (B, T_i) number of each frame in its clip.
        """
        groups = group(sequences)
        if self.attention_window is not None:
            groups = within(groups, pack(frame_index), self.attention_window)
        x = self._enter(pack(sequences))
        for block in self.blocks:
            x = block(x, groups)
        return unpack(self._leave(x), sequences)

    def place(self, frames: Tensor, frame_index: Tensor) -> Tensor:
        """(B, T, width) features with their positions added."""
        placed: Tensor = frames + self.positions(frame_index)
        return placed

    @torch.no_grad()
    def embed(self, frames: Tensor) -> Tensor:
        """(T, width) features of a whole clip → (T, D); T may be large."""
        frame_index = torch.arange(len(frames), device=frames.device)[None]
        x = self._enter(self.place(frames[None], frame_index)[0])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, self.attention_window)
        return self._leave(x)

    def _enter(self, placed: Tensor) -> Tensor:
        x: Tensor = self.project(placed)
        return self.norm(x) if self.norm_first else x

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.norm_first else self.norm(x)


class Decoder(nn.Module):
    """Latents and mask tokens → frame features."""

    def __init__(self, *, width: int, latent: int, depth: int, heads: int, frames: int, position: Position) -> None:
        super().__init__()
        # Mask tokens differ by nothing but their positions, so there are always some.
        self.positions = Positions(frames, latent, "index" if position == "index" else "interpolated")
        self.project = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, latent))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, width))

    def place(self, tokens: Tensor, frame_index: Tensor) -> Tensor:
        placed: Tensor = tokens + self.positions(frame_index)
        return placed

    def forward(self, sequences: Sequence[Tensor], causal: Sequence[bool]) -> list[Tensor]:
        """Several sequences of placed tokens, (B, T_i, D) each, in one pass; none sees another."""
        groups = group(sequences, causal)
        x = pack(sequences)
        for block in self.blocks:
            x = block(x, groups)
        return unpack(x, sequences)

    def reconstruct(self, tokens: Tensor) -> Tensor:
        """(B, T, D) decoded tokens → (B, T, width) frame features."""
        frames: Tensor = self.head(tokens)
        return frames


class Autoencoder(HubModel):
    """Encoder and decoder. training: what it was trained on and how, used by nothing here."""

    def __init__(
        self,
        *,
        width: int,
        latent: int,
        depth: int,
        decoder_depth: int,
        heads: int,
        frames: int,
        position: Position = "interpolated",
        norm: Norm = "after",
        attention_window: int | None = None,
        standardize: Standardize = "none",
        training: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        checked(
            ModelArguments,
            width=width,
            latent=latent,
            depth=depth,
            decoder_depth=decoder_depth,
            heads=heads,
            frames=frames,
            position=position,
            norm=norm,
            attention_window=attention_window,
            standardize=standardize,
            training=training,
        )
        self.width, self.latent, self.standardize, self.record = width, latent, standardize, training or {}
        self.encoder = Encoder(
            width=width,
            latent=latent,
            depth=depth,
            heads=heads,
            frames=frames,
            position=position,
            norm=norm,
            attention_window=attention_window,
        )
        self.decoder = Decoder(
            width=width, latent=latent, depth=decoder_depth, heads=heads, frames=frames, position=position
        )
        self.apply(_initialise)
        nn.init.normal_(self.decoder.mask_token, std=0.02)

    def prepare(self, features: Tensor) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → as the model takes them, in training too."""
        features = features.float()
        return standardized(features) if self.standardize == "video" else features

    def forward(self, frames: Tensor) -> Tensor:
        """(B, T, width) features of whole clips → (B, T, D) latents."""
        frame_index = torch.arange(frames.shape[1], device=frames.device)[None].expand(len(frames), -1)
        latents: Tensor = self.encoder([self.encoder.place(frames, frame_index)], [frame_index])[0]
        return latents

    def embed(self, features: Tensor) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → (T, D) frame embeddings."""
        return self.encoder.embed(self.prepare(features))


def _initialise(module: nn.Module) -> None:
    """As in MAE; the paper does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
