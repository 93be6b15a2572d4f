"""Base classes for methods, and helpers for losses over padded clips.

Models are saved as config.json and model.safetensors, and loaded from folders or the Hugging Face
Hub, without pickles.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from numpy.typing import NDArray
from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from byov.cache.features import SMALLEST_DEVIATION, standardize
from byov.cache.runs import CONFIG_NAME, FILES_KEY, MODEL_NAME, check_model, read_config
from byov.errors import SettingsError, TrainError
from byov.records import Record
from byov.train.backbones import ClipTransformer, FrameHead
from byov.train.config import (
    LARGEST,
    WHOLE_VIDEO,
    Backbone,
    Crop,
    EncoderConfig,
    MethodConfig,
    Norm,
    Pairs,
    Position,
    PositionIn,
    RunConfig,
    SamplingConfig,
    Size,
    Standardize,
    checked,
)
from byov.train.feature_store import CachedVideo, FeatureStore
from byov.train.networks import Encoder, FrameBackbone, initialize
from byov.train.registry import METHODS, parse_config
from byov.train.sampling import Batch, BatchSource, Sampler, draw_pair

Losses = dict[str, Tensor]
Features = Tensor | NDArray[Any]  # NumPy arrays are moved to the model's device
ReadFeatures = Callable[[CachedVideo], NDArray[np.float16]]

CARD = """---
{header}
---
# {title}

This model embeds frames of ego and exo videos. It has {parameters:.3f} million parameters and was
trained with the method `{method}` of byov, an implementation of "Bootstrap Your Own Views" (Park et
al., CVPR 2025) and its baselines. Load it with `byov.train.methods.base.Method.from_pretrained`.
Training data, val scores and settings:

