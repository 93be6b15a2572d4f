"""Settings shared by all methods, and functions that resolve the settings of a run.

Each method extends `TrainSettings` in its own file, `train/methods/<method>.py`. Every setting with
a description becomes a byov-train option. Every default cites its source; docs/fidelity.md compares
the defaults with the paper.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from byov.cache.runs import CONFIG_NAME, RunRecord
from byov.errors import SettingsError, TrainError
from byov.plugins import PROBLEMS
from byov.records import Record, problem

DEFAULT_METHOD = "byov"
DEFAULT_RATIO = 0.3  # paper, sec. 4.2
PRELOAD_GIB = 4.0
CHECKPOINT_EVERY = 10  # in epochs
LARGEST = 1_000_000  # upper limit for sizes, to catch typos
WHOLE_VIDEO = (1.0, 1.0)  # crop that covers the whole video
STANDARDIZED = {
    "none": "not standardized",
    "video": "standardized",
    "dataset": "standardized over the dataset",
}
# Settings whose command-line option has a different name.
SHORT_OPTIONS = {"self_view": "self", "cross_view": "cross", "progress_labels": "progress"}

RecordType = TypeVar("RecordType", bound=Record)


def _check_crop(crop: tuple[float, float]) -> tuple[float, float]:
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop is {crop}; it must be LOW,HIGH with 0 < LOW <= HIGH <= 1")
    return crop


Size = Annotated[int, Field(ge=1, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]

# Types of settings whose defaults differ between methods, shared so that a method only overrides
# the default.
Frames = Annotated[
    int, Field(ge=2, le=LARGEST, description="Frames sampled per clip (single-view triplets: 36).")
]
Crop = Annotated[
    tuple[float, float],
    AfterValidator(_check_crop),
    Field(
        description="Range of clip lengths as fractions of the video; each clip is a random part "
        "of it."
    ),
]
Standardize = Annotated[
    Literal["none", "video", "dataset"],
    Field(
        description="Standardize each feature to zero mean and unit variance: over the clip "
        "(video), or over all "
        "training frames (dataset)."
    ),
]
Epochs = Annotated[
    int, Field(ge=1, description="Training epochs. An epoch has one item per training video.")
]
BatchSize = Annotated[Size, Field(description="Items (videos, pairs or groups of clips) per step.")]
Optimizer = Annotated[
    Literal["adam", "adamw"], Field(description="Adam, or AdamW with decoupled weight decay.")
]
LearningRate = Annotated[Positive, Field(description="Learning rate.")]
WeightDecay = Annotated[NonNegative, Field(description="Weight decay.")]
Warmup = Annotated[NonNegative, Field(description="Epochs of linear learning-rate warm-up.")]
Schedule = Annotated[
    Literal["constant", "cosine"], Field(description="Learning-rate schedule after warm-up.")
]
ClipGrad = Annotated[Positive | None, Field(description="Maximum gradient norm.")]
Select = Annotated[
    Literal["retrieval", "trimmed", "both", "tau", "last"],
    Field(
        description="Model-selection metric on the val split: cross-view map@10 of whole videos, "
        "of sub-clips, or the "
        "mean of both; Kendall's tau; or none, to keep the last model."
    ),
]
Backbone = Annotated[
    Literal["frame", "transformer", "encoder"],
    Field(description="Network: a per-frame MLP, CARL's transformer, or BYOV's encoder."),
]
Depth = Annotated[int, Field(ge=1, le=256, description="Number of encoder blocks.")]
Heads = Annotated[Size, Field(description="Number of attention heads.")]
Position = Annotated[
    Literal["interpolated", "share", "index", "none"],
    Field(
        description="Positional encoding in the encoder: rank among the sampled frames, normalized "
        "time in the clip, "
        "frame index in the clip, or none."
    ),
]
PositionIn = Annotated[
    Literal["features", "latent"], Field(description="Where positional encodings are added.")
]
Pairs = Annotated[
    Literal["views", "any"],
    Field(description="Pair an ego with an exo video, or any two training videos."),
]
Temperature = Annotated[Positive, Field(description="Softmax temperature for frame similarities.")]
FeatureDropout = Annotated[
    float, Field(ge=0, lt=1, description="Dropout rate of the input features.")
]
# Whether the encoder's final LayerNorm follows or precedes its blocks.
Norm = Literal["after", "before"]


class SamplingSettings(Record):
    frames: Frames = 32  # paper, sec. 4.2
    crop: Crop = WHOLE_VIDEO  # paper, sec. 4.2: frames are sampled from the whole video
    standardize: Standardize = "none"  # neither the paper nor the published code standardizes


class OptimizerSettings(Record):
    """Optimizer settings. Defaults are from the published code; the paper does not state them."""

    epochs: Epochs = 300
    steps: int | None = Field(
        None,
        ge=1,
        description="Number of optimizer steps, rounded up to whole epochs; replaces --epochs.",
    )
    batch_size: BatchSize = 1
    optimizer: Optimizer = "adam"
    lr: LearningRate = 1e-5
    weight_decay: WeightDecay = 5e-6
    warmup: Warmup = 0.0
    schedule: Schedule = "constant"
    clip_grad: ClipGrad = None
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="Precision of the networks in training; bf16 is bfloat16 autocast with float32 "
        "losses.",
    )


class ValidationSettings(Record):
    # As published.
    validate_every: int = Field(10, ge=1, description="Number of epochs between validations.")
    select: Select = "retrieval"  # our choice; the published code keeps every checkpoint


class TrainSettings(ValidationSettings, OptimizerSettings, SamplingSettings):
    """Base class for method settings, which together with the features determine the results of a
    run.
    """

    method: str
    seed: int = Field(0, ge=0, lt=2**63, description="Random seed.")

    summary: ClassVar[str]  # one sentence for --help
    name: ClassVar[str]  # row title in tables
    # Setting -> {value: text added to the row title}.
    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {}
    DATASET_PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}  # dataset -> {setting: default}

    @property
    def label(self) -> str:
        """Short name of the method or recipe, used in run names."""
        return self.method

    @property
    def unused(self) -> set[str]:
        """Names of the settings that have no effect in this variant."""
        return set()

    @property
    def title(self) -> str:
        """Row title in tables: the method name and the settings that distinguish this variant."""
        own = (texts.get(getattr(self, setting)) for setting, texts in self.VARIANTS.items())
        return ", ".join((self.name, *filter(None, own), *self.common_variants()))

    def with_epochs(self, steps_per_epoch: int) -> Self:
        """Return a copy with `steps` converted to `epochs`; the default warm-up is rescaled
        proportionally.
        """
        if self.steps is None:
            return self
        epochs = -(-self.steps // steps_per_epoch)
        is_default = self.warmup == type(self).model_fields["warmup"].default
        warmup = self.warmup * epochs / self.epochs if is_default else self.warmup
        return self.model_copy(update={"epochs": epochs, "warmup": warmup})

    def common_variants(self) -> Iterator[str]:
        """Yield parts of the row title for shared settings that differ from the method's
        defaults.
        """
        default = type(self).model_fields["standardize"].default
        if self.standardize != self.presets("", dict(self)).get("standardize", default):
            yield STANDARDIZED[self.standardize]

    @classmethod
    def presets(cls, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        """Return defaults that depend on the dataset or on the given settings."""
        return SHARED_PRESETS.get(dataset, {}) | cls.DATASET_PRESETS.get(dataset, {})


class EncoderSettings(Record):
    """Settings of BYOV's encoder."""

    # Paper, sec. 4.2.
    latent: Size = Field(256, multiple_of=2, description="Width of the latents (even).")
    depth: Depth = 12  # paper, sec. 4.2
    heads: Heads = 16  # as in the published code; the paper does not state it
    # As in the published code; the paper describes only the decoder's positions.
    position: Position = "interpolated"
    position_in: PositionIn = "features"  # as in the published code
    norm: Norm = "after"  # as in MAE; the published code normalizes before the blocks
    # neither the paper nor the published code restricts attention
    attention_window: Size | None = Field(
        None, description="Maximum attention distance of the encoder, in frames."
    )

    @property
    def has_encoder(self) -> bool:
        return True

    @model_validator(mode="after")
    def _heads_divide_latent(self) -> Self:
        if self.has_encoder and self.latent % self.heads:
            raise ValueError(
                f"latent {self.latent} is not divisible by {self.heads} heads; change --heads or "
                "--latent"
            )
        return self


