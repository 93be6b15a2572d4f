"""Work on a Ray cluster: the options of the commands that can, and how they wait for it."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from threading import Event
from typing import Annotated, TypeVar

import typer

from byov.cli.command import UsageMistake, interruptible
from byov.cluster.ray_session import ClusterOptions, check_address, require_ray
from byov.device import Device
from byov.progress import Stop

T = TypeVar("T")
CLOSE_SECONDS = 1.5  # after a signal; what is not closed by then ends with this process
_PANEL = "Cluster"

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Work on Ray: local (this machine), auto (the cluster that runs here) or HOST:PORT.",
        rich_help_panel=_PANEL,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Default: as many as there is room for.", rich_help_panel=_PANEL),
]
CpusOption = Annotated[
    int | None,
    typer.Option("--cpus-per-worker", min=1, help="For decoding and encoding. Default 1.", rich_help_panel=_PANEL),
]
GpusOption = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", min=0, help="May be a part, like 0.5. Default 0.", rich_help_panel=_PANEL),
]


def parse_cluster(
    address: str | None, workers: int | None, cpus_per_worker: int | None, gpus_per_worker: float | None
) -> ClusterOptions | None:
    """What the options mean; None: this process does the work."""
    if address is None:
        given = {"--workers": workers, "--cpus-per-worker": cpus_per_worker, "--gpus-per-worker": gpus_per_worker}
        for name, value in given.items():
            if value is not None:
                raise UsageMistake(f"{name} goes with --cluster, like --cluster local")
        return None
    check_address(address)
    require_ray()
    return ClusterOptions(address, workers, cpus_per_worker or 1, gpus_per_worker or 0.0)


def refuse_without_gpus(cluster: ClusterOptions, device: Device) -> None:
    if device == "cuda" and not cluster.gpus_per_worker:
        raise UsageMistake("--device cuda on a cluster: say how many with --gpus-per-worker, like 1")


def beside_ray(work: Callable[[], T], said: str, close: Callable[[], object] = lambda: None) -> T:
    """As interruptible: in another thread than the main one, whose signal handlers Ray would replace.

    Ray prints to standard output what it has to say of dead workers, whatever it is told; we say it ourselves.
    """
    with redirect_stdout(io.StringIO()):
        return interruptible(work, said, close=close)


def on_cluster(work: Callable[[Stop], T], said: str) -> T:
    """work(stop); a signal has it stop, and is waited for a moment only."""
    stop, ended = Event(), Event()

    def target() -> T:
        try:
            return work(stop.is_set)
        finally:
            ended.set()

    def close() -> None:
        stop.set()
        ended.wait(CLOSE_SECONDS)

    return beside_ray(target, said, close)
