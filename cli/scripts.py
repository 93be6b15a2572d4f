"""Entry points of the console scripts."""

import signal
import sys
from functools import partial
from importlib import import_module


def _run(module: str) -> None:
    """Import and run a command.

    Importing a command takes seconds; Ctrl-C in the meantime gives no traceback.
    """
    # In scripts, background jobs ignore SIGINT by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command = import_module(f"byov.cli.{module}").main
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command()


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
