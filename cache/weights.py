"""Files of weights (safetensors): are they as they were written, and by which run? Needs no PyTorch.

Their metadata have one entry, `byov`: JSON with the seal, the run's identity, method, seed and step, and of a
checkpoint the state of the training.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byov.cache.seal import SealError, check_large
from byov.errors import CacheError

METADATA_KEY = "byov"
_LARGEST_HEADER_BYTES = 100 << 20  # what safetensors itself reads


@dataclass(frozen=True)
class WeightsFile:
    """What is known of a file of weights without reading its tensors."""

    path: Path
    sha256: str  # of the file
    sealed: bool  # False: of byov 0.2 or before, or saved by other means
    said: dict[str, Any]  # what it says of itself; {} of one that is not sealed

    @property
    def identity(self) -> str | None:
        """Of the run that has written it."""
        identity = self.said.get("identity")
        return identity if isinstance(identity, str) else None

    @property
    def origin(self) -> str:
        """For people: "the method byov, seed 0, step 40"."""
        if not self.sealed:
            return "of byov 0.2 or before, or saved by other means"
        return ", ".join(
            f"{what}{self.said.get(key)}"
            for what, key in (("the method ", "method"), ("seed ", "seed"), ("step ", "step"))
        )


def check_weights(path: Path) -> WeightsFile:
    """Read a file from end to end; raises CacheError if it is not as it was written."""
    try:
        sealed, sha256 = check_large(path)
        return WeightsFile(path, sha256, sealed, _metadata(path) if sealed else {})
    except FileNotFoundError:
        raise CacheError(f"{path}: no such file") from None
    except SealError as error:
        raise CacheError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not readable ({error})") from error


def _metadata(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(file.read(size))
    said = json.loads(header["__metadata__"][METADATA_KEY])
    if not isinstance(said, dict):
        raise ValueError("its metadata are no JSON object")
    return said
