"""Ray has its workers look for modules in the driver's working folder first, where a folder called data or evaluate
would be taken for a package. They forget it before they import anything else: until then what they get is pickled, and
their own modules need the standard library only."""

import sys
from pathlib import Path


def driver_only_path() -> str | None:
    """The working folder, unless this process looks for modules there too."""
    folder = str(Path.cwd())
    return None if folder in sys.path else folder


def forget_path(folder: str | None) -> None:
    sys.path[:] = [path for path in sys.path if path != folder]
