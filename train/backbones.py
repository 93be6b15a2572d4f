"""Backbones of the published baselines; BYOV's encoder is the third one."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.networks import Block, FrameBackbone, Group, Positions
from byov.train.sampling import Clips

HIDDEN, DROPOUT = 512, 0.1  # published heads of TCC, GTA and CARL
WIDTH, HEADS, BLOCKS = 256, 8, 3  # CARL's transformer


class FrameHead(FrameBackbone):
    """Per-frame MLP, with an optional context frame; it has no notion of order.

    In TCC, GTA and AE2, two 3-D convolutions come before the MLP, which is not possible with cached features.
    """

    def __init__(self, width: int, latent: int, context: int) -> None:
        super().__init__()
        self.context = context
        inputs = 2 * width if context else width
        self.norm = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, latent)

    def forward(self, clips: Sequence[Clips], generator: torch.Generator) -> list[Tensor]:
        x = self.norm(torch.cat([_with_context(clip.features, clip.context) for clip in clips]))
        x = F.relu(self.fc1(x)) * _dropout_scale(clips, generator)
        x = F.relu(self.fc2(x)) * _dropout_scale(clips, generator)
        return _split_clips(self.out(x), clips)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        earlier = (torch.arange(features.shape[0], device=features.device) - self.context).clamp(min=0)
        x = self.norm(_with_context(features, features[earlier] if self.context else None))
        embedding: Tensor = self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return embedding


class ClipTransformer(FrameBackbone):
    """CARL's network after its convolutions: two layers per frame, then a small transformer over the clip.

    Its positions are a table of the training length, interpolated to any other length. If `causal`, they are frame
    numbers, and a frame attends to earlier frames only.
    """

    needs_whole_batch = "the BatchNorm layers of its transformer see all clips of a step together"

    def __init__(self, width: int, latent: int, frames: int, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.frame = nn.Sequential(*_layer(width, HIDDEN), *_layer(HIDDEN, HIDDEN), nn.Linear(HIDDEN, WIDTH))
        self.positions = Positions(frames, WIDTH, "index" if causal else "interpolated")
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, activation=F.relu, dropout=DROPOUT) for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, latent)

    def forward(self, clips: Sequence[Clips], generator: torch.Generator) -> list[Tensor]:
        features = torch.cat([clip.features for clip in clips])
        mask = ~torch.cat([clip.padding for clip in clips])[:, None, None]
        batch, length = features.shape[:2]
        if self.causal:
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        # Dropout draws from PyTorch's global generator, which is seeded for this call and restored afterwards.
        with torch.random.fork_rng(devices=[features.device] if features.is_cuda else []):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            x = self._embed_tokens(features, torch.cat([clip.index for clip in clips]))
            for block in self.blocks:
                x = block(x, [Group(batch, length, mask=mask)])
        return _split_clips(self.out(x).view(batch, length, -1), clips)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        was_training = self.training
        self.eval()
        x = self._embed_tokens(features[None], torch.arange(features.shape[0], device=features.device)[None])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, causal=self.causal)
        latents: Tensor = self.out(x)
        self.train(was_training)
        return latents

    def _embed_tokens(self, features: Tensor, index: Tensor) -> Tensor:
        """(B, T, width) -> (B T, WIDTH) with positions. BatchNorm statistics include padding, as published."""
        x = self.frame(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        tokens: Tensor = x + self.positions(index, index[:, -1] + 1)
        return tokens.flatten(0, 1)


def _split_clips(latents: Tensor, clips: Sequence[Clips]) -> list[Tensor]:
    return list(torch.split(latents, [len(clip.features) for clip in clips]))


def _with_context(features: Tensor, context: Tensor | None) -> Tensor:
    return features if context is None else torch.cat([context, features], dim=-1)


def _dropout_scale(clips: Sequence[Clips], generator: torch.Generator) -> Tensor:
    """Return (clips B, T, HIDDEN) dropout factors; an item's do not depend on the other items of the step."""
    drawn = torch.cat([clip.rand(clip.sampled, HIDDEN, generator=generator) for clip in clips])
    return (drawn >= DROPOUT) / (1 - DROPOUT)


def _layer(width: int, hidden: int) -> tuple[nn.Module, ...]:
    return nn.Dropout(DROPOUT), nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()
