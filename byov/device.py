"""Where work is done: what PyTorch computes with, and how many cores there are."""

import os
from typing import TYPE_CHECKING, Literal

from byov.errors import ByovError

if TYPE_CHECKING:  # torch takes seconds to import; --help gets by without it
    import torch

Device = Literal["auto", "cuda", "mps", "cpu"]


def pick_device(name: Device) -> "torch.device":
    """auto: the first that is there."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    if not available[name]:
        raise ByovError(f"--device {name}: PyTorch finds none here; use --device auto")
    return torch.device(name)


def usable_cores() -> int:
    """How many threads can work side by side."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computing_threads() -> int:
    """How many threads this process is to compute with: as OMP_NUM_THREADS says, which PyTorch and BLAS heed too and by
    which the workers of a sweep share out the cores; else one for each usable core."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores(), int(said)) if said.isdecimal() and int(said) else usable_cores()
