"""Commands in this process."""

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


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
