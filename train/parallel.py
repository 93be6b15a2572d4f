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
    from byov.train.process_group import ProcessGroup

    return ProcessGroup(ours)


def _number(variable: str, default: int | None = None) -> int:
    value = os.environ.get(variable, default)
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        said = "is not set" if value is None else f"is {value!r}"
        raise TrainError(f"{variable} {said}; start several processes with torchrun, one without WORLD_SIZE") from None
