"""Data-parallel training in several processes started by torchrun.

Every process runs the same code and takes its part of each batch. The main process (rank 0) alone writes files,
validates and embeds.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from byov.errors import Diverged, ProcessLost, TrainError

# A process that dies is noticed at once; the timeout is for one that hangs. It must cover a validation.
TIMEOUT = timedelta(minutes=30)
MAIN_REPORTS_WITHIN_SECONDS = 3
_REPORTED_KEY = "byov/reported"


class Processes:
    """The processes that train one run; this base class is the single process. `ProcessGroup` is several.

    All processes must call the same methods in the same order.
    """

    is_main = True
    world_size = 1

    def local_items(self, count: int) -> range:
        """Return which of the `count` items of a batch this process takes; may be empty."""
        return range(count)

    def device(self, device: torch.device) -> torch.device:
        """Return this process's own device of the given type."""
        return device

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module to call in training, whose `backward` averages gradients over the processes."""
        return module

    def loss_weight(self, items: int) -> float:  # noqa: ARG002
        """Return the factor of the local loss before `backward`, so that each of a batch's items counts the same."""
        return 1.0

    def reduce(self, losses: Mapping[str, Tensor], items: int) -> dict[str, float]:  # noqa: ARG002
        """Return the losses over all items of a batch, given the means over the local ones."""
        return {name: loss.item() for name, loss in losses.items()}

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag

    def broadcast(self, choose: Callable[[], str]) -> str:
        """Return the result of `choose`, which only the main process calls."""
        return choose()

    def barrier(self) -> None:
        """Wait for all processes."""

    def check_in_sync(self, model: nn.Module, step: int) -> None:
        """Raise Diverged unless all processes are at the same step with the same weights."""

    def shutdown(self) -> None:
        """Leave the process group. The remaining work is done by the main process."""

    def reports_error(self) -> bool:
        """Return whether this process should print why the run failed: the main one or, if that is gone, the first."""
        return True


SINGLE_PROCESS = Processes()


@cache
def init_processes() -> Processes:
    """Join the processes that torchrun started; without torchrun, return `SINGLE_PROCESS`."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return SINGLE_PROCESS
    try:
        return ProcessGroup(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    except (KeyError, ValueError) as error:
        raise TrainError(f"Incomplete environment ({error}). Start several processes with torchrun.") from None


def partition(count: int, rank: int, world_size: int) -> range:
    """Return the part of `count` items for a rank; the sizes of the parts differ by at most one."""
    return range(count * rank // world_size, count * (rank + 1) // world_size)


class ProcessGroup(Processes):
    """Several processes, connected by gloo (CPU) or NCCL (GPU)."""

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        self._local_rank, self._local_world_size = local_rank, local_world_size
        self._reports: bool | None = None
        with connection_errors("the processes cannot connect to each other"):
            # The store is kept for `reports_error`, which must work after the group has failed.
            self._store, self._rank, self.world_size = next(rendezvous("env://", timeout=TIMEOUT))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo",
                store=self._store,
                rank=self._rank,
                world_size=self.world_size,
                timeout=TIMEOUT,
            )
        self.is_main = self._rank == 0

    def local_items(self, count: int) -> range:
        return partition(count, self._rank, self.world_size)

    def device(self, device: torch.device) -> torch.device:
        if device.type == "cuda":
            gpus = torch.cuda.device_count()
            if self._local_world_size > gpus:
                raise TrainError(
                    f"{self._local_world_size} processes on a machine with {gpus} GPUs. "
                    f"Use torchrun --nproc-per-node {gpus} or --device cpu."
                )
            torch.cuda.set_device(self._local_rank)
            return torch.device("cuda", self._local_rank)
        if device.type != "cpu":
            raise TrainError(f"Several processes cannot train on {device.type}. Use --device cpu or one process.")
        return device

    def wrap(self, module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of broadcast_buffers; its successor is not in torch 2.7
            return DistributedDataParallel(
                module,
                static_graph=True,  # the first step shows which parameters the settings leave unused
                broadcast_buffers=False,  # buffers are constant tables
            )

    def loss_weight(self, items: int) -> float:
        return len(self.local_items(items)) * self.world_size / items  # DistributedDataParallel averages

    def reduce(self, losses: Mapping[str, Tensor], items: int) -> dict[str, float]:
        fraction = len(self.local_items(items)) / items
        values = torch.tensor([loss.item() for loss in losses.values()], dtype=torch.float64) * fraction
        dist.all_reduce(values)
        return dict(zip(losses, values.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags)
        return bool(flags)

    def broadcast(self, choose: Callable[[], str]) -> str:
        chosen = [choose() if self.is_main else ""]
        dist.broadcast_object_list(chosen, src=0, device=torch.device("cpu"))
        return chosen[0]

    def barrier(self) -> None:
        self.any(False)

    def check_in_sync(self, model: nn.Module, step: int) -> None:
        # A sum over the bits of the weights costs next to nothing.
        bits = sum(int(tensor.float().view(torch.int32).sum()) for tensor in model.state_dict().values())
        local = torch.tensor([step, bits % 2**62])
        smallest, negated_largest = local.clone(), -local
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        dist.all_reduce(negated_largest, op=dist.ReduceOp.MIN)
        if not torch.equal(smallest, -negated_largest):
            raise Diverged(
                f"The weights at step {step} differ between the {self.world_size} processes. All processes must read "
                "the same folders and run on the same kind of machine."
            )

    def shutdown(self) -> None:
        dist.destroy_process_group()

    def reports_error(self) -> bool:
        if self._reports is None:
            try:
                deadline = time.monotonic() + (0 if self.is_main else MAIN_REPORTS_WITHIN_SECONDS)
                while time.monotonic() < deadline and not self._store.check([_REPORTED_KEY]):
                    time.sleep(0.05)
                self._reports = bool(self._store.add(_REPORTED_KEY, 1) == 1)
            except RuntimeError:  # the store is gone, too
                self._reports = self.is_main
        return self._reports


@contextmanager
def connection_errors(message: str = "another process of this run has ended or does not respond") -> Iterator[None]:
    """Turn connection errors of torch.distributed into ProcessLost; other errors pass through."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise ProcessLost(message) from error
        raise
