"""What can be chosen about a run, whatever its method. Each default says where it comes from; docs/fidelity.md has the
whole story. What one method adds or changes is in train/method_settings.py.

A setting that has a description is an option of byov-train, in the help panel of its group.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from byov.errors import SettingsError, TrainError
from byov.records import Record, problem

Backbone = Literal["frame", "transformer", "encoder"]
Pairs = Literal["views", "any"]  # an ego with an exo video, or any two
Position = Literal["interpolated", "share", "index", "none"]
PositionIn = Literal["features", "latent"]
Norm = Literal["after", "before"]  # the encoder's last LayerNorm: after its blocks, or before them
Standardize = Literal["none", "video"]
Optimizer = Literal["adam", "adamw"]
Schedule = Literal["constant", "cosine"]
Select = Literal["retrieval", "trimmed", "both", "tau", "last"]

Settings = TypeVar("Settings", bound=Record)

DEFAULT_RATIO = 0.3  # paper, sec. 4.2
PRELOAD_GIB = 4.0
CHECKPOINT_EVERY = 10  # epochs
LARGEST = 1_000_000  # of any size; what is above is a slip
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


def _rising_shares(crop: tuple[float, float]) -> tuple[float, float]:
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop is {crop}; it must be LOW,HIGH with 0 < LOW <= HIGH <= 1")
    return crop


def _pair(crop: Any) -> Any:
    if not isinstance(crop, tuple | list) or len(crop) != 2:
        raise ValueError(f"crop is {crop!r:.80}; it must be LOW,HIGH, like 0.5,1.0")
    return crop


Crop = Annotated[tuple[float, float], BeforeValidator(_pair), AfterValidator(_rising_shares)]


class SamplingSettings(Record):
    # paper, sec. 4.2
    frames: int = Field(32, ge=2, le=LARGEST, description="Frames sampled per clip (tcn triplets of one video: 36).")
    # paper, sec. 4.2: frames that cover the whole video
    crop: Crop = Field((1.0, 1.0), description="Sample from a random part of the video, of a share from LOW to HIGH.")
    # neither paper nor published code does it
    standardize: Standardize = Field("none", description="Each feature to zero mean, unit deviation per clip.")


class OptimizerSettings(Record):
    """The paper is silent on all of it."""

    # published code
    epochs: int = Field(
        300, ge=1, description="Of as many items (videos or pairs; clips in groups) as training videos."
    )
    batch_size: Size = Field(1, description="Items (videos, pairs or groups of clips) per step.")  # published code
    optimizer: Optimizer = Field("adam", description="AdamW decays weights apart from the gradient.")  # published code
    lr: float = Field(1e-5, gt=0, description="Learning rate.")  # published code
    weight_decay: float = Field(5e-6, ge=0, description="Of the weights.")  # published code
    warmup: float = Field(0.0, ge=0, description="Epochs of linear warm-up.")
    schedule: Schedule = Field("constant", description="Of the learning rate.")  # published code
    clip_grad: Positive | None = Field(None, description="Largest gradient norm.")  # published code


class ValidationSettings(Record):
    validate_every: int = Field(10, ge=1, description="Epochs between validations.")  # published code
    select: Select = Field(
        "retrieval",
        description="What chooses the model on val: cross-view map@10 of whole videos, of sub-clips, the mean of both, "
        "Kendall's tau; or the last model.",
    )


class TrainSettings(ValidationSettings, OptimizerSettings, SamplingSettings):
    """All that decides the numbers of a run, beside the features it reads; a method's own settings build on it."""

    method: str
    seed: int = Field(0, ge=0, lt=2**63, description="Of everything random.")

    summary: ClassVar[str]  # for --help
    name: ClassVar[str]  # for tables
    DEFAULTS: ClassVar[dict[str, Any]] = {}  # a method's own, in the place of those that it inherits
    OF_DATASETS: ClassVar[dict[str, dict[str, Any]]] = {}  # a method's own for a dataset, in the place of its defaults

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, value in cls.DEFAULTS.items():
            cls.model_fields[name].default = value
        cls.model_rebuild(force=True)

    @property
    def label(self) -> str:
        """What names and tables call a run with these settings."""
        return self.method

    @property
    def title(self) -> str:
        """What it is, for the rows of tables."""
        return ", ".join((self.name, *self.variants()))

    def variants(self) -> Iterator[str]:
        """What makes it another row than the method as it is."""
        if self.standardize != type(self).model_fields["standardize"].default:
            yield "standardized" if self.standardize == "video" else "not standardized"

    @property
    def blocks(self) -> int:
        """Transformer blocks of all its networks: what a file says of them is checked before they are built."""
        return 0

    @classmethod
    def presets(cls, dataset: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """What stands in the place of the defaults for a dataset, and with some settings given."""
        return DATASETS.get(dataset, {}) | cls.OF_DATASETS.get(dataset, {})


class EncoderSettings(Record):
    """Of the transformer that BYOV encodes clips with."""

    latent: Size = Field(256, multiple_of=2, description="Latent width, even.")  # paper, sec. 4.2
    depth: Size = Field(12, description="Encoder blocks.")  # paper, sec. 4.2
    heads: Size = Field(16, description="Attention heads.")  # published code; the paper is silent
    # published code; the paper describes the decoder's only
    position: Position = Field(
        "interpolated",
        description="Positions in the encoder: a frame's place among those sampled, its share of the clip, its number "
        "in the clip, or none.",
    )
    position_in: PositionIn = Field("features", description="What positions are added to.")  # published code
    norm: Norm = "after"  # as MAE; the published code has it before the blocks
    # neither has one
    attention_window: Size | None = Field(None, description="Encoder attention reaches N frames either side.")

    @property
    def has_encoder(self) -> bool:
        return True

    @model_validator(mode="after")
    def _heads_divide_latent(self) -> Self:
        if self.has_encoder and self.latent % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a latent of {self.latent}")
        return self


class BackboneSettings(Record):
    """Of the network that a method learns embeddings with, where it can be chosen."""

    backbone: Backbone = Field(
        "frame",
        description="Each frame by itself, with one context frame; or all frames of a clip together, by CARL's small "
        "transformer or by BYOV's encoder.",
    )
    # TCC, GTA and AE2: frames t - 15 and t
    context: int = Field(15, ge=0, le=LARGEST, description="Frames from a frame back to its context frame; 0: none.")


GROUPS: dict[str, type[Record]] = {
    "Backbone": BackboneSettings,
    "Encoder": EncoderSettings,
    "Sampling": SamplingSettings,
    "Optimizer": OptimizerSettings,
    "Validation": ValidationSettings,
}

DATASETS: dict[str, dict[str, Any]] = {
    "tennis_forehand": {"frames": 20},  # paper, sec. 4.2: its videos are shorter
}


def checked(kind: type[Settings], **values: Any) -> Settings:
    """Settings of these values, and the defaults of the others; raises SettingsError for what cannot be."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError(problem(error)) from None


def refuse_unknown(config: Path, given: Iterable[str], known: Collection[str], training: Any) -> None:
    """A setting that this version does not know would be left out, and something else be trained or loaded.

    config, training: the run's file and what it says of the training, which names the byov that has written it.
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        versions = training.get("versions") if isinstance(training, dict) else None
        version = versions.get("byov", "unknown") if isinstance(versions, dict) else "unknown"
        raise TrainError(f"{config}: unknown setting {unknown[0]!r}; byov {version} has written it, use that version")


def differences(ours: TrainSettings, theirs: TrainSettings) -> list[str]:
    """`name theirs, not ours` of each setting that is not the same."""
    return [
        f"{name} {getattr(theirs, name)!r}, not {getattr(ours, name)!r}"
        for name in type(theirs).model_fields
        if getattr(ours, name) != getattr(theirs, name)
    ]
