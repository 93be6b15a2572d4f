"""Checkpoints: everything that a run needs to resume exactly where it was, as tensors and JSON; no pickles."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor, nn

from byov.cache.atomic import replacing
from byov.errors import TrainError
from byov.train.tensor_file import opened

LOGGER = logging.getLogger(__name__)

State = TypeVar("State")
KEPT = 2  # the last one, and the one before in case that one is damaged
_MODEL, _OPTIMIZER = "model.", "optimizer."


def model_bytes(model: nn.Module) -> bytes:
    """The model's weights as a safetensors file; the same bytes for the same weights."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)


def load_weights(model: nn.Module, path: Path) -> None:
    """Weights of exactly this model from a safetensors file."""
    tensors, _ = _read(path)
    _load_model(model, tensors, path)


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], step: int
) -> None:
    """Write the state after `step` steps, then remove all but the last KEPT."""
    names = _parameter_names(model, optimizer)
    tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
    for parameter, values in optimizer.state.items():
        tensors |= {f"{_OPTIMIZER}{key}.{names[parameter]}": tensor for key, tensor in values.items()}
    content = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"state": json.dumps(state)},
    )
    write_bytes(_path(folder, step), content)
    for old in checkpoints(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, read_state: Callable[[dict[str, Any]], State]
) -> State | None:
    """Restore model and optimizer from the newest checkpoint that can be read; returns its state, None without any.

    read_state: raises ValueError for a state that cannot be.
    """
    found = checkpoints(folder)
    for path in found:
        try:
            tensors, metadata = _read(path)
            state = read_state(_state(metadata, path))
            _load_model(model, {n.removeprefix(_MODEL): t for n, t in tensors.items() if n.startswith(_MODEL)}, path)
            _load_optimizer(model, optimizer, tensors, path)
            return state
        except ValueError as error:
            LOGGER.info(f"{path}: not a checkpoint of this run ({error}); falling back to the one before")
        except TrainError as error:
            LOGGER.info(f"{error}; falling back to the one before")
    if found:
        raise TrainError(f"{folder}: none of its {len(found)} checkpoints can be read; start again under another name")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _state(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    try:
        state = json.loads(metadata["state"])
        if not isinstance(state, dict):
            raise ValueError("no JSON object")
        return state
    except (KeyError, ValueError, RecursionError) as error:
        raise TrainError(f"{path}: its state cannot be read ({error})") from error


def _load_model(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise TrainError(f"{path}: weights of another model ({reason})") from error


def _load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    """Adam's state of each parameter; those that no objective reaches have none."""
    state: dict[int, dict[str, Tensor]] = {}
    for place, (parameter, name) in enumerate(_parameter_names(model, optimizer).items()):
        shapes = {"step": torch.Size(()), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
        found = {key: tensors[stored] for key in shapes if (stored := f"{_OPTIMIZER}{key}.{name}") in tensors}
        if not found:
            continue
        if {key: tensor.shape for key, tensor in found.items() if tensor.dtype == torch.float32} != shapes:
            raise TrainError(f"{path}: optimizer state of another model (of {name})")
        state[place] = found
    if not state:
        raise TrainError(f"{path}: no optimizer state")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    """Parameter → name, in the optimizer's order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {parameter: names[parameter] for group in optimizer.param_groups for parameter in group["params"]}
