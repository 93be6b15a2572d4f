"""Entry points of the console scripts."""

import signal
import sys
from collections.abc import Callable
from importlib import import_module


def _script(module: str) -> Callable[[], None]:
    """Return a function that imports and runs a command.

    Importing a command takes seconds; Ctrl-C in the meantime gives no traceback.
    """

    def main() -> None:
        # In scripts, background jobs ignore SIGINT by default.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            command = import_module(f"byov.cli.{module}").main
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(130)
        command()

    return main


align = _script("align")
cache = _script("cache")
embed = _script("embed")
evaluate = _script("evaluate")
export = _script("export")
extract = _script("extract")
report = _script("report")
runs = _script("runs")
sweep = _script("sweep")
train = _script("train")
