"""Load the encoder of a run, and compute features and embeddings of any video."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import byov
from byov.cache.atomic import replacing_file
from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.runs import RunRecord
from byov.device import Device
from byov.errors import ApplyError
from byov.extract.encoder_names import (
    IMAGENET_PREFIX,
    RANDOM_PREFIX,
    EncoderName,
    Resize,
    parse_encoder,
)
from byov.extract.plan import ExtractionOptions
from byov.extract.token_merging import TokenMerger
from byov.progress import NO_PROGRESS, Progress

if TYPE_CHECKING:  # importing transformers takes seconds
    from byov.extract.encoders import FrameEncoder

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddedVideo:
    """Frame embeddings of a video file."""

    path: Path
    embedding: NDArray[np.float32]  # (T, D)
    pts_seconds: NDArray[np.float64]  # (T,) frame times
    source: EmbeddingProvenance

    def write(self, path: Path, view: str | None = None) -> None:
        """Write an .npz file, or an HDF5 file as in run folders, depending on the suffix of
        `path`.
        """
        if path.suffix.lower() != ".npz":
            write_embedding(
                path, self.embedding, self.pts_seconds, replace(self.source, view=view or "")
            )
            return
        names = ("run", "model_sha256", "video", "source_sha256")
        arrays: dict[str, Any] = {name: getattr(self.source, name) for name in names}
        if view is not None:
            arrays["view"] = view
        with replacing_file(path) as file:
            np.savez(file, embedding=self.embedding, pts_seconds=self.pts_seconds, **arrays)


def run_encoder_name(run: RunRecord, encoder: str | None = None) -> EncoderName:
    """Return the encoder of a run, by default from its original source.

    Args:
        run: Record of the run.
        encoder: Local folder or id to load the encoder from.
    """
    from_folder = run.encoder_revision.startswith("folder ")
    if encoder is not None:
        name = parse_encoder(encoder)
        if name.id != run.encoder and not (from_folder or name.is_folder):
            raise ApplyError(
                f"{run.name} was trained on {run.encoder}, not on {name.id}. Omit --encoder."
            )
        return name
    if from_folder:
        raise ApplyError(
            f"{run.name} was trained on the encoder {run.encoder!r} from a local folder. Pass it "
            "with --encoder FOLDER."
        )
    on_hub = not run.encoder.startswith((RANDOM_PREFIX, IMAGENET_PREFIX))
    return parse_encoder(run.encoder, (run.encoder_revision or None) if on_hub else None)


def run_resize(run: RunRecord) -> Resize:
    """Return how the frames of a run were resized."""
    return cast(Resize, run.preprocessing.partition(" ")[0])


def check_run_encoder(run: RunRecord, source: str, sha256: str, preprocessing: str) -> None:
    """Raise ApplyError if the weights or the preprocessing of an encoder, loaded from `source`, are
    not those of the run.
    """
    for what, recorded, actual in (
        ("weights", run.encoder_sha256, sha256),
        ("preprocessing", run.preprocessing, preprocessing),
    ):
        if recorded != actual:
            advice = (
                "Pass the original folder with"
                if run.encoder_revision.startswith("folder ")
                else "Omit"
            )
            raise ApplyError(
                f"{run.name} was trained on {run.encoder} with {what} {recorded!r}, but {source} "
                f"has {actual!r}. {advice} --encoder."
            )


def load_run_encoder(
    run: RunRecord,
    encoder: str | None = None,
    device: Device = "auto",
    progress: Progress = NO_PROGRESS,
) -> "FrameEncoder":
    """Load the encoder of a run, by default from its original source; raise ApplyError if it has
    changed.
    """
    name = run_encoder_name(run, encoder)
    loaded = byov.load_encoder(name, resize=run_resize(run), device=device, progress=progress)
    check_run_encoder(run, name.source, loaded.sha256, loaded.preprocessing.describe())
    dtype = str(loaded.dtype).removeprefix("torch.")
    compute_dtype = run.training.get("compute_dtype")
    # For example, if the run was trained on a GPU and is used on a robot.
    if compute_dtype != dtype:
        LOGGER.warning(
            f"{run.name} was trained on features computed in {compute_dtype}, but --device "
            f"{loaded.device.type} uses {dtype}; the embeddings differ slightly from those of the "
            "run"
        )
    return loaded


def check_frames(frames: NDArray[Any], shape: str = "(T, H, W, 3)") -> None:
    """Raise ApplyError unless `frames` is a uint8 array of the given shape."""
    if (
        frames.dtype != np.uint8
        or frames.ndim != shape.count(",") + 1
        or not frames.size
        or frames.shape[-1] != 3
    ):
        raise ApplyError(
            f"Expected RGB frames, uint8 {shape}, but this array is {frames.dtype} {frames.shape}."
        )


@torch.inference_mode()
def frame_features(
    encoder: "FrameEncoder", blocks: Iterable[NDArray[np.uint8]], ratio: float
) -> Tensor:
    """Compute the float16 features (T, width) of a video from blocks of frames (n, H, W, 3).

    Batches have the same shape and memory format as in byov-extract, so the features are
    bit-identical.
    """
    merger = TokenMerger((ratio,))
    merged = list[Tensor]()
    filled = 0
    batch_size = ExtractionOptions().frames_per_batch(encoder.device.type)
    size = encoder.preprocessing.size
    batch = torch.zeros(
        batch_size, size, size, 3, dtype=torch.uint8, device=encoder.device
    ).permute(0, 3, 1, 2)
    for pixels in blocks:
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(encoder.device)
        for image in encoder.preprocessing.resized(images):
            batch[filled] = image
            filled += 1
            if filled == batch_size:
                merged.append(merger.push(encoder.encode(batch)[0])[0])
                filled = 0
    if filled:
        merged.append(merger.push(encoder.encode(batch)[0][:filled])[0])
    return torch.cat([*merged, merger.finish()[0]])[:, 0].half()
