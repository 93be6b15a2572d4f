"""Commands in processes of their own, and how to stop them at a chosen file, however fast they are."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# Output must not depend on the environment of whoever runs the tests.
_UNWANTED = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", "COLUMNS", "FORCE_COLOR"}
_UNWANTED |= {"BYOV_FEATURES", "BYOV_DATASETS", "BYOV_RUNS"}
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in _UNWANTED} | {"PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


# Source code for scripts that run in processes of their own.
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


def start_and_pause(command, before, **environment):
    """Start an installed command that stops itself before it renames a file to a name that contains `before`."""
    words = [sys.executable, "-c", _SCRIPT, before, *map(str, command)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(words, **pipes, text=True, env=ENVIRONMENT | environment)
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found.si_code == os.CLD_STOPPED, process.communicate()
    return process


def signal_and_end(process, number):
    """Continue a stopped process with a pending signal; return what it prints until it ends."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=300)
