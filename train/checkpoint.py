"""Checkpoints: everything that a run needs to resume exactly where it was, as tensors and JSON; no pickles."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from byov.cache.atomic import write_bytes
from byov.cache.digests import METADATA_KEY, WeightsFile, blank_seal, check_weights, sealed
from byov.errors import CacheError, TrainError
from byov.records import Record, problem
from byov.text import pluralize

Number = Annotated[int, Field(ge=-(2**63), lt=2**63)] | float


class TrainingState(Record, frozen=False):
    """All that a run's future depends on, beside model and optimizer."""

    method: str = "byov"  # up to 0.2.0 it was not said
    step: int = 0
    loss_sums: dict[str, float] = Field(default_factory=dict)  # over the steps of the running epoch
    records: list[dict[str, Number]] = Field(default_factory=list)
    best: float | None = None
    best_metrics: dict[str, float] = Field(default_factory=dict)


def read_state(raw: Any, method: str, total_steps: int) -> TrainingState:
    """The state that a checkpoint holds; raises ValueError for what it cannot be."""
    try:
        state = TrainingState.model_validate(raw)
    except ValidationError as error:
        raise ValueError(problem(error)) from None
    if state.model_fields_set | {"method"} != set(TrainingState.model_fields):
        raise ValueError(f"it holds {', '.join(sorted(state.model_fields_set)) or 'nothing'}")
    if state.method != method:
        raise ValueError(f"it is of the method {state.method}, and the run of {method}")
    if not 0 < state.step <= total_steps:
        raise ValueError(f"it is of step {state.step}, and the run has {total_steps}")
    if not state.records or not all({"epoch", "step"} <= record.keys() for record in state.records):
        raise ValueError("its records are not of epochs")
    return state


@contextmanager
def opened(path: Path, framework: Literal["pt", "np"]) -> Iterator[Any]:
    """A file to take tensors of a framework from; what cannot be read is named."""
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except FileNotFoundError:
        raise TrainError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise TrainError(f"{path}: not a readable safetensors file ({error})") from error


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """By name; no tensor is read."""
    with opened(path, "np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


LOGGER = logging.getLogger(__name__)

State = TypeVar("State")
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
NOBODY: Mapping[str, Any] = MappingProxyType({})  # the identity of a run of byov 0.2 or before
KEPT = 2  # the last one, and the one before in case that one is damaged
_MODEL, _OPTIMIZER, _MEMORY = "model.", "optimizer.", "memory."


def model_bytes(model: nn.Module, said: Mapping[str, Any] | None = None) -> bytes:
    """The model's weights as a safetensors file; the same bytes for the same weights.

    said: what the file is to say of itself; it is sealed then.
    """
    return _file_bytes(model.state_dict(), said)


def _file_bytes(tensors: Mapping[str, Tensor], said: Mapping[str, Any] | None) -> bytes:
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Asked for here, a lack of memory is a MemoryError; safetensors would hang.
    bytearray(3 * sum(tensor.nbytes for tensor in content.values()))
    if said is None:
        return save(content)
    # One entry: of several, safetensors does not keep the order, and equal runs would write different bytes.
    return sealed(save(content, metadata={METADATA_KEY: json.dumps({**blank_seal(), **said})}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Weights of exactly this model from a safetensors file."""
    check_weights(path)
    _load_model(model, _read(path)[0], path)


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    step: int,
    memory: Mapping[str, Tensor] = NOTHING,
    identity: Mapping[str, Any] = NOBODY,
) -> None:
    """Write the state after `step` steps, then remove all but the last KEPT.

    memory: what the training needs beside model and optimizer. identity: of the run, which the file is to carry.
    """
    names = _parameter_names(model, optimizer)
    tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
    tensors |= {_MEMORY + name: tensor for name, tensor in memory.items()}
    for parameter, values in optimizer.state.items():
        tensors |= {f"{_OPTIMIZER}{key}.{names[parameter]}": tensor for key, tensor in values.items()}
    content = _file_bytes(tensors, {**identity, "step": step, "state": state})
    write_bytes(_path(folder, step), content)
    for old in checkpoints(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    read_state: Callable[[dict[str, Any]], State],
    memory: Mapping[str, Tensor] = NOTHING,
    identity: Mapping[str, Any] = NOBODY,
) -> State | None:
    """Restore all from the newest checkpoint that is whole and of this run; returns its state, None without any.

    read_state: raises ValueError for a state that cannot be.
    """
    found = checkpoints(folder)
    for path in found:
        try:
            file = check_weights(path)
            _refuse_others(file, identity)
            tensors, metadata = _read(path)
            state = read_state(file.said["state"] if file.sealed else _state(metadata, path))
            _load_model(model, {n.removeprefix(_MODEL): t for n, t in tensors.items() if n.startswith(_MODEL)}, path)
            _load_memory(memory, tensors, path)
            _load_optimizer(model, optimizer, tensors, path)
            return state
        except ValueError as error:
            LOGGER.info(f"{path}: not a checkpoint of this run ({error}); falling back to the one before")
        except (TrainError, CacheError) as error:
            LOGGER.info(f"{error}; falling back to the one before")
    if found:
        raise TrainError(
            f"{folder}: {pluralize(len(found), 'checkpoint')}, none usable; start again under another name"
        )
    return None


def _refuse_others(file: WeightsFile, identity: Mapping[str, Any]) -> None:
    """Raise unless a checkpoint is of this run and of the step that its name says."""
    if file.identity != identity.get("identity"):
        raise ValueError(f"it is of another run: {file.origin}")
    if file.sealed and (file.path != _path(file.path.parent, file.said.get("step", 0)) or "state" not in file.said):
        raise ValueError(f"it is of step {file.said.get('step')}")


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


def _load_memory(memory: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, remembered in memory.items():
        stored = tensors.get(_MEMORY + name)
        if stored is None or (stored.shape, stored.dtype) != (remembered.shape, remembered.dtype):
            raise TrainError(f"{path}: the memory of another training (of {name})")
        remembered.copy_(stored)


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
