"""Backbones of the published baselines; the third backbone, BYOV's encoder, is in networks.py."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.networks import Block, FrameBackbone, Group, Positions, interpolate_table
from byov.train.sampling import Clips

# as in the published heads of TCC, GTA and CARL
HIDDEN = 512
DROPOUT = 0.1
WIDTH = 256  # of CARL's transformer


class FrameHead(FrameBackbone):
    """Per-frame MLP with an optional context frame; it does not use the order of frames.

    In TCC, GTA and AE2, two 3-D convolutions precede the MLP, which is not possible with cached
    features.
    """

    is_causal = True

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
        return list(self.out(x).chunk(len(clips)))

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        index = torch.arange(features.shape[0], device=features.device)
        context = features[(index - self.context).clamp(min=0)] if self.context else None
        x = F.relu(self.fc1(self.norm(_with_context(features, context))))
        embedding: Tensor = self.out(F.relu(self.fc2(x)))
        return embedding


class ClipTransformer(FrameBackbone):
    """CARL's network without its convolutions: two layers per frame, then a small transformer over
    the clip.

    Positional encodings are a table for clips of the training length, interpolated to other lengths
    without padding. If `causal` is True, they encode frame indices, and each frame attends only to
    itself and earlier frames.
    """

    needs_whole_batch = "the BatchNorm layers of its transformer need the whole batch"

    def __init__(self, width: int, latent: int, frames: int, *, causal: bool = False) -> None:
        super().__init__()
        self.is_causal = causal
        self.frame = nn.Sequential(
            *_layer(width, HIDDEN), *_layer(HIDDEN, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        )
        self.positions = Positions(frames, WIDTH, "index")
        self.blocks = nn.ModuleList(
            Block(WIDTH, 8, activation=F.relu, dropout=DROPOUT) for _ in range(3)
        )
        self.out = nn.Linear(WIDTH, latent)

    def forward(self, clips: Sequence[Clips], generator: torch.Generator) -> list[Tensor]:
        features = torch.cat([clip.features for clip in clips])
        mask = ~torch.cat([clip.padding for clip in clips])[:, None, None]
        batch, length = features.shape[:2]
        if self.is_causal:
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        # Dropout uses PyTorch's global generator, which is seeded for this call and restored
        # afterwards.
        with torch.random.fork_rng(devices=[features.device] if features.is_cuda else []):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            x = self._embed_tokens(features, torch.cat([clip.index for clip in clips]))
            for block in self.blocks:
                x = block(x, [Group(batch, length, mask=mask)])
        return list(self.out(x).view(batch, length, -1).chunk(len(clips)))

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        was_training = self.training
        self.eval()
        x = self._embed_tokens(
            features[None], torch.arange(features.shape[0], device=features.device)[None]
        )
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, causal=self.is_causal)
        self.train(was_training)
        latents: Tensor = self.out(x)
        return latents

    def _embed_tokens(self, features: Tensor, index: Tensor) -> Tensor:
        """Map features (B, T, width) to tokens (B T, WIDTH).

        BatchNorm statistics include padding, as published.
        """
        x: Tensor = self.frame(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        sampled = index.shape[1]
        length = index[:, -1] + 1  # padding repeats the last frame
        if self.is_causal:
            x = x + self.positions(index, length)
        else:
            x = x + interpolate_table(self.positions.table, length.clamp(max=sampled), sampled)
        return x.flatten(0, 1)


def _with_context(features: Tensor, context: Tensor | None) -> Tensor:
    return features if context is None else torch.cat([context, features], dim=-1)


def _dropout_scale(clips: Sequence[Clips], generator: torch.Generator) -> Tensor:
    """Return dropout factors (B, T, HIDDEN) for all clips; those of an item do not depend on other
    items.
    """
    drawn = torch.cat([clip.rand(clip.sampled, HIDDEN, generator=generator) for clip in clips])
    return (drawn >= DROPOUT) / (1 - DROPOUT)


def _layer(width: int, hidden: int) -> tuple[nn.Module, ...]:
    return nn.Dropout(DROPOUT), nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()
