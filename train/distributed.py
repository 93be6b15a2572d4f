"""Data-parallel training in several processes started by torchrun.

Every process trains on its part of each batch. Only the main process (rank 0) writes files,
validates and embeds videos.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from byov.errors import Diverged, ProcessLost, TrainError

# Timeout for hanging processes; dead ones are detected immediately. It must be longer than a
# validation.
TIMEOUT = timedelta(minutes=30)
_REPORTED_KEY = "byov/reported"


class Processes:
    """Group of processes that train one run; by default, only the current process.

    All processes must call the same methods in the same order.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, store: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.is_main = rank == 0
        self._store = store

    def local_items(self, count: int) -> range:
        """Return this process's part of a batch of `count` items; parts differ by at most one item
        and may be empty.
        """
        return range(
            count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size
        )

    def device(self, device: torch.device) -> torch.device:
        """Return the device of the given type that is assigned to this process."""
        if self.world_size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda" or int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count():
            raise TrainError(
                "Each process needs a CUDA device of its own. Start fewer processes or use "
                "--device cpu."
            )
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        return own

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module for training, so that the backward pass averages gradients over the
        processes.
        """
        if self.world_size == 1:
            return module
        with warnings.catch_warnings():
            # Torch 2.7 lacks the replacement for broadcast_buffers.
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(
                module,
                static_graph=True,  # parameters unused in the first step are never used
                broadcast_buffers=False,  # buffers are constant tables
            )

    def loss_weight(self, items: int) -> float:
        """Return the weight of the local loss in `backward` that gives all items of the batch equal
        weight.
        """
        # DistributedDataParallel averages over processes.
        return len(self.local_items(items)) * self.world_size / items

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag if self.world_size == 1 else bool(self.all_reduce(torch.tensor(int(flag))))

    def broadcast(self, choose: Callable[[], str]) -> str:
        """Call `choose` in the main process only, and return its result in all processes."""
        chosen = [choose() if self.is_main else ""]
        if self.world_size > 1:
            dist.broadcast_object_list(chosen, src=0, device=torch.device("cpu"))
        return chosen[0]

    def check_in_sync(self, model: nn.Module, step: int) -> None:
        """Raise Diverged unless all processes are at the same step with the same weights."""
        if self.world_size == 1:
            return
        # Compare a checksum of the weights, which is cheap to compute.
        bits = sum(
            int(tensor.float().view(torch.int32).sum()) for tensor in model.state_dict().values()
        )
        local = torch.tensor([step, bits % 2**62])
        smallest = self.all_reduce(local.clone(), dist.ReduceOp.MIN)
        largest = self.all_reduce(local.clone(), dist.ReduceOp.MAX)
        if not torch.equal(smallest, largest):
            raise Diverged(
                f"The weights at step {step} differ between the {self.world_size} processes. All "
                "processes must read the same folders and run on the same kind of machine."
            )

    def shutdown(self) -> None:
        """Leave the process group; the main process continues alone."""
        if self.world_size > 1:
            dist.destroy_process_group()

    def reports_error(self) -> bool:
        """Return whether this process should print an error: the main process or, if it has died,
        the first process that calls this.
        """
        if self._store is None:
            return True
        try:
            deadline = time.monotonic() + (0 if self.is_main else 3)  # the main process goes first
            while time.monotonic() < deadline and not self._store.check([_REPORTED_KEY]):
                time.sleep(0.05)
            return bool(self._store.add(_REPORTED_KEY, 1) == 1)
        except RuntimeError:  # the store is unavailable as well
            return self.is_main

    def all_reduce(
        self, values: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> Tensor:
        """Reduce `values` over all processes in place, by default to their sum, and return them."""
        if self.world_size > 1:
            dist.all_reduce(values, operation)
        return values


SINGLE_PROCESS = Processes()


@cache
def init_processes() -> Processes:
    """Join the processes that torchrun started, with gloo (CPU) or NCCL (GPU); otherwise return
    `SINGLE_PROCESS`.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return SINGLE_PROCESS
    missing = {
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    } - os.environ.keys()
    if missing:
        raise TrainError(
            f"WORLD_SIZE is set, but {min(missing)} is not. Start several processes with torchrun."
        )
    with connection_errors("the processes cannot connect to each other"):
        # The store is kept for `reports_error`, which must work after the group has failed.
        store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
        backend = (
            "cpu:gloo,cuda:nccl"
            if torch.cuda.is_available() and dist.is_nccl_available()
            else "gloo"
        )
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
        )
    return Processes(rank, world_size, store)


@contextmanager
def connection_errors(
    message: str = "another process of this run has ended or does not respond",
) -> Iterator[None]:
    """Convert connection errors from torch.distributed to ProcessLost; other errors pass
    through.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise ProcessLost(message) from error
        raise
