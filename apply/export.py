"""Export models as ONNX files or torch.export programs, and compare their output with PyTorch."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from byov.apply.run import Run
from byov.cache.atomic import write_bytes
from byov.errors import ApplyError
from byov.extract.encoders import FrameEncoder

SUFFIXES = (".onnx", ".pt2")
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Maximum difference, relative to the largest absolute value or to 1, if that is larger.
TOLERANCE = 1e-4
# In frames; the first is used for tracing, so it must not be 1 or equal a model size.
LENGTHS = (2, 1, 17, 64, 300)
BATCHES = (2, 1, 3)


class _Embedder(nn.Module):
    """Module that maps features (T, width) to embeddings (T, D)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model = run.model

    def forward(self, features: Tensor) -> Tensor:
        return self.model.embed(features)


class _Encoder(nn.Module):
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


def export_run(run: Run, path: Path, encoder_path: Path | None = None) -> dict[Path, float]:
    """Export the model of a run and, if `encoder_path` is given, its encoder.

    The model maps "features" (frames, width), float32, as cached, to "embeddings" (frames, D). The
    encoder maps "frames" (batch, size, size, 3), uint8, resized RGB, to "tokens" (batch, N, width).

    Args:
        run: Run on the CPU.
        path: Output file of the model, .onnx or .pt2 (a torch.export program).
        encoder_path: Output file of the encoder.

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
    names = ("features", "frames", "embeddings")
    differences = {path: _export(_Embedder(run), path, names, features, about)}
    if encoder_path is not None:
        encoder = run.frame_encoder()
        shape = (encoder.preprocessing.size, encoder.preprocessing.size, 3)
        frames = [
            torch.randint(256, (n, *shape), dtype=torch.uint8, generator=generator) for n in BATCHES
        ]
        about = {"encoder": record.encoder, "preprocessing": record.preprocessing}
        names = ("frames", "batch", "tokens")
        differences[encoder_path] = _export(_Encoder(encoder), encoder_path, names, frames, about)
    return differences


@torch.inference_mode()
def _export(
    module: nn.Module,
    path: Path,
    names: tuple[str, str, str],
    inputs: list[Tensor],
    about: dict[str, str],
) -> float:
    """Export a module with one input and a dynamic first dimension;

    `names` are (input, dimension, output).
    """
    given, dimension, output = names
    module.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = {given: {0: Dim(dimension, max=2**20)}}
            program = torch.export.export(module, (inputs[0],), dynamic_shapes=shapes)
            write = partial(_onnx_model, given=given, output=output, about=about)
            content, run = (write if path.suffix == ".onnx" else _torch_program)(program)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ApplyError(f"{path}: the model cannot be exported ({reason}).") from error
    largest = 0.0
    for example in inputs:
        expected = module(example)
        difference = (run(example) - expected).abs().max() / expected.abs().max().clamp(min=1)
        largest = max(largest, float(difference))
    if not largest <= TOLERANCE:
        raise ApplyError(
            f"{path}: the exported model differs from PyTorch by {largest:.2g}. Nothing was "
            "written."
        )
    write_bytes(path, content)
    return largest


def _torch_program(program: Any) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    """Return the serialized program and a function that runs the reloaded program."""
    file = BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


def _onnx_model(
    program: Any, *, given: str, output: str, about: dict[str, str]
) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    """Return the serialized ONNX model and a function that runs it."""
    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    exported = torch.onnx.export(
        program, input_names=[given], output_names=[output], dynamo=True, verbose=False
    )
    assert exported is not None
    exported.model.metadata_props.update(about)
    content: bytes = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda example: torch.from_numpy(session.run(None, {given: example.numpy()})[0])
