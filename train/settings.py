"""What can be chosen about a run. Each default says where it comes from; docs/fidelity.md has the whole story.

A setting that has a description is an option of byov-train, in the help panel of its group.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from byov.cache.runs import RunRecord
from byov.errors import SettingsError, TrainError
from byov.records import Record, problem

Recipe = Literal["paper", "official", "cycle"]
Position = Literal["interpolated", "index", "none"]
Norm = Literal["after", "before"]  # the encoder's last LayerNorm: after its blocks, or before them
Standardize = Literal["none", "video"]
Pairs = Literal["views", "any"]  # an ego with an exo video, or any two
Schedule = Literal["constant", "cosine"]
Select = Literal["retrieval", "trimmed", "both", "tau", "last"]

Settings = TypeVar("Settings", bound=Record)

LARGEST = 1_000_000  # of any size; what is above is a slip
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]


def _rising_shares(crop: tuple[float, float]) -> tuple[float, float]:
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop is {crop}; it must be LOW,HIGH with 0 < LOW <= HIGH <= 1")
    return crop


class ModelSettings(Record):
    latent: Size = Field(256, multiple_of=2, description="Latent width, even.")  # paper, sec. 4.2
    depth: Size = Field(12, description="Encoder blocks.")  # paper, sec. 4.2
    decoder_depth: Size = Field(4, description="Decoder blocks.")  # paper, sec. 4.2
    heads: Size = Field(16, description="Attention heads.")  # published code; the paper is silent
    # published code; the paper describes the decoder's only
    position: Position = Field(
        "interpolated", description="Positions in the encoder: share of the clip, frame number, or none."
    )
    norm: Norm = "after"  # as MAE; the published code has it before the blocks
    # neither has one
    attention_window: Size | None = Field(None, description="Encoder attention reaches N frames either side.")
    # neither does it
    standardize: Standardize = Field("none", description="Each feature to zero mean, unit deviation per video.")

    @model_validator(mode="after")
    def _heads_divide_latent(self) -> Self:
        if self.latent % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a latent of {self.latent}")
        return self


class ModelArguments(ModelSettings):
    """All that the model's constructor takes."""

    width: Size = Field(multiple_of=2)  # of the features
    frames: int = Field(ge=2, le=LARGEST)  # that it is trained on
    training: dict[str, Any] | None


class ObjectiveSettings(Record):
    self_view: bool = Field(True, description="Masked self-view modeling.")
    cross_view: bool = Field(True, description="Masked cross-view modeling.")
    causal: bool = Field(True, description="Causal self-view decoder.")  # paper, sec. 3.4
    mask_self: Share = Field(0.4, description="Share of frames masked, self-view.")  # paper, sec. 4.2
    mask_cross: Share = Field(0.8, description="Share of frames masked, cross-view.")  # paper, sec. 4.2
    masked_only: bool = False  # the paper's loss is over all frames
    # beyond the paper
    cycle: float = Field(0.0, ge=0, description="Weight of temporal cycle-consistency.")
    order_prior: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Cycles prefer frames at the same share of the other clip, with this deviation."
    )

    @model_validator(mode="after")
    def _there_is_something_to_learn(self) -> Self:
        if self.order_prior is not None and not self.cycle:
            raise ValueError("order_prior is of the cycles, and cycle is 0; give --cycle a weight")
        if not (self.self_view or self.cross_view or self.cycle):
            raise ValueError("nothing to learn from: --no-self, --no-cross, and no --cycle")
        masks = self.self_view * self.mask_self + self.cross_view * self.mask_cross
        if self.masked_only and not masks and not self.cycle:
            raise ValueError("nothing to learn from: the loss is over masked frames, and none is masked")
        return self


class SamplingSettings(Record):
    frames: int = Field(32, ge=2, le=LARGEST, description="Frames sampled per video.")  # paper, sec. 4.2
    pairs: Pairs = "views"  # paper, sec. 3: an ego and an exo video
    # paper, sec. 4.2: frames that cover the whole video
    crop: Annotated[tuple[float, float], AfterValidator(_rising_shares)] = Field(
        (1.0, 1.0), description="Sample from a random part of the video, of a share from LOW to HIGH."
    )


class OptimiserSettings(Record):
    """The paper is silent on all of it."""

    epochs: int = Field(300, ge=1, description="Of as many pairs as training videos.")  # published code
    batch_size: Size = Field(1, description="Pairs per step.")  # published code
    lr: float = Field(1e-5, gt=0, description="Of Adam.")  # published code
    weight_decay: float = Field(5e-6, ge=0, description="Of Adam.")  # published code
    warmup: float = Field(0.0, ge=0, description="Epochs of linear warm-up.")
    schedule: Schedule = Field("constant", description="Of the learning rate.")  # published code
    clip_grad: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Largest gradient norm."
    )  # published code


class ValidationSettings(Record):
    validate_every: int = Field(10, ge=1, description="Epochs between validations.")  # published code
    select: Select = Field(
        "retrieval",
        description="What chooses the model on val: cross-view map@10 of whole videos, of sub-clips, the mean of both, "
        "Kendall's tau; or the last model.",
    )


GROUPS: dict[str, type[Record]] = {
    "Model": ModelSettings,
    "Objective": ObjectiveSettings,
    "Sampling": SamplingSettings,
    "Optimiser": OptimiserSettings,
    "Validation": ValidationSettings,
}


class TrainSettings(ValidationSettings, OptimiserSettings, SamplingSettings, ObjectiveSettings, ModelSettings):
    """All that decides the numbers of a run, beside the features it reads."""

    recipe: Recipe = Field("paper", description="The paper's text, its published code, or beyond: with cycles.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of everything random.")


DATASETS: dict[str, dict[str, Any]] = {
    "break_eggs": {"batch_size": 4},  # published code
    "tennis_forehand": {"frames": 20},  # paper, sec. 4.2: its videos are shorter
}

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "official": {"pairs": "any", "norm": "before", "masked_only": True},
    "cycle": {"standardize": "video", "crop": (0.5, 1.0), "cycle": 5.0},
}


def choose(dataset: str, *, recipe: Recipe = "paper", **given: Any) -> TrainSettings:
    """The settings of a recipe for a dataset, with those that are given in their place."""
    if recipe not in RECIPES:
        raise TrainError(f"recipe {recipe!r}; choose one of {', '.join(RECIPES)}")
    return checked(TrainSettings, **({"recipe": recipe} | DATASETS.get(dataset, {}) | RECIPES[recipe] | given))


def checked(kind: type[Settings], **values: Any) -> Settings:
    """Settings of these values, and the defaults of the others; raises SettingsError for what cannot be."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError(problem(error)) from None


def settings_of(run: RunRecord) -> TrainSettings:
    """What a run was started with. A setting that this version has added since takes its default."""
    raw = run.training.get("settings")
    if not isinstance(raw, dict):
        raise TrainError(f"{run.config}: it does not say its settings")
    refuse_unknown(run.config, raw, TrainSettings.model_fields, run.training)
    values = raw | ({"crop": tuple(raw["crop"])} if isinstance(raw.get("crop"), list) else {})
    try:
        return checked(TrainSettings, **values)
    except SettingsError as error:
        raise TrainError(f"{run.config}: {error}") from None


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
        for name in TrainSettings.model_fields
        if getattr(ours, name) != getattr(theirs, name)
    ]
