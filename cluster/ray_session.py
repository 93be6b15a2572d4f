"""A Ray session: who may join it, and that nothing of it stays behind.

Ray is an extra and takes a second to import, so it is imported where it is used. Opened in the main thread it takes
over SIGTERM; who has handlers of their own opens it in another thread. That thread must outlive the session: the
processes of a local one end with it.
"""

import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byov.device import usable_cores
from byov.errors import ClusterError

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 12.0
STORE_BYTES = 100 << 20  # of shared memory: results are a few words each; Ray would take a third of the machine's
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})")
_TOKEN = secrets.token_hex(32)  # one for all sessions of this process: Ray reads it once
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster, and what of it."""

    address: str = LOCAL  # a cluster of this machine's own; "auto": the one that runs here; or HOST:PORT
    workers: int | None = None  # None: as many as there is room for
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0


def check_address(address: str) -> None:
    if address not in (LOCAL, AUTO) and not _ADDRESS.fullmatch(address):
        raise ClusterError(f"{address!r} is no cluster; expected local, auto or HOST:PORT, like 10.0.0.1:6379")


def require_ray() -> None:
    if find_spec("ray") is None:
        raise ClusterError("this needs Ray, which is not installed: pip install 'byov-egoexo[cluster]'")


@contextmanager
def ray_session(cluster: ClusterOptions) -> Iterator[None]:
    """Within, this process is the driver of a Ray cluster; afterwards, a local one is gone."""
    check_address(cluster.address)
    require_ray()
    local = cluster.address == LOCAL
    with _private_token() if local else _environment({}):
        import ray

        try:
            if local:
                _start(cluster)
            else:
                _join(cluster.address)
            yield
        finally:
            ray.shutdown()


def _start(cluster: ClusterOptions) -> None:
    """More workers than there are cores, if they were asked for."""
    asked = (cluster.workers or 0) * cluster.cpus_per_worker
    _init(
        LOCAL,
        num_cpus=max(usable_cores(), asked),
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
    )


def _join(address: str) -> None:
    if address != AUTO:
        _refuse_silent(address)
    _within(CONNECT_SECONDS, lambda: _init(address), address)


def _init(address: str, **settings: Any) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="critical", **settings)
    except Exception as error:  # of many kinds, and of many lines
        reason = " ".join(str(error).split()) or type(error).__name__
        if address == AUTO and isinstance(error, ConnectionError):
            reason = "no Ray cluster runs on this machine"
        raise ClusterError(f"--cluster {address}: {reason}; {_advice(address)}") from error


def _refuse_silent(address: str) -> None:
    """Ray itself would try for long."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS / 2).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"--cluster {address}: nobody answers there ({error}); {_advice(address)}") from error


def _within(seconds: float, connect: Callable[[], None], address: str) -> None:
    """Ray can neither be told how long to try, nor be interrupted."""
    errors: list[BaseException] = []

    def target() -> None:
        try:
            connect()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise ClusterError(
            f"--cluster {address}: no answer of a Ray cluster within {seconds:.0f} s; {_advice(address)}, "
            "and run this on one of its machines"
        )
    if errors:
        raise errors[0]


def _advice(address: str) -> str:
    return "see RAY_TMPDIR" if address == LOCAL else "start one with ray start --head, or use --cluster local"


@contextmanager
def _private_token() -> Iterator[None]:
    """A token, or every user of this machine could have work done; in a file that they cannot read, as they could one
    that Ray makes. What the user's environment says goes first."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported, so it stays
    if os.environ.get("RAY_AUTH_MODE") != "token" or any(name in os.environ for name in _TOKEN_VARIABLES):
        with _environment({}):
            yield
        return
    with TemporaryDirectory(prefix="byov-ray-", ignore_cleanup_errors=True) as folder:
        token = Path(folder) / "token"
        token.touch(mode=0o600)
        token.write_text(_TOKEN)
        with _environment({"RAY_AUTH_TOKEN_PATH": str(token)}):
            yield


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """What Ray reads from there, and the processes that it starts inherit: no usage statistics, and workers
    that are as urgent as the process that they work for."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | dict(settings)
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
