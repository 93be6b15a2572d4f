"""Several processes through torch.distributed: gradients over NCCL between GPUs, all else over gloo."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from byov.errors import Diverged, ProcessLost, TrainError
from byov.train.parallel import Place

# One that dies is noticed at once; this is for one that stands still. The others wait while the leader validates.
TIMEOUT = timedelta(minutes=30)
PATIENCE_SECONDS = 3  # how long the others let the leader be the first to speak
SPOKEN = "byov/spoken"


class ProcessGroup:
    """This process among the others."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._speaks: bool | None = None
        self.leads, self.size = place.rank == 0, place.size
        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        with _network("the processes do not find each other"):
            try:
                self._store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
            except ValueError as error:  # a variable that is not set
                raise TrainError(f"{error}; start several processes with torchrun") from None
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpus else "gloo",
                store=self._store,
                rank=rank,
                world_size=size,
                timeout=TIMEOUT,
            )

    def own(self, items: int) -> range:
        return self._place.own(items)

    def device(self, kind: torch.device) -> torch.device:
        if kind.type == "cuda":
            there = torch.cuda.device_count()
            if self._place.local_size > there:
                raise TrainError(
                    f"{self._place.local_size} processes on a machine with {there} GPU{'s' * (there != 1)}; "
                    f"torchrun --nproc-per-node {there}, or --device cpu"
                )
            torch.cuda.set_device(self._place.local_rank)
            return torch.device("cuda", self._place.local_rank)
        if kind.type != "cpu":
            raise TrainError(f"several processes cannot train on {kind.type}; use --device cpu, or one process")
        return kind

    def spread(self, method: nn.Module) -> nn.Module:
        with _network(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of broadcast_buffers, whose successor torch 2.7 lacks
            return _Spread(
                method,
                static_graph=True,  # the first step shows which parameters a setting leaves unused
                broadcast_buffers=False,  # tables that no step changes
            )

    def whole(self, losses: Mapping[str, Tensor], items: int) -> dict[str, float]:
        share = len(self.own(items)) / items
        values = torch.tensor([loss.item() for loss in losses.values()], dtype=torch.float64) * share
        with _network():
            dist.all_reduce(values)
        return dict(zip(losses, values.tolist(), strict=True))

    def backward(self, loss: Tensor, items: int) -> None:
        weight = len(self.own(items)) * self.size / items  # DistributedDataParallel takes the mean over the processes
        with _network():
            (loss * weight).backward()  # type: ignore[no-untyped-call]

    def any(self, flag: bool) -> bool:
        flags = torch.tensor(int(flag))
        with _network():
            dist.all_reduce(flags)
        return bool(flags)

    def agree(self, choose: Callable[[], str]) -> str:
        chosen = torch.tensor(list(choose().encode()) if self.leads else [], dtype=torch.uint8)
        length = torch.tensor(len(chosen))
        with _network():
            dist.broadcast(length, src=0)
            if not self.leads:
                chosen = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(chosen, src=0)
        return bytes(chosen.tolist()).decode()

    def wait(self) -> None:
        self.any(False)

    def refuse_differences(self, model: nn.Module, step: int) -> None:
        """By a sum over the bits, which costs next to nothing."""
        bits = sum(int(tensor.float().view(torch.int32).sum()) for tensor in model.state_dict().values())
        facts = torch.tensor([step, bits % 2**62])
        least_most = torch.cat([facts, -facts])
        with _network():
            dist.all_reduce(least_most, op=dist.ReduceOp.MIN)
        if not torch.equal(least_most[:2], -least_most[2:]):
            raise Diverged(
                f"the weights at step {step} are not the same in all {self.size} processes, which must see the same "
                "folders and run on machines of one kind"
            )

    def leave(self) -> None:
        dist.destroy_process_group()

    def speaks(self) -> bool:
        if self._speaks is None:
            self._speaks = self._first_to_ask()
        return self._speaks

    def _first_to_ask(self) -> bool:
        try:
            waited_until = time.monotonic() + (0 if self.leads else PATIENCE_SECONDS)
            while time.monotonic() < waited_until and not self._store.check([SPOKEN]):
                time.sleep(0.05)
            return bool(self._store.add(SPOKEN, 1) == 1)
        except RuntimeError:  # nobody can be asked
            return self.leads


class _Spread(DistributedDataParallel):
    def forward(self, *inputs: Any) -> Any:
        with _network():
            return super().forward(*inputs)  # type: ignore[no-untyped-call]


@contextmanager
def _network(said: str = "another process of this run is gone, or does not answer") -> Iterator[None]:
    """Errors of the connection become ProcessLost; those of the work stay what they are."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise ProcessLost(said) from error
        raise
