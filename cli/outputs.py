"""Checks of output files and folders, before a command starts to work."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from byov.cache.atomic import remove_abandoned
from byov.cli.options import UsageError


def check_outputs(
    outputs: Sequence[Path], inputs: Iterable[Path], *, overwrite: bool, option: str = "-o"
) -> None:
    """Raise UsageError naming `option` if an output cannot be written or is an input; remove
    leftover partial files.
    """
    for path in outputs:
        if path.is_dir():
            raise UsageError(f"{path} is a folder. Choose another output with {option}.")
        if path.exists() and any(path.samefile(source) for source in inputs):
            raise UsageError(
                f"{path} is one of the input videos. Choose another output with {option}."
            )
        if path.exists() and not overwrite:
            raise UsageError(
                f"{path} exists. Pass --overwrite to replace it, or choose another output with "
                f"{option}."
            )
        check_folder(path.parent, option)
        remove_abandoned(path.parent, recursive=False)


def check_folder(folder: Path, option: str) -> None:
    """Raise UsageError, naming `option`, if files cannot be written to a folder, which need not
    exist yet.
    """
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    if not existing.is_dir():
        raise UsageError(
            f"{existing} is a file, not a folder. Choose another output with {option}."
        )
    try:
        # os.access does not detect full or virtual file systems.
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UsageError(
            f"{existing}: not writable ({error.strerror}). Choose another output with {option}."
        ) from None
