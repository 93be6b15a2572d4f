"""Configuration of a run: sampling, optimizer, model selection and the method's own options.

`RunConfig` is what config.json holds. Each method extends `MethodConfig` in its own file,
`train/methods/<method>.py`. Settings have unique names, so they can also be written as one flat
dict; every setting with a description is a byov-train option of that name. Every default cites its
source, and docs/fidelity.md compares the defaults with the paper.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationError, model_validator
from pydantic.fields import FieldInfo

from byov.errors import SettingsError
from byov.records import Record, problem

DEFAULT_METHOD = "byov"
DEFAULT_RATIO = 0.3  # paper, sec. 4.2
LARGEST = 1_000_000  # upper limit for sizes, to catch typos
PRELOAD_GIB = 4.0
CHECKPOINT_EVERY = 10  # in epochs
WHOLE_VIDEO = (1.0, 1.0)  # crop that covers the whole video
# Dataset -> {setting: default}, for all methods.
DATASETS: dict[str, dict[str, Any]] = {
    # Paper, sec. 4.2: 20 frames, because the videos of Tennis Forehand are shorter.
    "tennis_forehand": {"frames": 20},
}

RecordType = TypeVar("RecordType", bound=Record)


def checked(cls: type[RecordType], **values: Any) -> RecordType:
    """Construct a record; raise SettingsError if a value is invalid."""
    try:
        return cls(**values)
    except ValidationError as error:
        raise SettingsError(problem(error)) from None


def _check_crop(crop: tuple[float, float]) -> tuple[float, float]:
    if not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(f"crop is {crop}; it must be LOW,HIGH with 0 < LOW <= HIGH <= 1")
    return crop


Size = Annotated[int, Field(ge=1, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Crop = Annotated[tuple[float, float], AfterValidator(_check_crop)]
Standardize = Literal["none", "video", "dataset"]

# Options that several methods have, with different defaults.
Backbone = Annotated[
    Literal["frame", "transformer", "encoder"],
    Field(description="Network: a per-frame MLP, CARL's transformer, or BYOV's encoder."),
]
Depth = Annotated[int, Field(ge=1, le=256, description="Number of encoder blocks.")]
Heads = Annotated[Size, Field(description="Number of attention heads.")]
Position = Annotated[
    Literal["interpolated", "normalized", "index", "none"],
    Field(
        description="Positional encoding in the encoder: rank among the sampled frames, normalized "
        "time in the clip, frame index in the clip, or none."
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


class SamplingConfig(Record):
    """Clips that a method is trained on."""

    frames: int = Field(  # paper, sec. 4.2
        32,
        ge=2,
        le=LARGEST,
        description="Frames sampled per clip (single-view triplets: 36).",
    )
    crop: Crop = Field(  # paper, sec. 4.2: frames are sampled from the whole video
        WHOLE_VIDEO,
        description="Range of clip lengths as fractions of the video; each clip is a random part "
        "of it.",
    )
    standardize: Standardize = Field(  # neither the paper nor the published code standardizes
        "none",
        description="Standardize each feature to zero mean and unit variance: over the clip "
        "(video), or over all training frames (dataset).",
    )


class OptimizerConfig(Record):
    """Optimizer and its schedule. Defaults are from the published code; the paper does not state
    them.
    """

    epochs: int = Field(
        300, ge=1, description="Training epochs. An epoch has one item per training video."
    )
    steps: int | None = Field(
        None,
        ge=1,
        description="Number of optimizer steps, rounded up to whole epochs; replaces --epochs.",
    )
    batch_size: Size = Field(1, description="Items (videos, pairs or groups of clips) per step.")
    optimizer: Literal["adam", "adamw"] = Field(
        "adam", description="Adam, or AdamW with decoupled weight decay."
    )
    lr: Positive = Field(1e-5, description="Learning rate.")
    weight_decay: NonNegative = Field(5e-6, description="Weight decay.")
    warmup: NonNegative = Field(0.0, description="Epochs of linear learning-rate warm-up.")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="Learning-rate schedule after warm-up."
    )
    clip_grad: float | None = Field(None, gt=0, description="Maximum gradient norm.")
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="Precision of the networks in training; bf16 is bfloat16 autocast with float32 "
        "losses.",
    )


class SelectionConfig(Record):
    """Validation and model selection."""

    # As published.
    validate_every: int = Field(10, ge=1, description="Number of epochs between validations.")
    # Our choice; the published code keeps every checkpoint.
    select: Literal["retrieval", "trimmed", "both", "tau", "last"] = Field(
        "retrieval",
        description="Model-selection metric on the val split: cross-view map@10 of whole videos, "
        "of sub-clips, or the mean of both; Kendall's tau; or none, to keep the last model.",
    )


PARTS: dict[str, type[Record]] = {
    "sampling": SamplingConfig,
    "optimizer": OptimizerConfig,
    "selection": SelectionConfig,
}


class MethodConfig(Record):
    """Base class for the options of a method."""

    name: str

    summary: ClassVar[str]  # one sentence for --help
    table_name: ClassVar[str]  # row title in tables
    # Option -> {value: text added to the row title}.
    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {}
    # Defaults of sampling, optimizer and selection settings; and dataset -> {setting: default}.
    TRAINING: ClassVar[dict[str, Any]] = {}
    DATASETS: ClassVar[dict[str, dict[str, Any]]] = {}
    # Option -> {value: {setting: default}}, for options that only choose the defaults of others.
    # The defaults of the first of these options take precedence.
    PRESETS: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}

    @property
    def label(self) -> str:
        """Short name of the method or recipe, used in run names."""
        return self.name

    @property
    def title(self) -> str:
        """Row title in tables: the method name and the options that distinguish this variant."""
        variant = (texts.get(getattr(self, option)) for option, texts in self.VARIANTS.items())
        return ", ".join((self.table_name, *filter(None, variant)))

    @property
    def unused(self) -> set[str]:
        """Names of the options that have no effect in this variant."""
        return set()

    @classmethod
    def defaults(cls, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default of each setting: of the method, then the dataset, then the recipe."""
        usual = {name: field.default for name, field in cls.settings().items()}
        usual |= cls.TRAINING | DATASETS.get(dataset, {}) | cls.DATASETS.get(dataset, {})
        for option, presets in reversed(cls.PRESETS.items()):
            usual |= presets.get(given.get(option, usual[option]), {})
        if "epochs" in given:  # replaces the number of steps
            usual["steps"] = None
        return usual

    @classmethod
    def settings(cls) -> dict[str, FieldInfo]:
        """Return a dict mapping the names of all settings of a run to their fields."""
        return {
            **SamplingConfig.model_fields,
            **OptimizerConfig.model_fields,
            **SelectionConfig.model_fields,
            "seed": RunConfig.model_fields["seed"],
            **{name: field for name, field in cls.model_fields.items() if name != "name"},
        }

    def check_sampling(self, sampling: SamplingConfig) -> None:
        """Raise ValueError if the method cannot be trained on such clips."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the model."""
        return {name: value for name, value in self if name not in ("name", *self.PRESETS)}