class BackboneSettings(Record):
    """Choice of the network that embeds frames. Defaults are those of TCC, GTA and AE2."""

    backbone: Backbone = "frame"
    context: int = Field(
        15,
        ge=0,
        le=LARGEST,
        description="Distance back to the context frame, in frames; 0 disables the context frame.",
    )


# Help panels of byov-train; settings specific to one method are listed under the method.
GROUPS: dict[str, type[Record]] = {
    "Backbone": BackboneSettings,
    "Encoder": EncoderSettings,
    "Sampling": SamplingSettings,
    "Optimizer": OptimizerSettings,
    "Validation": ValidationSettings,
}

SHARED_PRESETS: dict[str, dict[str, Any]] = {
    # Paper, sec. 4.2; its videos are shorter than those of other datasets.
    "tennis_forehand": {"frames": 20},
}


def option_name(setting: str) -> str:
    """Return a setting's option name without leading dashes: "batch_size" -> "batch-size",
    "self_view" -> "self".
    """
    return SHORT_OPTIONS.get(setting, setting).replace("_", "-")


def settings_classes() -> dict[str, type[TrainSettings]]:
    """Return a dict mapping method names to settings classes."""
    from byov.train.methods import METHODS  # deferred, because it imports PyTorch and this module

    return {name: method.settings_class for name, method in METHODS.items()}


