"""byov-train in child processes of a fork server, which imports PyTorch once."""

import multiprocessing
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.processes import ENVIRONMENT, Ran

ROOT = str(Path(__file__).parents[3])
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["byov.cli.train", "byov.train.run", "torch._dynamo"])  # which Adam imports


class Command:
    """A running byov-train.

    Args:
        folder: A folder for its output.
        arguments: Its arguments.
        pause_before: (text, n): pause right before the n-th file gets a name that contains the text.
        largest_file: Largest size of a file, in bytes; writing more is an error, or the end of the process with
            `largest_file_kills`.
        without: Name of a package to hide.
    """

    def __init__(self, folder: Path, arguments: Sequence[object], **how: Any) -> None:
        self._files = (folder / "out.txt", folder / "err.txt")
        self._connection, theirs = SERVER.Pipe()
        words = [str(argument) for argument in arguments]
        self._process = SERVER.Process(target=_run, args=(words, self._files, theirs), kwargs=how)
        sys.path.append(ROOT)  # where the child imports this module from
        self._process.start()
        sys.path.remove(ROOT)
        theirs.close()

    def paused(self) -> bool:
        """Wait until it pauses; False if it ended before."""
        try:
            return bool(self._connection.recv())
        except EOFError:
            return False

    def send(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def finish(self) -> Ran:
        """Continue, and wait for the end."""
        with suppress(BrokenPipeError):  # it has ended
            self._connection.send("continue")
        self._process.join()
        out, err = (path.read_text() for path in self._files)
        assert self._process.exitcode is not None
        return Ran(self._process.exitcode, out, err)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run(
    arguments: Sequence[str],
    files: tuple[Path, Path],
    connection: Connection,
    pause_before: tuple[str, int] | None = None,
    largest_file: int | None = None,
    largest_file_kills: bool = False,
    without: str | None = None,
) -> None:
    import torch

    from byov.cli.train import main

    for number, path in ((0, os.devnull), (1, files[0]), (2, files[1])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a fork server ignores
    if pause_before:
        _before_naming(*pause_before, lambda: (connection.send(True), connection.recv()))
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if largest_file_kills:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if without:
        _hide(without)
    sys.argv = ["byov-train", *arguments]
    code: Any = 70
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _before_naming(text: str, count: int, act: Callable[[], object]) -> None:
    """Call `act` right before the count-th file gets a name that contains the text."""
    left = count

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "os.rename" and text in os.fspath(arguments[1]):
            left -= 1
            if left == 0:
                act()

    sys.addaudithook(hook)


def _hide(package: str) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}")

    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
