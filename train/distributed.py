"""One training in several processes, as torchrun starts them: each takes its part of every step, one of them leads.

The leader alone writes, logs, validates and embeds. All that processes tell each other goes through a `Processes`,
whose methods all of them call in the same order; of its two kinds, `ALONE` has nobody to tell.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from byov.errors import TrainError

if TYPE_CHECKING:  # torch takes seconds to import; wrong usage of a command gets by without it
    import torch
    from torch import Tensor, nn
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from byov.errors import Diverged, ProcessLost


class Processes(Protocol):
    """Where one of them is gone, the others' methods raise ProcessLost."""

    leads: bool
    size: int

    def own(self, items: int) -> range:
        """Which of a step's items this process takes; none, if there are fewer than processes."""

    def device(self, kind: "torch.device") -> "torch.device":
        """The device of its own among those of a kind."""

    def spread(self, method: "nn.Module") -> "nn.Module":
        """The method, to be called in its place: `backward` then gives all processes the same gradients."""

    def whole(self, losses: "Mapping[str, Tensor]", items: int) -> dict[str, float]:
        """The losses of all of a step's items, from those of this process's own."""

    def backward(self, loss: "Tensor", items: int) -> None:
        """The gradients of the loss of all of a step's items, from that of this process's own."""

    def any(self, flag: bool) -> bool:
        """Whether one of them says so."""

    def agree(self, choose: Callable[[], str]) -> str:
        """What the leader chooses; the others wait for it."""

    def wait(self) -> None:
        """Until all are here."""

    def refuse_differences(self, model: "nn.Module", step: int) -> None:
        """Raise Diverged unless all processes have the same weights after the same number of steps."""

    def leave(self) -> None:
        """What is left to do is the leader's."""

    def speaks(self) -> bool:
        """Whether it falls to this process to say why the work has failed: the leader, or else the first to ask."""


class Alone:
    """The only process."""

    leads, size = True, 1

    def own(self, items: int) -> range:
        return range(items)

    def device(self, kind: "torch.device") -> "torch.device":
        return kind

    def spread(self, method: "nn.Module") -> "nn.Module":
        return method

    def whole(self, losses: "Mapping[str, Tensor]", items: int) -> dict[str, float]:  # noqa: ARG002
        return {name: loss.item() for name, loss in losses.items()}

    def backward(self, loss: "Tensor", items: int) -> None:  # noqa: ARG002
        loss.backward()  # type: ignore[no-untyped-call]

    def any(self, flag: bool) -> bool:
        return flag

    def agree(self, choose: Callable[[], str]) -> str:
        return choose()

    def wait(self) -> None:
        pass

    def refuse_differences(self, model: "nn.Module", step: int) -> None:
        pass

    def leave(self) -> None:
        pass

    def speaks(self) -> bool:
        return True


ALONE: Processes = Alone()


@dataclass(frozen=True)
class Place:
    """Which of the processes this one is: of all, and of those on its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    def own(self, items: int) -> range:
        """The part of so many items that this process takes; parts differ by one at most."""
        return range(items * self.rank // self.size, items * (self.rank + 1) // self.size)


def place() -> Place | None:
    """What torchrun says in the environment; None for the only process."""
    size = _number("WORLD_SIZE", 1)
    if size == 1:
        return None
    return Place(_number("RANK"), size, _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE", size))


@cache
def join() -> Processes:
    """The processes that torchrun has started this one with; returns when all are there."""
    ours = place()
    if ours is None:
        return ALONE
    from byov.train.distributed import ProcessGroup

    return ProcessGroup(ours)


def _number(variable: str, default: int | None = None) -> int:
    value = os.environ.get(variable, default)
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        said = "is not set" if value is None else f"is {value!r}"
        raise TrainError(f"{variable} {said}; start several processes with torchrun, one without WORLD_SIZE") from None


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
