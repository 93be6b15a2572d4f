"""The commands: arguments, messages, progress bars, signals, exit codes."""

import os
import signal
import sys
from types import FrameType


def _end(number: int, _: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


# Of a command that is still importing what it needs: nothing is begun, and command.run takes over as soon as it can.
if sys.argv[0].rpartition("/")[2].startswith("byov-"):
    for _signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(_signal, _end)
