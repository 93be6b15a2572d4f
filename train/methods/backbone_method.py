"""What all methods but BYOV have in common: a backbone, and a loss of its embeddings alone."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from byov.train.autoencoder import initialise
from byov.train.backbones import build_backbone
from byov.train.baseline_settings import BackboneMethodSettings, OfTwoClips
from byov.train.feature_store import CachedVideo
from byov.train.methods.method import Features, Method
from byov.train.sampling import Cut, Pick, Sampler, any_two, ego_with_exo, part


class BackboneMethod(Method):
    settings: BackboneMethodSettings

    def __init__(self, width: int, settings: BackboneMethodSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.backbone = build_backbone(width, settings)
        self.apply(initialise)

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
