"""Clips: frames sampled from videos, with all that a method may ask of them."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clips:
    """B clips of T frames: one clip of each of a step's items, or of those of them that this process takes."""

    features: Tensor  # (B, T, width), as the method takes them
    index: Tensor  # (B, T) number of each frame in its clip
    first: Tensor  # (B,) the number in its video of the clip's first frame
    length: Tensor  # (B,) frames of the clip, of which T were sampled
    video_length: Tensor  # (B,) frames of the whole video
    video: Tensor  # (B,) number of the video among the training videos
    view: Tensor  # (B,) 0: ego, 1: exo
    padding: Tensor | None  # (B, T) True for what fills up a clip that is too short; None: nowhere
    first_item: int  # of the step's items
    items: int  # of the whole step
    context: Tensor | None = None  # (B, T, width) features of an earlier frame of the clip, where a method asks for it

    @property
    def sampled(self) -> int:
        """T."""
        return self.features.shape[1]

    @property
    def repeated(self) -> Tensor:
        """(B, T) the padding, also where there is none."""
        return torch.zeros_like(self.index, dtype=torch.bool) if self.padding is None else self.padding

    @property
    def frame(self) -> Tensor:
        """(B, T) number of each frame in its video."""
        return self.first[:, None] + self.index

    @property
    def share_of_clip(self) -> Tensor:
        """(B, T) from 0 at the clip's first frame to 1 at its last."""
        return self.index / (self.length - 1).clamp(min=1)[:, None]

    @property
    def share_of_video(self) -> Tensor:
        """(B, T) from 0 at the video's first frame to 1 at its last."""
        return self.frame / (self.video_length - 1).clamp(min=1)[:, None]

    def rand(self, *shape: int, random: torch.Generator) -> Tensor:
        """(B, *shape) numbers from 0 to 1: an item's are the same wherever the others of its step are."""
        drawn = torch.rand(self.items, *shape, generator=random)
        return drawn[self.first_item : self.first_item + len(self.features)].to(self.features.device)

    def thinned(self, share: float, random: torch.Generator) -> Self:
        """With a share of the features' values dropped, and the others larger by as much."""
        if not share:
            return self

        def thin(values: Tensor) -> Tensor:
            return values * (self.rand(*values.shape[1:], random=random) >= share) / (1 - share)

        context = None if self.context is None else thin(self.context)
        return replace(self, features=thin(self.features), context=context)

    def to(self, device: torch.device) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return replace(self, **moved)


Batch = tuple[Clips, ...]  # the first clip of each item, the second of each item, ...
