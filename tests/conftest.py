"""Commands in this process, and Python processes of their own for what a test must not do to itself."""

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# What decides how output looks and when it is written must not depend on who runs the tests.
UNWANTED = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", "COLUMNS", "FORCE_COLOR", "BYOV_FEATURES", "BYOV_DATASETS"}
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in UNWANTED} | {
    "PYTHONSAFEPATH": "1",
    "PYTHONWARNINGS": "error",
}


@pytest.fixture(autouse=True)
def usual_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have moved theirs."""
    for variable in ("BYOV_RUNS", "BYOV_FEATURES", "BYOV_DATASETS"):
        monkeypatch.delenv(variable, raising=False)


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


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


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
            timeout=60,
            env=ENVIRONMENT | environment,
            check=False,
        )

    return run


@pytest.fixture
def start_python() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a script that prints a line when it is where the test wants it, then waits for its standard input."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
