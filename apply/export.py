"""Export models as ONNX files or torch.export programs, and compare their output with PyTorch."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from byov.apply.arrays import load_features
from byov.apply.references import read_training_frames
from byov.apply.run import Run
from byov.cache.atomic import write_bytes
from byov.errors import ApplyError
from byov.evaluate.transfer import ReferenceFrames
from byov.extract.encoders import FrameEncoder

SUFFIXES = (".onnx", ".pt2")
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Maximum difference, relative to the largest absolute value or to 1, if that is larger.
TOLERANCE = 1e-4
# In frames; the first is used for tracing, so it must not be 1 or equal a model size.
LENGTHS = (2, 1, 17, 64, 300)
BATCHES = (2, 1, 3)
# Neighbors whose squared distances differ by less than this, relative to the squared norms, are
# tied: rounding to float32 determines which of them is nearer.
TIE = 1e-5
Outputs = tuple[Tensor, ...]


class _Module(nn.Module):
    """Module with one input, and one output or a tuple of them."""

    def reference(self, example: Tensor) -> Outputs:
        """Return the outputs that the exported module must have, NaN where they are not unique."""
        return _as_tuple(self(example))


class _Embedder(_Module):
    """Module that maps features (T, width) to embeddings (T, D)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model = run.model

    def forward(self, features: Tensor) -> Tensor:
        return self.model.embed(features)


class _ProgressEstimator(_Module):
    """Module that maps features (T, width) to embeddings (T, D) and progress (T,)."""

    def __init__(self, run: Run, references: ReferenceFrames) -> None:
        super().__init__()
        self.model = run.model
        self.references = references
        frames = torch.from_numpy(references.embeddings).double()
        mean = frames.mean(dim=0)  # rounding errors grow with the distance from the origin
        self.mean = nn.Buffer(mean.float())
        self.frames = nn.Buffer((frames - mean).T.float())  # (D, F)
        self.half_square_norms = nn.Buffer((frames - mean).square().sum(dim=1).float() / 2)
        self.progress = nn.Buffer(torch.from_numpy(references.progress).float())
        self.neighbors = min(references.neighbors, len(frames))

    def forward(self, features: Tensor) -> Outputs:
        embeddings = self.model.embed(features)
        # The nearest frames f maximize q·f - ||f||²/2.
        nearness = (embeddings - self.mean) @ self.frames - self.half_square_norms
        nearest = nearness.topk(self.neighbors, dim=1).indices
        return embeddings, self.progress[nearest].mean(dim=1)

    def reference(self, example: Tensor) -> Outputs:
        embeddings = self.model.embed(example)
        queries = embeddings.numpy()
        progress = self.references.predict_progress(queries)
        if len(self.progress) > self.neighbors:
            distances, _ = replace(self.references, neighbors=self.neighbors + 1).nearest(queries)
            gaps = np.diff(np.square(distances[:, -2:])).ravel()
            square_norms = np.square(queries - self.mean.numpy()).sum(axis=1)
            scale = square_norms + 2 * float(self.half_square_norms.max())
            progress[gaps < TIE * scale] = np.nan
        return embeddings, torch.from_numpy(progress).float()


class _Encoder(_Module):
    """Module that maps resized uint8 frames (B, size, size, 3) to patch tokens (B, N, width)."""

    def __init__(self, encoder: FrameEncoder) -> None:
        super().__init__()
        self.preprocessing = encoder.preprocessing
        self.tokens = encoder.module

    def forward(self, frames: Tensor) -> Tensor:
        tokens: Tensor = self.tokens(
            self.preprocessing.normalized(frames.permute(0, 3, 1, 2), torch.float32)
        )[0]
        return tokens


