"""Golden files of the learned baselines: what published code gives on made-up embeddings, case by case."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = Path(__file__).parents[2] / "golden"

Case = tuple[dict[str, NDArray[Any]], dict[str, Any]]


def cases(name: str) -> dict[str, Case]:
    """cases("tcn"): by name, the arrays and the constants of each case of tcn.npz."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return {
        case: ({key.removeprefix(f"{case}/"): arrays[key] for key in arrays if key.startswith(f"{case}/")}, constants)
        for case, constants in json.loads(str(arrays.pop("cases"))).items()
    }


def tensors(case: Case) -> dict[str, Tensor]:
    """The arrays of a case; numbers that are not whole in the precision in which it was computed."""
    arrays, constants = case
    precision = getattr(torch, constants["precision"])
    found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.to(precision) if tensor.is_floating_point() else tensor for name, tensor in found.items()}


def assert_met(expected: dict[str, Tensor], loss: Tensor, **gradients: Tensor | None) -> None:
    """The loss and each gradient, by its name in the file: to 1e-9 in double precision, else as float32 allows."""
    single = expected["loss"].dtype == torch.float32
    torch.testing.assert_close(loss.detach(), expected["loss"], rtol=0, atol=1e-5 if single else 1e-9)
    assert gradients.keys() == {name for name in expected if name.startswith("gradient")}
    for name, gradient in gradients.items():
        allowed = 5e-4 * expected[name].abs().max().item() if single else 1e-9
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=allowed)
