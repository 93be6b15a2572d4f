"""Commands in processes of their own: their environment, what they come to, and how they are made to stand still where
a test kills or signals them, however fast they are."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# What decides how output looks and when it is written must not depend on who runs the tests.
_UNWANTED = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", "COLUMNS", "FORCE_COLOR"}
_UNWANTED |= {"BYOV_FEATURES", "BYOV_DATASETS", "BYOV_RUNS"}
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in _UNWANTED} | {"PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


# Text for scripts that run in processes of their own.
BEFORE_NAMING = '''
def before_naming(text, count, act):
    """Call `act` right before the count-th file gets a name that contains the text."""
    import os, sys
    left = count
    def hook(event, args):
        nonlocal left
        if event == "os.rename" and text in os.fspath(args[1]):
            left -= 1
            if left == 0:
                act()
    sys.addaudithook(hook)
'''
_SCRIPT = f"""{BEFORE_NAMING}
import os, runpy, signal, sys
before_naming(sys.argv[1], 1, lambda: os.kill(os.getpid(), signal.SIGSTOP))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start_and_pause(command: Sequence[object], before: str, **environment: str) -> "subprocess.Popen[str]":
    """An installed command and its arguments, as it stands still before a file gets a name that contains `before`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, before, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | environment,
    )
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found is not None
    assert found.si_code == os.CLD_STOPPED, process.communicate()
    return process


def signal_and_end(process: "subprocess.Popen[str]", number: int) -> tuple[str, str]:
    """Let it hear a signal as it goes on; what it has said until its end."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=300)
