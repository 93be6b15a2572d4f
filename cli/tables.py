"""Where tables go."""

import sys

from rich.console import Console

WIDE = 160  # columns, where the output is no terminal


def wide_console() -> Console:
    """As wide as the terminal; wide where there is none, so that pipes and files have whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)