class RunConfig(Record):
    """All settings that, together with the features, determine the results of a run."""

    sampling: SamplingConfig
    optimizer: OptimizerConfig
    selection: SelectionConfig
    seed: int = Field(0, ge=0, lt=2**63, description="Random seed.")
    method: SerializeAsAny[MethodConfig]

    @model_validator(mode="after")
    def _sampling_suits_the_method(self) -> Self:
        self.method.check_sampling(self.sampling)
        return self

    @property
    def title(self) -> str:
        """Row title in tables: the method's, and the standardization if it is not the usual one."""
        standardize = self.sampling.standardize
        if standardize == type(self.method).defaults("", self.flat())["standardize"]:
            return self.method.title
        texts = {
            "none": "not standardized",
            "video": "standardized",
            "dataset": "standardized over the dataset",
        }
        return f"{self.method.title}, {texts[standardize]}"

    def flat(self) -> dict[str, Any]:
        """Return all settings in one dict, by the names of their options."""
        return {
            **dict(self.sampling),
            **dict(self.optimizer),
            **dict(self.selection),
            "method": self.method.name,
            "seed": self.seed,
            **self.method.model_dump(exclude={"name"}),
        }

    def with_epochs(self, steps_per_epoch: int) -> Self:
        """Return a copy with `steps` converted to `epochs`; the default warm-up is rescaled
        proportionally.
        """
        optimizer = self.optimizer
        if optimizer.steps is None:
            return self
        epochs = -(-optimizer.steps // steps_per_epoch)
        warmup = optimizer.warmup
        if warmup == type(self.method).defaults("", {})["warmup"]:
            warmup = warmup * epochs / optimizer.epochs
        changes = {"epochs": epochs, "warmup": warmup}
        return self.model_copy(update={"optimizer": optimizer.model_copy(update=changes)})


class EncoderConfig(Record):
    """Options of BYOV's encoder."""

    # Paper, sec. 4.2.
    latent: Size = Field(256, multiple_of=2, description="Width of the latents (even).")
    depth: Depth = 12  # paper, sec. 4.2
    heads: Heads = 16  # as in the published code; the paper does not state it
    # As in the published code; the paper describes only the decoder's positions.
    position: Position = "interpolated"
    position_in: PositionIn = "features"  # as in the published code
    norm: Norm = "after"  # as in MAE; the published code normalizes before the blocks
    # neither the paper nor the published code restricts attention
    attention_window: int | None = Field(
        None, ge=1, le=LARGEST, description="Maximum attention distance of the encoder, in frames."
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