```json
{facts}
```
"""


class SavedModel(Record):
    """Contents of config.json."""

    schema_version: int = 1
    width: Size = Field(multiple_of=2)
    settings: dict[str, Any]  # a RunConfig
    training: dict[str, Any] | None = None


class Method(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="byov",
    tags=["ego-exo", "video", "byov"],
    license="mit",
):
    """Base class for all methods; a method is a model with its training loss.

    Args:
        width: Width of the input features.
        frames: Number of frames per training clip.
        crop: Range of the lengths of training clips, as fractions of the video.
        standardize: Standardization of the features: "none", "video" or "dataset".

    Attributes:
        config: Settings that the model was built with, saved with it in config.json.
        record: Description of the training run and its data, saved with it as well.
    """

    config_class: ClassVar[type[MethodConfig]]
    config: RunConfig
    record: dict[str, Any]
    # Reason why a batch cannot be split over processes, if any.
    needs_whole_batch: str | None = None
    # Whether the model suits live video; see `FrameBackbone.is_causal`.
    is_causal = False

    def __init__(self, width: int, *, frames: int, crop: Crop, standardize: Standardize) -> None:
        super().__init__()
        self.width = width
        self.frames = frames
        self.crop = crop
        self.standardization = standardize
        # Statistics of the training features, set in `start_training`.
        if standardize == "dataset":
            self.feature_mean = nn.Buffer(torch.zeros(width))
            self.feature_deviation = nn.Buffer(torch.ones(width))

    def describe(
        self, config: RunConfig, record: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Set what is saved with the model, its settings and a record of the training run, and
        return it: the contents of config.json.

        Raises:
            SettingsError: If the width of the features is not supported.
        """
        self.config = config
        self.record = dict(record or {})
        settings = config.model_dump(mode="json")
        saved = checked(SavedModel, width=self.width, settings=settings, training=self.record)
        self._hub_mixin_config = saved.model_dump()
        return self._hub_mixin_config

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        names = ("dataset", "encoder", "column", "preprocessing", "recipe", "seed", "validation")
        facts = {name: self.record[name] for name in names if name in self.record}
        facts["settings"] = self.config.model_dump(
            mode="json", exclude={"method": self.config.method.unused}
        )
        return ModelCard(
            CARD.format(
                header=self._hub_mixin_info.model_card_data.to_yaml(),
                title=self.config.title,
                method=self.config.method.name,
                parameters=sum(parameter.numel() for parameter in self.parameters()) / 1e6,
                facts=json.dumps(facts, indent=1),
            )
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str = "cpu",
        **download: Any,
    ) -> Self:
        """Load a model from a folder or the Hugging Face Hub; `download` is passed to
        `hf_hub_download`.

        Raises:
            ByovError: If the model does not exist, its files are damaged, or it belongs to another
                class.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            try:
                config_file = hf_hub_download(str(folder), CONFIG_NAME, **download)
                hf_hub_download(str(folder), MODEL_NAME, **download)
            except (HFValidationError, HfHubHTTPError, OSError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise TrainError(
                    f"{folder} is neither a folder nor a model on the Hugging Face Hub. Pass the "
                    "folder of a run, such as runs/demo-byov; byov-runs lists the runs. "
                    f"({reason})"
                ) from None
            folder = Path(config_file).parent
        path = folder / CONFIG_NAME
        try:
            saved = checked(SavedModel, **read_config(folder))
            config = parse_config(path, saved.settings)
            method = METHODS[config.method.name]
            if not issubclass(method, cls):
                raise TrainError(
                    f"{path} describes a {config.method.name} model, not a {cls.__name__}"
                )
            check_model(folder, saved.training or {})
            check_sizes(folder / MODEL_NAME, saved.width, config)
            # The file digests apply to the original run folder, but not to a saved copy.
            record = {k: v for k, v in (saved.training or {}).items() if k != FILES_KEY}
            model = build_method(saved.width, config, record)
        except SettingsError as error:
            raise TrainError(f"{path}: {error}") from None
        assert isinstance(model, cls)
        model.load_state_dict(load_file(folder / MODEL_NAME))
        return model.to(map_location).eval()

    def start_training(
        self,
        videos: Sequence[CachedVideo],
        read: ReadFeatures,
        seed: int = 0,  # noqa: ARG002
    ) -> None:
        """Compute what the method needs from the training videos; `read` returns the features (T,
        width) of one.

        Overriding methods must call this one, which computes the statistics for `--standardize
        dataset`.
        """
        if self.standardization == "dataset":
            count = 0
            sums = np.zeros((2, self.width))
            for video in videos:
                features = read(video).astype(np.float64)
                count += len(features)
                sums += features.sum(axis=0), np.square(features).sum(axis=0)
            mean, mean_square = sums / count
            deviation = np.sqrt(np.maximum(mean_square - np.square(mean), 0)) + SMALLEST_DEVIATION
            self.feature_mean.copy_(torch.from_numpy(mean))
            self.feature_deviation.copy_(torch.from_numpy(deviation))

    def training_state(self) -> dict[str, Tensor]:
        """Return training-only state, which is saved in checkpoints but not in the model file."""
        return {}

    @abstractmethod
    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        """Return a sampler of training clips; raise TrainError if the method cannot be trained on
        these videos.
        """

    @abstractmethod
    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        """Compute the losses for a batch.

        Args:
            clips: Batch of clips drawn by `sampler`.
            generator: Random number generator, the only source of randomness.

        Returns:
            Dict mapping loss names to scalar means over the items. "loss" is minimized; the others
            are only logged.
        """

    def diagnose(self, clips: Batch, generator: torch.Generator) -> dict[str, float]:  # noqa: ARG002
        """Return losses of a batch that tell whether the model has learned anything; recorded with
        each validation.
        """
        return {}

    @abstractmethod
    def embed(self, features: Features) -> Tensor:
        """Embed the cached features (T, width) of a clip as frame embeddings (T, D), without
        gradients.
        """

    def prepare(self, features: Features) -> Tensor:
        """Convert the cached features (T, width) of a clip to float32 and standardize them."""
        # copy: tensors support neither read-only memory nor negative strides.
        if isinstance(features, np.ndarray):
            features = torch.from_numpy(np.array(features, np.float32)).to(
                next(self.parameters()).device
            )
        return self.standardize(features.float())

    def standardize(self, features: Tensor) -> Tensor:
        if self.standardization == "dataset":  # training batches are prepared on the CPU
            mean = self.feature_mean.to(features.device)
            deviation = self.feature_deviation.to(features.device)
            return (features - mean) / deviation
        return standardize(features) if self.standardization == "video" else features


def build_method(width: int, config: RunConfig, record: Mapping[str, Any] | None = None) -> Method:
    """Build a method for features of the given width, initialized with the seed in its config."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: Method = METHODS[config.method.name](
            width, **dict(config.sampling), **config.method.arguments()
        )
    model.describe(config, record)
    return model


