"""Commands in this process, and Python processes of their own for what a test must not do to itself."""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import pytest
from tests.processes import ENVIRONMENT as PLAIN_ENVIRONMENT
from tests.processes import Command, Ran

from byov.cache.digests import array_sha256, json_sha256
from byov.cache.hdf5 import read_attributes, stored_attribute

ROOT = Path(__file__).parents[1]
ENVIRONMENT = PLAIN_ENVIRONMENT | {"PYTHONWARNINGS": "error"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: the short ones fill up what time the processes have left at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def usual_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have moved theirs."""
    for variable in ("BYOV_RUNS", "BYOV_FEATURES", "BYOV_DATASETS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Models this small are no quicker on several cores, and on some CPUs their number decides the last bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """load_benchmark(name): a file of benchmarks/, which are not installed."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def _call(main: Callable[[], None], name: str, *arguments: object) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before, sys.argv = sys.argv, [name, *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def call() -> Callable[..., Ran]:
    """call(main, name, *arguments): a command as if it were typed, in this process: PyTorch is imported once."""
    return _call


@pytest.fixture(scope="session")
def clean_environment() -> dict[str, str]:
    return ENVIRONMENT


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a process of its own, to its end."""

    def run(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env=ENVIRONMENT | environment,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def without_rights(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What makes of a command one of a user who may only what files and folders permit; root may everything else."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o500)
    prefix = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("setpriv is not installed, and root may write everywhere")
    touched = subprocess.run([*prefix, "touch", str(closed / "file")], capture_output=True, text=True, check=False)
    if "Permission denied" not in touched.stderr:
        pytest.skip(f"permissions do not count here: {touched.stderr.strip() or 'setpriv takes no rights away'}")
    return prefix


@pytest.fixture
def start_python() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a script that prints a line when it is where the test wants it, then waits for its standard input."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """start_command(words, pause_before=(text, n), ...): a running command."""
    started: list[Command] = []

    def start(words: Sequence[object], **how: Any) -> Command:
        folder = tmp_path / f"command-{len(started)}"
        folder.mkdir()
        started.append(Command(folder, words, **how))
        return started[-1]

    yield start
    for command in started:
        command.kill()


@pytest.fixture
def start_paused(start_command: Callable[..., Command]) -> Callable[..., Command]:
    """start_paused(words, before=text): a command that pauses before a file gets a name that contains the text."""

    def start(words: Sequence[object], *, before: str, **environment: str) -> Command:
        command = start_command(words, pause_before=(before, 1), environment=environment)
        assert command.paused(), command.finish()
        return command

    return start


@pytest.fixture
def edit_h5() -> Callable[..., AbstractContextManager[h5py.File]]:
    """Open an HDF5 file to forge it; its digests are updated afterwards, those of its arrays with values=True."""

    @contextmanager
    def edit(path: Path, *, values: bool = False) -> Iterator[h5py.File]:
        with h5py.File(path, "r+", locking=False) as file:
            yield file
            with suppress(ValueError, TypeError, RuntimeError, KeyError):  # attributes of types byov never writes
                _update_digests(file, values=values)

    return edit


def _update_digests(file: h5py.File, *, values: bool) -> None:
    attributes = read_attributes(file)
    if attributes.pop("header_sha256", None) is None:
        return
    merged = file["merged"] if isinstance(file.get("merged", getlink=True), h5py.HardLink) else ()
    names = sorted([*(f"merged/{name}" for name in merged), *(name for name in file if name != "merged")])
    recorded = json.loads(attributes["columns"])
    digests = {name: array_sha256(file[name][:]) if values else recorded.get(name, "") for name in names}
    attributes["columns"] = json.dumps(digests)
    attributes["header_sha256"] = json_sha256(attributes)
    for name in ("columns", "header_sha256"):
        file.attrs[name] = stored_attribute(attributes[name])