def export_run(
    run: Run, path: Path, encoder_path: Path | None = None, *, with_progress: bool = False
) -> dict[Path, float]:
    """Export the model of a run and, if `encoder_path` is given, its encoder.

    The model maps "features" (frames, width), float32, as cached, to "embeddings" (frames, D) and,
    if `with_progress` is True, "progress" (frames,). The encoder maps "frames" (batch, size, size,
    3), uint8, resized RGB, to "tokens" (batch, N, width).

    Args:
        run: Run on the CPU.
        path: Output file of the model, .onnx or .pt2 (a torch.export program).
        encoder_path: Output file of the encoder.
        with_progress: Also estimate the progress of each frame, as the mean progress of the nearest
            training frames, which are stored in the file. Needs the feature cache.

    Returns:
        Dict mapping each file to the largest difference from PyTorch's output.

    Raises:
        ApplyError: If a model cannot be exported, or the difference is too large.

    >>> run = byov.load_run("demo-byov", device="cpu")
    >>> export_run(run, Path("demo-byov.pt2"))[Path("demo-byov.pt2")] < 1e-4
    True
    """
    for file in filter(None, (path, encoder_path)):
        if file.suffix not in SUFFIXES:
            raise ApplyError(f"{file}: the name must end in {' or '.join(SUFFIXES)}.")
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if file.suffix == ".onnx" and missing:
            raise ApplyError(
                f"{file}: ONNX needs {', '.join(missing)}. Run pip install 'byov-egoexo[onnx]'."
            )
    record = run.record
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(length, run.model.width, generator=generator) for length in LENGTHS]
    about = {"run": run.name, "encoder": record.encoder, "column": record.column}
    names = ["features", "frames", "embeddings"]
    module: _Module = _Embedder(run)
    if with_progress:
        names.append("progress")
        module = _ProgressEstimator(run, read_training_frames(run).frames)
        features.append(_training_features(run))
    differences = {path: _export(module, path, names, features, about)}
    if encoder_path is not None:
        encoder = run.frame_encoder()
        shape = (encoder.preprocessing.size, encoder.preprocessing.size, 3)
        frames = [
            torch.randint(256, (n, *shape), dtype=torch.uint8, generator=generator) for n in BATCHES
        ]
        about = {"encoder": record.encoder, "preprocessing": record.preprocessing}
        names = ["frames", "batch", "tokens"]
        differences[encoder_path] = _export(_Encoder(encoder), encoder_path, names, frames, about)
    return differences


def _training_features(run: Run) -> Tensor:
    """Return the features (T, width) of a training video."""
    videos = load_features(
        run.dataset,
        split="train",
        encoder=run.record.encoder,
        ratio=run.record.ratio,
        features_dir=run.features_dir,
    )
    return torch.from_numpy(videos[next(iter(videos))]).float()


@torch.inference_mode()
def _export(
    module: _Module,
    path: Path,
    names: Sequence[str],
    inputs: list[Tensor],
    about: dict[str, str],
) -> float:
    """Export a module with one input and a dynamic first dimension;

    `names` are (input, dimension, *outputs).
    """
    given, dimension, *outputs = names
    module.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = {given: {0: Dim(dimension, max=2**20)}}
            program = torch.export.export(module, (inputs[0],), dynamic_shapes=shapes)
            write = partial(_onnx_model, given=given, outputs=outputs, about=about)
            content, run = (write if path.suffix == ".onnx" else _torch_program)(program)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ApplyError(f"{path}: the model cannot be exported ({reason}).") from error
    largest = 0.0
    for example in inputs:
        for output, expected in zip(run(example), module.reference(example), strict=True):
            difference = (output - expected).abs()
            difference[expected.isnan() & output.isfinite()] = 0
            scale = expected.nan_to_num().abs().max().clamp(min=1)
            largest = max(largest, float(difference.max() / scale))
    if not largest <= TOLERANCE:
        raise ApplyError(
            f"{path}: the exported model differs from PyTorch by {largest:.2g}. Nothing was "
            "written."
        )
    write_bytes(path, content)
    return largest


def _torch_program(program: Any) -> tuple[bytes, Callable[[Tensor], Outputs]]:
    """Return the serialized program and a function that runs the reloaded program."""
    file = BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    module = torch.export.load(file).module()
    return file.getvalue(), lambda example: _as_tuple(module(example))


def _onnx_model(
    program: Any, *, given: str, outputs: list[str], about: dict[str, str]
) -> tuple[bytes, Callable[[Tensor], Outputs]]:
    """Return the serialized ONNX model and a function that runs it."""
    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    exported = torch.onnx.export(
        program, input_names=[given], output_names=outputs, dynamo=True, verbose=False
    )
    assert exported is not None
    exported.model.metadata_props.update(about)
    content: bytes = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(example: Tensor) -> Outputs:
        return tuple(map(torch.from_numpy, session.run(None, {given: example.numpy()})))

    return content, run


def _as_tuple(outputs: Tensor | Outputs) -> Outputs:
    return (outputs,) if isinstance(outputs, Tensor) else outputs
