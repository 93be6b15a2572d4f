"""Small files as byov writes them, and how videos are encoded to the same bytes every time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from byov.cache.features import FeatureWriter, Provenance

TOKENS = 9  # of a frame
# For PyAV: x264's assembly reads memory that nobody has written, and so gives other bytes now and then.
SAME_BYTES = {"libx264": {"x264-params": "asm=0"}}


def make_provenance(**changes: Any) -> Provenance:
    values: dict[str, Any] = {
        "encoder": "openai/clip-vit-base-patch16",
        "encoder_revision": "",
        "encoder_sha256": "ab" * 32,
        "preprocessing": "squash 224",
        "compute_dtype": "float32",
        "decoder": "PyAV 14",
        "source_name": "Küche 1.mp4",
        "source_bytes": 12345,
        "source_sha256": "cd" * 32,
        "source_fingerprint": "ef" * 32,
    }
    return Provenance(**(values | changes))


def write_features(
    path: Path,
    merged: Mapping[float, np.ndarray],
    *,
    cls: np.ndarray | None = None,
    order: np.ndarray | None = None,
    **provenance: Any,
) -> Path:
    """A video's file: ratio → (T, width) features, 30 frames a second; the rest changes its provenance."""
    frames, width = next(iter(merged.values())).shape
    order = np.tile(np.arange(TOKENS, dtype=np.uint16), (frames, 1)) if order is None else order
    writer = FeatureWriter(path, tuple(merged), order.shape[1], width, has_cls=cls is not None)
    try:
        writer.append(dict(merged), order, cls, np.arange(frames) / 30)
        writer.finish(make_provenance(**provenance), fps=30.0, truncated=False)
    finally:
        writer.close()
    return path
