"""The networks that turn clips into frame embeddings, whatever is then learned from them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.autoencoder import build_encoder
from byov.train.baseline_settings import BackboneMethodSettings
from byov.train.clips import Clips
from byov.train.positions import Positions
from byov.train.sampling import before
from byov.train.transformer import Block, Group

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
