"""What a method is: a module whose forward is its loss, and whose embed is what it is for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.features import standardize
from byov.errors import TrainError
from byov.train.baseline_settings import BackboneMethodSettings, OfTwoClips
from byov.train.feature_store import CachedVideo
from byov.train.hub import HubModel
from byov.train.networks import build_backbone, initialize
from byov.train.sampling import Batch, Cut, Pick, Sampler, any_two, ego_with_exo, part
from byov.train.settings import TrainSettings

Losses = dict[str, Tensor]
Features = Tensor | NDArray[Any]  # of NumPy's, which a model takes to where it is


class Method(HubModel):
    """The trainer, the embedding pass and the commands know nothing else of a method."""

    @property
    def needs_whole_steps(self) -> str | None:
        """Why several processes cannot take a part of a step each; None if they can."""
        return None

    def memory(self) -> dict[str, Tensor]:
        """What it remembers of the training videos: in checkpoints, and in no model's file."""
        return {}

    @classmethod
    def kind(cls, settings: TrainSettings) -> type[Self]:
        from byov.train.methods.method_registry import METHODS  # which knows them all, and this file

        kind = METHODS[settings.method]
        if not issubclass(kind, cls):
            raise TrainError(f"a model of method {settings.method}, not a {cls.__name__}")
        return kind

    @abstractmethod
    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        """The clips that it wants of the training videos; raises TrainError if they cannot give them."""

    @abstractmethod
    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        """Losses by name, means over the items; "loss" is what to descend on. Chance comes from `random` alone."""

    @abstractmethod
    def embed(self, features: Features) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → (T, D) frame embeddings, without gradients."""

    def prepare(self, features: Features) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → as the networks take them, in training too."""
        if isinstance(features, np.ndarray):  # a copy: tensors share no memory that is read-only or runs backwards
            features = torch.from_numpy(np.array(features, np.float32)).to(next(self.parameters()).device)
        features = features.float()
        return standardize(features) if self.settings.standardize == "video" else features


class BackboneMethod(Method):
    settings: BackboneMethodSettings

    def __init__(self, width: int, settings: BackboneMethodSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.backbone = build_backbone(width, settings)
        self.apply(initialize)

    @property
    def unit(self) -> bool:
        """Whether it is judged by unit vectors."""
        return False

    @property
    def needs_whole_steps(self) -> str | None:
        return self.backbone.needs_whole_steps

    def embed(self, features: Features) -> Tensor:
        embedding = self.backbone.embed(self.prepare(features))
        return F.normalize(embedding, dim=-1) if self.unit else embedding

    def sampled(self, videos: Sequence[CachedVideo], pick: Pick, cut: Cut, items: int | None = None) -> Sampler:
        """A sampler with the context that the backbone wants; items per epoch: as many as videos, if not given."""
        return Sampler(videos, pick, cut, items=items or len(videos), context=self.backbone.context)


class AlignedClips(BackboneMethod):
    """Of two clips of different videos."""

    settings: OfTwoClips

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        pick = ego_with_exo(videos, "--pairs is views") if s.pairs == "views" else any_two(videos)
        return self.sampled(videos, pick, part(s.frames, s.crop))