def methods_with(setting: str) -> list[str]:
    """Return the names of the methods that have the given setting."""
    return [method for method, cls in settings_classes().items() if setting in cls.model_fields]


def resolve_settings(method: str, dataset: str, given: Mapping[str, Any]) -> TrainSettings:
    """Combine the given settings with a method's defaults for a dataset; raise SettingsError if one
    is invalid.
    """
    cls = _settings_class(method)
    check_names(method, given)
    return checked(cls, **(cls.presets(dataset, given) | dict(given)))


def check_names(method: str, given: Mapping[str, Any]) -> None:
    """Raise SettingsError if the method does not have one of the given settings, or if two of them
    conflict.
    """
    if given.get("steps") is not None and "epochs" in given:
        raise SettingsError(
            "--steps and --epochs both set the length of training; pass only one of them"
        )
    for name in given:
        owners = methods_with(name)
        if not owners:
            names = {field for cls in settings_classes().values() for field in cls.model_fields}
            similar = "".join(
                f" Did you mean {match!r}?" for match in get_close_matches(name, names, 1)
            )
            raise SettingsError(
                f"unknown setting {name!r}.{similar} byov-train --help lists the settings."
            )
        if method not in owners:
            raise SettingsError(
                f"--{option_name(name)} is an option of {', '.join(owners)}; the method is {method}"
            )


def checked(cls: type[RecordType], **values: Any) -> RecordType:
    """Construct a record; raise SettingsError if a value is invalid."""
    try:
        return cls(**values)
    except ValidationError as error:
        raise SettingsError(problem(error)) from None


def settings_of(run: RunRecord) -> TrainSettings:
    """Return the settings that a run was started with."""
    return read_settings(run.folder / CONFIG_NAME, run.settings)


def read_settings(config: Path, raw: Any) -> TrainSettings:
    """Parse the "settings" entry of a config.json file; raise TrainError with its path if the entry
    is invalid.
    """
    if not isinstance(raw, dict) or "method" not in raw:
        raise TrainError(f"{config} has no method settings")
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()
    }
    try:
        return checked(_settings_class(str(values["method"])), **values)
    except SettingsError as error:
        raise TrainError(f"{config}: {error}") from None


def differences(
    ours: TrainSettings, theirs: TrainSettings, names: Iterable[str] | None = None
) -> list[str]:
    """List differing settings as "NAME THEIRS, not OURS"; by default, skip those derived from
    `steps`.
    """
    if names is None:
        decided = (
            {"epochs", "warmup"}
            if theirs.steps is not None and ours.steps == theirs.steps
            else set()
        )
        names = (name for name in type(theirs).model_fields if name not in decided)
    return [
        f"{name} {getattr(theirs, name)!r}, not {getattr(ours, name)!r}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    ]


def _settings_class(method: str) -> type[TrainSettings]:
    classes = settings_classes()
    if method not in classes:
        skipped = "".join(f"; {line}" for line in PROBLEMS)
        raise SettingsError(
            f"unknown method {method!r}; choose one of {', '.join(classes)}{skipped}"
        )
    return classes[method]
