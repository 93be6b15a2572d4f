"""Command-line interface: options, messages, progress, signals and exit codes."""

import os
import signal
import sys
from types import FrameType


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


# Exit without a traceback on Ctrl-C during slow imports, before common.App installs its handlers.
if sys.argv[0].rpartition("/")[2].startswith("byov-"):
    for _signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_signal, _exit_on_signal)
