"""What every method implements, and what losses over padded clips share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import model_validator
from torch import Tensor

from byov.cache.features import standardize
from byov.train.backbones import ClipEncoder, ClipTransformer, FrameBackbone, FrameHead
from byov.train.feature_store import CachedVideo
from byov.train.hub import HubModel
from byov.train.networks import Encoder, initialize
from byov.train.sampling import Batch, Draw, Sampler, draw_clip, pick_any_two, pick_views
from byov.train.settings import (
    WHOLE_VIDEO,
    BackboneSettings,
    BatchSize,
    EncoderSettings,
    LearningRate,
    Pairs,
    TrainSettings,
    WeightDecay,
)

Losses = dict[str, Tensor]
Features = Tensor | NDArray[Any]  # NumPy arrays are moved to the model's device


class Method(HubModel):
    """Base class of all methods: a model and its training loss."""

    settings_class: ClassVar[type[TrainSettings]]

    @property
    def needs_whole_batch(self) -> str | None:
        """Why a batch cannot be split over several processes, or None if it can."""
        return None

    def training_state(self) -> dict[str, Tensor]:
        """Return training-only state, saved in checkpoints but not in the model file."""
        return {}

    def reset_training_state(self, num_videos: int) -> None:
        """Allocate the training-only state for a number of training videos."""

    @abstractmethod
    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        """Return how training clips are drawn; raise TrainError if the videos do not allow it."""

    @abstractmethod
    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        """Compute the losses of a batch.

        Args:
            clips: The clips of a step, as drawn by `sampler`.
            generator: The only source of randomness.

        Returns:
            Scalar losses by name, each a mean over the items. "loss" is minimized; the others are logged.
        """

    @abstractmethod
    def embed(self, features: Features) -> Tensor:
        """Embed one clip without gradients: (T, width) features as cached -> (T, D) frame embeddings."""

    def prepare(self, features: Features) -> Tensor:
        """Convert (T, width) cached features of a clip to float32, standardized if the settings say so."""
        if isinstance(features, np.ndarray):  # copied: tensors cannot share read-only or reversed memory
            features = torch.from_numpy(np.array(features, np.float32)).to(next(self.parameters()).device)
        features = features.float()
        return standardize(features) if self.settings.standardize == "video" else features


class BackboneMethodSettings(BackboneSettings, EncoderSettings, TrainSettings):
    """Settings of a method that consists of a backbone and a loss on its embeddings."""

    batch_size: BatchSize = 4  # GTA
    lr: LearningRate = 1e-4  # TCC, GTA and CARL
    weight_decay: WeightDecay = 1e-5  # CARL

    def variants(self) -> Iterator[str]:
        if self.backbone != type(self).model_fields["backbone"].default:
            names = {"frame": "frame by frame", "transformer": "CARL's transformer", "encoder": "BYOV's encoder"}
            yield names[self.backbone] + (" without positions" if self.position == "none" else "")
        yield from super().variants()

    @property
    def has_encoder(self) -> bool:
        return self.backbone == "encoder"

    @model_validator(mode="after")
    def _options_belong_to_backbone(self) -> Self:
        encoder_only = dict.fromkeys(sorted(EncoderSettings.model_fields.keys() - {"latent"}), "encoder")
        for name, backbone in (encoder_only | {"context": "frame"}).items():
            if self.backbone != backbone and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is an option of the {backbone} backbone; the backbone is {self.backbone}")
        return self

    def require_whole_videos(self, reason: str) -> None:
        """Raise ValueError if a crop is set, for methods whose clips are not random parts."""
        if self.crop != WHOLE_VIDEO:
            raise ValueError(f"crop {self.crop[0]:g},{self.crop[1]:g}: {reason}; leave --crop out")


class BackboneMethod(Method):
    """Method that consists of a backbone and a loss on its embeddings."""

    settings: BackboneMethodSettings

    def __init__(self, width: int, settings: BackboneMethodSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.backbone = build_backbone(width, settings)
        self.apply(initialize)

    @property
    def unit_norm(self) -> bool:
        """Whether embeddings are evaluated as unit vectors."""
        return False

    @property
    def needs_whole_batch(self) -> str | None:
        return self.backbone.needs_whole_batch

    def embed(self, features: Features) -> Tensor:
        embedding = self.backbone.embed(self.prepare(features))
        return F.normalize(embedding, dim=-1) if self.unit_norm else embedding

    def build_sampler(
        self,
        videos: Sequence[CachedVideo],
        draw_item: Callable[[np.random.Generator], Sequence[Draw]],
        items: int | None = None,
    ) -> Sampler:
        """Return a sampler with the backbone's context frames; by default, one item per video and epoch."""
        return Sampler(videos, draw_item, items=items or len(videos), context=self.backbone.context)


class PairSettings(BackboneMethodSettings):
    """Settings of a method that aligns two videos."""

    pairs: Pairs = "any"  # AE2 draws any two videos


class PairMethod(BackboneMethod):
    """Method that aligns two clips of different videos."""

    settings: PairSettings

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        pick = pick_views(videos, "--pairs is views") if s.pairs == "views" else pick_any_two(videos)
        return self.build_sampler(videos, lambda rng: [draw_clip(video, s.frames, s.crop, rng) for video in pick(rng)])


def build_encoder(width: int, frames: int, settings: EncoderSettings) -> Encoder:
    options = {name: getattr(settings, name) for name in EncoderSettings.model_fields}
    return Encoder(width=width, frames=frames, **options)


def build_backbone(width: int, settings: BackboneMethodSettings) -> FrameBackbone:
    if settings.backbone == "encoder":
        return ClipEncoder(build_encoder(width, settings.frames, settings))
    if settings.backbone == "transformer":
        return ClipTransformer(width, settings.latent, settings.frames)
    return FrameHead(width, settings.latent, settings.context)


def hide_padding(logits: Tensor, padding: Tensor) -> Tensor:
    """Exclude (N, T) padding from a softmax over the last dimension of (N, ..., T) logits, unless all is padding."""
    between = (1,) * (logits.dim() - padding.dim())
    return logits.masked_fill(padding.view(len(padding), *between, -1), torch.finfo(logits.dtype).min)


def mean_over_items(values: Tensor, counted: Tensor) -> Tensor:
    """Average (N, ...) values over the counted ones of each item (0 if there are none), then over the items."""
    return ((values * counted).flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1).clamp(min=1)).mean()


def own_frame_cross_entropy(logits: Tensor, padding: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy of each frame finding itself, with label smoothing.

    -Σ_k q_ik log softmax_k(logits_ik), where q_ik = (1 - smoothing) [i = k] + smoothing / T.

    Shapes: logits (N, T, T), padding (N, T), result (N, T). Padded frames are no k and do not count in T.
    """
    log_probabilities = hide_padding(logits, padding).log_softmax(dim=-1).masked_fill(padding[:, None], 0)
    frames = (~padding).sum(dim=1, keepdim=True)
    own, mean = log_probabilities.diagonal(dim1=1, dim2=2), log_probabilities.sum(dim=-1) / frames
    return -((1 - smoothing) * own + smoothing * mean)
