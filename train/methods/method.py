"""What a method is: a module whose forward is its loss, and whose embed is what it is for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from byov.cache.standardize import standardized
from byov.errors import TrainError
from byov.train.clips import Batch
from byov.train.feature_store import CachedVideo
from byov.train.hub import HubModel
from byov.train.sampling import Sampler
from byov.train.settings import TrainSettings

Losses = dict[str, Tensor]


class Method(HubModel):
    """The trainer, the embedding pass and the commands know nothing else of a method."""

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
    def embed(self, features: Tensor) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → (T, D) frame embeddings, without gradients."""

    def prepare(self, features: Tensor) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → as the networks take them, in training too."""
        features = features.float()
        return standardized(features) if self.settings.standardize == "video" else features
