"""Compute devices and thread counts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from byov.errors import ByovError

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

Device = Literal["auto", "cuda", "mps", "cpu"]


def pick_device(name: Device) -> "torch.device":
    """Return a PyTorch device; "auto" selects the first available one of CUDA, MPS and CPU."""
    import torch

    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, is_available in available.items() if is_available))
    if not available.get(name):
        raise ByovError(
            f"--device {name} is not available to PyTorch on this machine; use --device auto"
        )
    return torch.device(name)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def computing_threads() -> int:
    """Return the number of compute threads: OMP_NUM_THREADS, as in PyTorch and BLAS, else all
    usable cores.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores(), int(limit)) if limit.isdecimal() and int(limit) else usable_cores()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Temporarily set the number of threads that PyTorch uses for calls from this thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
