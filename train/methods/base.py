"""Base classes for methods, and helpers for losses over padded clips.

Models are saved as config.json and model.safetensors, and loaded from folders or the Hugging Face
Hub, without pickles.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from numpy.typing import NDArray
from pydantic import Field, model_validator
from safetensors.torch import load_file
from torch import Tensor, nn

from byov.cache.features import SMALLEST_DEVIATION, standardize
from byov.cache.runs import CONFIG_NAME, FILES_KEY, MODEL_NAME, check_model, read_config
from byov.errors import SettingsError, TrainError
from byov.records import Record
from byov.train import settings as shared
from byov.train.backbones import ClipTransformer, FrameHead
from byov.train.checkpoint import tensor_shapes
from byov.train.feature_store import CachedVideo
from byov.train.networks import Encoder, FrameBackbone, initialize
from byov.train.sampling import Batch, Draw, Pick, Sampler, draw_clip, pick_any_two, pick_views
from byov.train.settings import BackboneSettings, EncoderSettings, TrainSettings

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
CARD_FACTS = ("dataset", "encoder", "column", "preprocessing", "recipe", "seed", "validation")


class ModelConfig(Record):
    """Contents of config.json."""

    schema_version: int = 1
    width: shared.Size = Field(multiple_of=2)
    settings: dict[str, Any]
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
        settings: Method settings.
        training: Description of the training run and its data, stored in config.json and available
            as `record`.
    """

    settings_class: ClassVar[type[TrainSettings]]
    settings: TrainSettings
    # Reason why a batch cannot be split over processes, if any.
    needs_whole_batch: str | None = None

    def __init__(
        self, width: int, settings: TrainSettings, training: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        shared.checked(ModelConfig, width=width, settings={}, training=training)
        self.width = width
        self.settings = settings
        # Drop the file digests, which apply to the original run folder but not to a saved copy.
        self.record = {key: value for key, value in (training or {}).items() if key != FILES_KEY}
        self._hub_mixin_config = self.config
        # Statistics of the training features, set in `start_training`.
        if settings.standardize == "dataset":
            self.feature_mean: Tensor
            self.feature_deviation: Tensor
            self.register_buffer("feature_mean", torch.zeros(width))
            self.register_buffer("feature_deviation", torch.ones(width))

    @property
    def config(self) -> dict[str, Any]:
        """Contents of config.json."""
        settings = self.settings.model_dump(mode="json")
        return {
            "schema_version": 1,
            "width": self.width,
            "settings": settings,
            "training": self.record,
        }

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        facts = {name: self.record[name] for name in CARD_FACTS if name in self.record}
        facts["settings"] = self.settings.model_dump(mode="json", exclude=self.settings.unused)
        text = CARD.format(
            header=self._hub_mixin_info.model_card_data.to_yaml(),
            title=self.settings.title,
            method=self.settings.method,
            parameters=sum(parameter.numel() for parameter in self.parameters()) / 1e6,
            facts=json.dumps(facts, indent=1),
        )
        return ModelCard(text)

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
        from byov.train.methods import METHODS  # deferred, to avoid a circular import

        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            try:
                paths = [
                    hf_hub_download(str(folder), name, **download)
                    for name in (CONFIG_NAME, MODEL_NAME)
                ]
            except (HFValidationError, HfHubHTTPError, OSError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise TrainError(
                    f"{folder} is neither a folder nor a model on the Hugging Face Hub. Pass the "
                    "folder of a run, such "
                    f"as runs/demo-byov; byov-runs lists the runs. ({reason})"
                ) from None
            folder = Path(paths[0]).parent
        path = folder / CONFIG_NAME
        weights = folder / MODEL_NAME
        try:
            config = shared.checked(ModelConfig, **read_config(folder))
            settings = shared.read_settings(path, config.settings)
            method = METHODS[settings.method]
            if not issubclass(method, cls):
                raise TrainError(
                    f"{path} describes a {settings.method} model, not a {cls.__name__}"
                )
            check_model(folder, config.training or {})
            check_sizes(weights, method, config.width, settings)
            model = method(config.width, settings, config.training)
        except SettingsError as error:
            raise TrainError(f"{path}: {error}") from None
        model.load_state_dict(load_file(weights))
        return model.to(map_location).eval()

    def start_training(self, videos: Sequence[CachedVideo], read: ReadFeatures) -> None:
        """Compute what the method needs from the training videos; `read` returns the features (T,
        width) of one.

        Overriding methods must call this one, which computes the statistics for `--standardize
        dataset`.
        """
        if self.settings.standardize == "dataset":
            mean, deviation = feature_statistics(read(video) for video in videos)
            self.feature_mean.copy_(mean)
            self.feature_deviation.copy_(deviation)

    def copy_feature_statistics(self, other: "Method") -> None:
        """Copy the statistics for `--standardize dataset` from a model with the same settings."""
        if self.settings.standardize == "dataset":
            self.feature_mean.copy_(other.feature_mean)
            self.feature_deviation.copy_(other.feature_deviation)

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
        """Convert the cached features (T, width) of a clip to float32 and apply
        `settings.standardize`.
        """
        # copy: tensors support neither read-only memory nor negative strides.
        if isinstance(features, np.ndarray):
            features = torch.from_numpy(np.array(features, np.float32)).to(
                next(self.parameters()).device
            )
        return self.standardize(features.float())

    def standardize(self, features: Tensor) -> Tensor:
        if self.settings.standardize == "dataset":  # training batches are prepared on the CPU
            mean = self.feature_mean.to(features.device)
            deviation = self.feature_deviation.to(features.device)
            return (features - mean) / deviation
        return standardize(features) if self.settings.standardize == "video" else features


def feature_statistics(videos: Iterable[NDArray[np.floating]]) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation (width,) over all frames of videos (T, width)."""
    count = 0
    total = np.zeros(())
    squares = np.zeros(())
    for video in videos:
        features = video.astype(np.float64)
        count += len(features)
        total = total + features.sum(axis=0)
        squares = squares + np.square(features).sum(axis=0)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0)) + SMALLEST_DEVIATION
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


def check_sizes(weights: Path, method: type[Method], width: int, settings: TrainSettings) -> None:
    """Raise TrainError unless the tensor shapes in a file match the model, without allocating the
    model.
    """
    try:
        with torch.device("meta"):
            built = method(width, settings).state_dict()
    # Raised by PyTorch for absurd sizes.
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TrainError(
            f"{weights.with_name(CONFIG_NAME)} specifies impossible tensor sizes: {reason}"
        ) from None
    if {name: tuple(tensor.shape) for name, tensor in built.items()} != tensor_shapes(weights):
        raise TrainError(f"{weights} does not contain the weights of the model in {CONFIG_NAME}.")


class BackboneMethodSettings(BackboneSettings, EncoderSettings, TrainSettings):
    """Base settings for methods that apply a loss to the embeddings of a backbone."""

    batch_size: shared.BatchSize = 4  # as in GTA
    lr: shared.LearningRate = 1e-4  # as in TCC, GTA and CARL
    weight_decay: shared.WeightDecay = 1e-5  # as in CARL

    NO_CROP: ClassVar[str | None] = None  # reason why the method does not support --crop, if any

    def common_variants(self) -> Iterator[str]:
        if self.backbone != type(self).model_fields["backbone"].default:
            names = {
                "frame": "frame by frame",
                "transformer": "CARL's transformer",
                "encoder": "BYOV's encoder",
            }
            yield names[self.backbone] + (" without positions" if self.position == "none" else "")
        yield from super().common_variants()

    @property
    def has_encoder(self) -> bool:
        return self.backbone == "encoder"

    @property
    def unused(self) -> set[str]:
        of_encoder = set() if self.has_encoder else EncoderSettings.model_fields.keys() - {"latent"}
        return of_encoder | (set() if self.backbone == "frame" else {"context"})

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> Self:
        for name in sorted(self.unused):
            if getattr(self, name) != type(self).model_fields[name].default:
                owner = "frame" if name == "context" else "encoder"
                raise ValueError(
                    f"{name} applies only to the {owner} backbone; the backbone is {self.backbone}"
                )
        if self.NO_CROP and self.crop != shared.WHOLE_VIDEO:
            raise ValueError(f"{self.NO_CROP}; omit --crop")
        return self


class BackboneMethod(Method):
    """Base class for methods that apply a loss to the embeddings of a backbone."""

    settings: BackboneMethodSettings
    unit_norm = False  # whether `embed` returns unit vectors

    def __init__(
        self, width: int, settings: BackboneMethodSettings, training: dict[str, Any] | None = None
    ) -> None:
        super().__init__(width, settings, training)
        self.backbone = build_backbone(width, settings)
        self.needs_whole_batch = self.needs_whole_batch or self.backbone.needs_whole_batch
        self.apply(initialize)

    def embed(self, features: Features) -> Tensor:
        embedding = self.backbone.embed(self.prepare(features))
        return F.normalize(embedding, dim=-1) if self.unit_norm else embedding


class PairSettings(BackboneMethodSettings):
    """Base settings for methods that align two videos."""

    pairs: shared.Pairs = "any"  # AE2 pairs any two videos


class PairMethod(BackboneMethod):
    """Base class for methods that align clips of two different videos."""

    settings: PairSettings

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        return Sampler(
            videos, draw_pair(videos, self.settings, self.settings.pairs), self.backbone.context
        )


def draw_pair(
    videos: Sequence[CachedVideo], settings: TrainSettings, pairs: str, *, skip_first: bool = False
) -> Pick[list[Draw]]:
    """Return a function that draws one clip each from an ego and an exo video, or from any two
    videos.
    """
    pick = (
        pick_views(videos, "--pairs views needs both views")
        if pairs == "views"
        else pick_any_two(videos)
    )
    return lambda rng: [
        draw_clip(video, settings.frames, settings.crop, rng, skip_first=skip_first)
        for video in pick(rng)
    ]


def build_encoder(width: int, frames: int, settings: EncoderSettings) -> Encoder:
    options = {name: getattr(settings, name) for name in EncoderSettings.model_fields}
    return Encoder(width=width, frames=frames, **options)


def build_backbone(width: int, settings: BackboneMethodSettings) -> FrameBackbone:
    if settings.backbone == "encoder":
        return build_encoder(width, settings.frames, settings)
    if settings.backbone == "transformer":
        return ClipTransformer(
            width, settings.latent, settings.frames, causal=getattr(settings, "online", False)
        )
    return FrameHead(width, settings.latent, settings.context)


def hide_padding(logits: Tensor, padding: Tensor) -> Tensor:
    """Mask logits (N, ..., T) so that a softmax over T ignores padding (N, T), unless all frames
    are padding.
    """
    between = (1,) * (logits.dim() - padding.dim())
    return logits.masked_fill(
        padding.view(len(padding), *between, -1), torch.finfo(logits.dtype).min
    )


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
