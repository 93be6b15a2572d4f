"""Entry points of the console scripts."""

import os
import signal
import sys
from functools import partial
from importlib import import_module
from types import FrameType
from typing import NoReturn


def _run(module: str) -> None:
    """Import and run a command.

    Importing a command takes seconds; Ctrl-C in the meantime exits at once.
    """
    signal.signal(signal.SIGINT, _exit)  # in scripts, background jobs ignore SIGINT by default
    import_module(f"byov.cli.{module}").main()


def _exit(signal_number: int, _frame: FrameType | None) -> NoReturn:
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(128 + signal_number)


align = partial(_run, "align")
annotate = partial(_run, "annotate")
cache = partial(_run, "cache")
embed = partial(_run, "embed")
evaluate = partial(_run, "evaluate")
export = partial(_run, "export")
extract = partial(_run, "extract")
report = partial(_run, "report")
runs = partial(_run, "runs")
sweep = partial(_run, "sweep")
train = partial(_run, "train")
