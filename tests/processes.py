"""Run commands, which can be paused, in child processes of a fork server that imports PyTorch only
once.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = str(Path(__file__).parents[1])
# Environment variables that change the output of commands are not inherited.
_UNWANTED = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", "COLUMNS", "FORCE_COLOR"}
_UNWANTED |= {"BYOV_FEATURES", "BYOV_DATASETS", "BYOV_RUNS"}
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in _UNWANTED} | {
    "PYTHONSAFEPATH": "1"
}
SERVER = multiprocessing.get_context("forkserver")
# Adam imports the last one.
SERVER.set_forkserver_preload(["byov.cli.train", "byov.train.runs", "torch._dynamo"])


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that cannot run on this machine, or fail it with CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int = 2) -> str:
        """Check that the command failed and printed only notes and a one-line error, and return the
        error.
        """
        lines = self.err.splitlines()
        assert (self.code, self.out) == (code, ""), self
        assert "Traceback" not in self.err, self
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self
        return lines[-1].removeprefix("error: ")


def before_naming(text: str, count: int, act: Callable[[], object]) -> None:
    """Call `act` right before the count-th time that a file is renamed to a name that contains
    `text`.
    """
    left = count

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "os.rename" and text in os.fspath(arguments[1]):
            left -= 1
            if left == 0:
                act()

    sys.addaudithook(hook)


class Command:
    """Command that runs in a child process.

    Args:
        folder: Folder for the output of the command.
        words: Name and arguments of the command.
        pause_before: (text, n): pause right before the n-th time that a file is renamed to a name
            with the text.
        environment: Variables to add to the environment.
        largest_file: Maximum size of a file in bytes; writing more is an error or, with
            `largest_file_kills`, kills the process.
        without: Name of a package that cannot be imported.
    """

    def __init__(self, folder: Path, words: Sequence[object], **how: Any) -> None:
        self._files = (folder / "out.txt", folder / "err.txt")
        self._connection, theirs = SERVER.Pipe()
        texts = [Path(str(words[0])).name, *map(str, words[1:])]
        self._process = SERVER.Process(target=_run, args=(texts, self._files, theirs), kwargs=how)
        sys.path.append(ROOT)  # the child imports this module from here
        self._process.start()
        sys.path.remove(ROOT)
        theirs.close()

    def paused(self) -> bool:
        """Wait until the command pauses; return False if it ends first."""
        try:
            return bool(self._connection.recv())
        except EOFError:
            return False

    def send(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def finish(self) -> Ran:
        """Continue a paused command and wait for it to end."""
        with suppress(BrokenPipeError):  # the command has ended
            self._connection.send("continue")
        self._process.join()
        assert self.returncode is not None
        return Ran(self.returncode, *(path.read_text() for path in self._files))

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


def signal_and_end(command: Command, number: int) -> tuple[str, str]:
    """Send a signal to a paused command and return its output."""
    command.send(number)
    ran = command.finish()
    return ran.out, ran.err


def _run(
    words: Sequence[str],
    files: tuple[Path, Path],
    connection: Connection,
    pause_before: tuple[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
    largest_file: int | None = None,
    largest_file_kills: bool = False,
    without: str | None = None,
) -> None:
    import torch

    for number, path in ((0, os.devnull), (1, files[0]), (2, files[1])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    os.environ.clear()
    os.environ.update(ENVIRONMENT | dict(environment or {}))
    tempfile.tempdir = None  # makes tempfile read TMPDIR again
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a fork server ignores SIGINT
    if pause_before:
        before_naming(*pause_before, lambda: (connection.send(True), connection.recv()))
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if largest_file_kills:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if without:
        for name in [name for name in sys.modules if name.partition(".")[0] == without]:
            del sys.modules[name]
        sys.modules[without] = None  # type: ignore[assignment]  # importing it raises ImportError
    sys.argv = list(words)
    (script,) = entry_points(group="console_scripts", name=words[0])
    code: Any = 70
    try:
        script.load()()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
