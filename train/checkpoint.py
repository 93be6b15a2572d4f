"""Checkpoints and model files: safetensors with JSON metadata and a digest, without pickles.

A checkpoint contains everything needed to resume a run exactly. Files of other runs are rejected.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.optim import Optimizer

from byov.cache.atomic import write_bytes
from byov.cache.digests import BLANK_SEAL, METADATA_KEY, check_weights, seal
from byov.errors import CacheError, TrainError
from byov.records import Record
from byov.train.methods.base import Method

LOGGER = logging.getLogger(__name__)


class TrainingState(Record, frozen=False):
    """Training state other than the tensors of the model and the optimizer."""

    step: int = 0
    # Sums over the steps of the current epoch.
    loss_sums: dict[str, float] = Field(default_factory=dict)
    records: list[dict[str, int | float]] = Field(default_factory=list)  # lines of metrics.jsonl
    best: float | None = None
    best_metrics: dict[str, float] = Field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    model: Method,
    optimizer: Optimizer,
    state: TrainingState,
    metadata: Mapping[str, Any],
) -> None:
    """Write a checkpoint, then delete all but the last two;

    `metadata` must include the run's "identity".
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"memory.{name}": tensor for name, tensor in model.training_state().items()}
    for name, parameter in model.named_parameters():
        tensors |= {
            f"optimizer.{key}.{name}": tensor
            for key, tensor in optimizer.state.get(parameter, {}).items()
        }
    metadata = {**metadata, "step": state.step, "state": state.model_dump()}
    write_bytes(_path(folder, state.step), file_bytes(tensors, metadata))
    _delete_before(folder, state.step)


def _delete_before(folder: Path, step: int) -> None:
    """Delete the checkpoints before `step`, except the last one, in case that of `step` is
    damaged.
    """
    paths = checkpoints(folder)
    for old in paths[paths.index(_path(folder, step)) + 2 :]:
        old.unlink(missing_ok=True)


def load_checkpoint(
    folder: Path,
    model: Method,
    optimizer: Optimizer,
    metadata: Mapping[str, Any],
    total_steps: int,
) -> TrainingState | None:
    """Load the newest usable checkpoint into the model and optimizer; return its state, or None if
    there is none.

    Damaged checkpoints and those of other runs are skipped. TrainError is raised if there are only
    such checkpoints, or if one is of a run with more than `total_steps` steps.
    """
    paths = checkpoints(folder)
    if paths and _path(folder, total_steps) < paths[0]:
        raise TrainError(
            f"{paths[0]} belongs to a run of more than {total_steps} steps. Delete it, or pass the "
            "--epochs of that run."
        )
    for path in paths:
        try:
            file = check_weights(path, metadata)
            state = TrainingState.model_validate(file.metadata.get("state"))
            if path != _path(folder, state.step):
                raise TrainError(f"{path} contains a checkpoint of step {state.step}")
            tensors = load_file(path)
            for name, tensor in model.training_state().items():
                tensor.copy_(tensors[f"memory.{name}"])
            model.load_state_dict(
                {
                    name.removeprefix("model."): tensor
                    for name, tensor in tensors.items()
                    if name.startswith("model.")
                }
            )
            moments: dict[int, dict[str, Tensor]] = {}
            # The parameters have the same order in the optimizer.
            for index, (name, _) in enumerate(model.named_parameters()):
                keys = {key: f"optimizer.{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq")}
                if keys["step"] in tensors:  # parameters without gradients have no state
                    moments[index] = {key: tensors[stored] for key, stored in keys.items()}
            optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
            _delete_before(folder, state.step)  # unless a killed process has done so
            return state
        except (
            CacheError,
            TrainError,
            SafetensorError,
            RuntimeError,
            KeyError,
            ValidationError,
        ) as error:
            reason = " ".join(str(error).split())[:300]
            LOGGER.warning(
                f"{path.name} is not usable: {reason}; falling back to the previous checkpoint"
            )
    if paths:
        raise TrainError(
            f"{folder}: no checkpoint is usable. Start the run again under another name."
        )
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    return sorted(folder.glob(f"step-{'[0-9]' * 9}.safetensors"), reverse=True)


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of a safetensors file, with a digest if it has metadata; equal inputs give
    equal bytes.
    """
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors hangs if memory runs out; this allocation raises MemoryError instead.
    bytearray(3 * sum(tensor.nbytes for tensor in content.values()))
    if metadata is None:
        return save(content)
    # Use a single entry: safetensors does not preserve the order of entries, and equal runs must
    # write equal bytes.
    return seal(save(content, metadata={METADATA_KEY: json.dumps({**BLANK_SEAL, **metadata})}))