def training_batches(
    model: Method,
    videos: Sequence[CachedVideo],
    store: FeatureStore,
    config: RunConfig,
    local_items: Callable[[int], range] = range,
) -> BatchSource:
    """Prepare a model for training on the given videos, and return the source of its batches."""
    model.start_training(videos, store.read, config.seed)
    return BatchSource(
        model.sampler(videos),
        store,
        model.prepare,
        batch_size=config.optimizer.batch_size,
        seed=config.seed,
        local_items=local_items,
    )


def check_sizes(weights: Path, width: int, config: RunConfig) -> None:
    """Raise TrainError unless the tensor shapes in a file match the model, without allocating the
    model.
    """
    try:
        with torch.device("meta"):
            built = build_method(width, config).state_dict()
    # Raised by PyTorch for absurd sizes.
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TrainError(
            f"{weights.with_name(CONFIG_NAME)} specifies impossible tensor sizes: {reason}"
        ) from None
    if {name: tuple(tensor.shape) for name, tensor in built.items()} != tensor_shapes(weights):
        raise TrainError(f"{weights} does not contain the weights of the model in {CONFIG_NAME}.")


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return a dict mapping the tensor names in a safetensors file to shapes, without reading the
    tensors.
    """
    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise TrainError(f"{path} is not a readable safetensors file: {error}") from error


class BackboneMethodConfig(EncoderConfig, MethodConfig):
    """Base class for the options of methods that apply a loss to the embeddings of a backbone.

    The default backbone is that of TCC, GTA and AE2.
    """

    backbone: Backbone = "frame"
    context: int = Field(
        15,
        ge=0,
        le=LARGEST,
        description="Distance back to the context frame, in frames; 0 disables the context frame.",
    )

    NO_CROP: ClassVar[str | None] = None  # reason why the method does not support --crop, if any
    TRAINING: ClassVar[dict[str, Any]] = {
        "batch_size": 4,  # as in GTA
        "lr": 1e-4,  # as in TCC, GTA and CARL
        "weight_decay": 1e-5,  # as in CARL
    }

    @property
    def title(self) -> str:
        if self.backbone == type(self).model_fields["backbone"].default:
            return super().title
        names = {
            "frame": "frame by frame",
            "transformer": "CARL's transformer",
            "encoder": "BYOV's encoder",
        }
        without = " without positions" if self.position == "none" else ""
        return f"{super().title}, {names[self.backbone]}{without}"

    @property
    def has_encoder(self) -> bool:
        return self.backbone == "encoder"

    @property
    def unused(self) -> set[str]:
        unused = set() if self.has_encoder else EncoderConfig.model_fields.keys() - {"latent"}
        return unused if self.backbone == "frame" else {*unused, "context"}

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> Self:
        for name in sorted(self.unused):
            if getattr(self, name) != type(self).model_fields[name].default:
                owner = "frame" if name == "context" else "encoder"
                raise ValueError(
                    f"{name} applies only to the {owner} backbone; the backbone is {self.backbone}"
                )
        return self

    def check_sampling(self, sampling: SamplingConfig) -> None:
        if self.NO_CROP and sampling.crop != WHOLE_VIDEO:
            raise ValueError(f"{self.NO_CROP}; omit --crop")


class BackboneMethod(Method):
    """Base class for methods that apply a loss to the embeddings of a backbone.

    Args:
        width: Width of the input features.
        backbone: "frame" (an MLP), "transformer" (CARL's) or "encoder" (BYOV's).
        latent: Width of the embeddings.
        context: Distance from a frame back to its context frame, for the frame backbone.
        causal: Whether each frame attends only to itself and earlier frames, for the transformer.
        depth, heads, position, position_in, norm, attention_window: Options of the encoder.
        **sampling: Arguments of `Method`.
    """

    unit_norm = False  # whether `embed` returns unit vectors

    def __init__(
        self,
        width: int,
        *,
        backbone: Backbone,
        latent: int,
        context: int,
        depth: int,
        heads: int,
        position: Position,
        position_in: PositionIn,
        norm: Norm,
        attention_window: int | None,
        causal: bool = False,
        **sampling: Any,
    ) -> None:
        super().__init__(width, **sampling)
        self.backbone: FrameBackbone
        if backbone == "frame":
            self.backbone = FrameHead(width, latent, context)
        elif backbone == "transformer":
            self.backbone = ClipTransformer(width, latent, self.frames, causal=causal)
        else:
            self.backbone = Encoder(
                width=width,
                latent=latent,
                depth=depth,
                heads=heads,
                frames=self.frames,
                position=position,
                position_in=position_in,
                norm=norm,
                attention_window=attention_window,
            )
        self.is_causal = self.backbone.is_causal
        self.needs_whole_batch = self.needs_whole_batch or self.backbone.needs_whole_batch
        self.apply(initialize)

    def embed(self, features: Features) -> Tensor:
        embedding = self.backbone.embed(self.prepare(features))
        return F.normalize(embedding, dim=-1) if self.unit_norm else embedding


class PairMethodConfig(BackboneMethodConfig):
    """Base class for the options of methods that align two videos."""

    pairs: Pairs = "any"  # AE2 pairs any two videos


class PairMethod(BackboneMethod):
    """Base class for methods that align clips of two different videos.

    `pairs` is "views" (an ego and an exo video) or "any".
    """

    def __init__(self, width: int, *, pairs: Pairs, **options: Any) -> None:
        super().__init__(width, **options)
        self.pairs = pairs

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        return Sampler(
            videos,
            draw_pair(videos, self.pairs, self.frames, self.crop),
            self.backbone.context,
        )


def hide_padding(logits: Tensor, padding: Tensor) -> Tensor:
    """Mask logits (N, S, T) so that a softmax over T ignores padding (N, T), unless all frames are
    padding.
    """
    return logits.masked_fill(padding[:, None], torch.finfo(logits.dtype).min)


def mean_over_items(values: Tensor, counted: Tensor) -> Tensor:
    """Average values (N, ...) over the counted entries of each item (0 if there are none), then
    over the items.
    """
    return (
        (values * counted).flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1).clamp(min=1)
    ).mean()


def own_frame_cross_entropy(logits: Tensor, padding: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with label smoothing for classifying each frame as itself.

    The loss of frame i is -Σ_k q_ik log softmax_k(logits_ik), where q_ik = (1 - smoothing) [i = k]
    + smoothing / T.

    Shapes: logits (N, T, T), padding (N, T), result (N, T). Padded frames are excluded from the sum
    and from T.
    """
    log_probabilities = (
        hide_padding(logits, padding).log_softmax(dim=-1).masked_fill(padding[:, None], 0)
    )
    frames = (~padding).sum(dim=1, keepdim=True)
    own = log_probabilities.diagonal(dim1=1, dim2=2)
    mean = log_probabilities.sum(dim=-1) / frames
    return -((1 - smoothing) * own + smoothing * mean)
