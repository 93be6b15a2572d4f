"""What a method is: a module whose forward is its loss, and whose embed is what it is for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.standardize import standardized
from byov.errors import TrainError
from byov.train.clips import Batch
from byov.train.feature_store import CachedVideo
from byov.train.hub import HubModel
from byov.train.sampling import Sampler
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
        return standardized(features) if self.settings.standardize == "video" else features
