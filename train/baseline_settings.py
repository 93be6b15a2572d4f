"""What can be chosen about the learned baselines of the paper's tables; docs/baselines.md has the formulas.

The constants are those of each method's own publication or code. Where a value was chosen here, it is said.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from byov.train.settings import BackboneSettings, EncoderSettings, Pairs, Positive, Share, Size, TrainSettings

WHOLE = (1.0, 1.0)
NETWORKS = {"frame": "frame by frame", "transformer": "CARL's transformer", "encoder": "BYOV's encoder"}


class BackboneMethodSettings(BackboneSettings, EncoderSettings, TrainSettings):
    """Of a method that is a backbone and a loss of its embeddings. The optimizer is TCC's, GTA's and CARL's."""

    DEFAULTS: ClassVar[dict[str, Any]] = {"batch_size": 4, "lr": 1e-4, "weight_decay": 1e-5}

    def variants(self) -> Iterator[str]:
        if self.backbone != type(self).model_fields["backbone"].default:
            yield NETWORKS[self.backbone] + (" without positions" if self.position == "none" else "")
        yield from super().variants()

    @property
    def has_encoder(self) -> bool:
        return self.backbone == "encoder"

    @property
    def blocks(self) -> int:
        return self.depth if self.has_encoder else 0

    @model_validator(mode="after")
    def _settings_are_of_the_backbone(self) -> Self:
        of_encoder = sorted(EncoderSettings.model_fields.keys() - {"latent"})
        for name, backbone in (*((name, "encoder") for name in of_encoder), ("context", "frame")):
            if self.backbone != backbone and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is of the backbone {backbone}, and the backbone is {self.backbone}")
        return self

    @model_validator(mode="after")
    def _crops_are_of_methods_that_have_them(self) -> Self:
        if self.whole_videos and self.crop != WHOLE:
            low, high = self.crop
            raise ValueError(f"crop {low:g},{high:g}: {self.whole_videos}; leave --crop out")
        return self

    @property
    def whole_videos(self) -> str:
        """Why its clips are not of random parts, if they are not."""
        return ""


class OfTwoClips(BackboneMethodSettings):
    """Of a method that aligns two videos."""

    # AE2 draws any two, which may be the same
    pairs: Pairs = Field("any", description="Any two videos, or an ego with an exo video.")


class TccSettings(OfTwoClips):
    """Of train/methods/tcc.py."""

    summary = "temporal cycle-consistency."
    name = "TCC"

    method: Literal["tcc"] = "tcc"
    tcc_loss: Literal["variance", "mse", "classification"] = Field("variance", description="What a cycle is told.")
    similarity: Literal["l2", "dot"] = "l2"
    temperature: Positive = Field(0.1, description="Of the similarities between frames.")
    variance_weight: float = Field(0.001, ge=0, description="Of the logarithm of the variance.")
    smoothing: Share = 0.1  # of the targets of a classification

    def variants(self) -> Iterator[str]:
        if self.tcc_loss != "variance":
            yield self.tcc_loss
        yield from super().variants()


class GtaSettings(OfTwoClips):
    """Of train/methods/gta.py."""

    summary = "global temporal alignment by soft dynamic time warping."
    name = "GTA"

    method: Literal["gta"] = "gta"
    unnormalized: bool = Field(False, description="As in AE2's code: no unit vectors, and the loss a hundredth.")
    temperature: Positive = Field(0.1, description="Of the similarities between frames.")
    gamma: Positive = Field(0.1, description="How soft the minimum of the alignment is.")
    smoothing: Share = 0.1  # of the targets of the cycles
    path_weight: float = 0.1  # of the alignment, beside the cycles

    def variants(self) -> Iterator[str]:
        if self.unnormalized:
            yield "unnormalized"
        yield from super().variants()


class Ae2AlignmentSettings(OfTwoClips):
    """Of train/methods/ae2_alignment.py."""

    summary = "AE2's alignment loss, without its object-centric encoder."
    name = "AE2 alignment loss, no object encoder"

    method: Literal["ae2-alignment"] = "ae2-alignment"
    contrastive: bool = Field(True, description="Reversed clips must align worse; else the alignment alone.")
    subset: Size = Field(30, description="Frames of each clip that are also aligned, and reversed, by themselves.")
    reversed_weight: float = Field(1.0, ge=0, description="Of the reversed clips.")
    margin: float = Field(0.0, ge=0, description="By which reversed clips must be worse, or negatives further away.")
    halves: bool = Field(False, description="Of these frames the first or the second half, by a coin.")
    temperature: Positive = Field(0.1, description="Of the similarities between frames.")
    gamma: Positive = Field(0.1, description="How soft the minimum of the alignment is.")

    DEFAULTS: ClassVar[dict[str, Any]] = OfTwoClips.DEFAULTS | {"lr": 5e-5}
    # Its scripts. That of Pour Milk has the plain loss.
    OF_DATASETS: ClassVar[dict[str, dict[str, Any]]] = {
        "pour_milk": {"contrastive": False, "lr": 1e-4},
        "pour_liquid": {"subset": 16, "reversed_weight": 2.0, "halves": True},
        "tennis_forehand": {"subset": 10, "reversed_weight": 4.0},
    }

    def variants(self) -> Iterator[str]:
        if not self.contrastive:
            yield "not contrastive"
        yield from super().variants()

    @model_validator(mode="after")
    def _subset_is_of_the_frames(self) -> Self:
        if self.contrastive and self.subset > self.frames:
            raise ValueError(f"subset {self.subset} of {self.frames} frames; give --subset a number up to --frames")
        return self


class TcnSettings(BackboneMethodSettings):
    """Of train/methods/tcn.py."""

    summary = "time-contrastive networks; multi needs synchronized pairs of videos."
    name = "TCN"

    method: Literal["tcn"] = "tcn"
    tcn: Literal["single", "multi", "unpaired"] = Field(
        "single",
        description="What a frame's positive is: a frame shortly before, the same instant in the other view, or the "
        "same share of any video of the other view.",
    )
    tcn_loss: Literal["npairs", "triplet"] = Field("npairs", description="N-pairs, or semi-hard triplets.")
    window: Size = 5  # single-view n-pairs: a positive is so many frames before at most
    span: Size = 580  # multi-view: the frames of one term lie within so many
    regularization: float = 0.002
    margin: float = Field(0.2, ge=0, description="By which reversed clips must be worse, or negatives further away.")
    positive_radius: Size = 6  # single-view triplets: positives are so many frames apart at most,
    negative_radius: Size = 12  # negatives more than so many

    @property
    def label(self) -> str:
        return f"tcn-{self.tcn}"

    def variants(self) -> Iterator[str]:
        yield {"single": "single-view", "multi": "multi-view", "unpaired": "unpaired multi-view"}[self.tcn]
        if self.tcn_loss == "triplet":
            yield "triplets"
        yield from super().variants()

    @classmethod
    def presets(cls, dataset: str, given: dict[str, Any]) -> dict[str, Any]:
        single_triplets = given.get("tcn", "single") == "single" and given.get("tcn_loss") == "triplet"
        return super().presets(dataset, given) | ({"frames": 36} if single_triplets else {})

    @property
    def whole_videos(self) -> str:
        return "" if self.tcn == "single" else f"--tcn {self.tcn} compares whole videos"

    @model_validator(mode="after")
    def _there_are_negatives(self) -> Self:
        apart = self.negative_radius + 1
        if (self.tcn, self.tcn_loss) == ("single", "triplet") and self.frames <= apart:
            raise ValueError(
                f"frames {self.frames}: triplets of one video need two that are {apart} apart; give --frames "
                f"{apart + 1} or more"
            )
        return self


class CarlSettings(BackboneMethodSettings):
    """Of train/methods/carl.py."""

    summary = "sequence contrastive loss of two crops of one video."
    name = "CARL"

    method: Literal["carl"] = "carl"
    variance: Positive = Field(10.0, description="Of the distances between frames that count as the same, in frames².")
    temperature: Positive = Field(0.1, description="Of the similarities between frames.")
    overlap: Share = 0.2  # of the two crops, at least
    # ours: cached features allow for no change of colors or sizes, so that both crops show the same
    feature_dropout: float = Field(0.0, ge=0, lt=1, description="Share of the features' values set to zero.")

    DEFAULTS: ClassVar[dict[str, Any]] = BackboneMethodSettings.DEFAULTS | {
        "backbone": "transformer",
        "frames": 80,
        "schedule": "cosine",
        "clip_grad": 10.0,
    }

    @classmethod
    def presets(cls, dataset: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        return {}  # short videos are filled up

    @property
    def whole_videos(self) -> str:
        return "carl has a rule of its own for its crops"


class ActorObserverSettings(BackboneMethodSettings):
    """Of train/methods/actor_observer.py."""

    summary = "ActorObserverNet's triplets; needs synchronized pairs of videos."
    name = "ActorObserverNet"

    method: Literal["actor-observer"] = "actor-observer"
    weighted: bool = Field(True, description="Triplets weigh what the network says; off: all the same.")
    every: Size = 4  # exo frames are so many frames apart, or a multiple of it
    far: Share = Field(0.3, description="A negative is further away than this share of the ego video.")  # ours; 10 s
    decay: Share = 0.95  # of the running means of the weights
    means: Literal["all", "video"] = "all"  # whose losses the running mean of the losses is of

    def variants(self) -> Iterator[str]:
        if not self.weighted:
            yield "unweighted"
        yield from super().variants()

    @property
    def whole_videos(self) -> str:
        return "actor-observer compares whole videos"


BASELINES: dict[str, type[BackboneMethodSettings]] = {
    "tcn": TcnSettings,
    "actor-observer": ActorObserverSettings,
    "carl": CarlSettings,
    "tcc": TccSettings,
    "gta": GtaSettings,
    "ae2-alignment": Ae2AlignmentSettings,
}
