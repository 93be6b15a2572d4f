"""The files that a command is to write: none may be there yet, and none may be one of its inputs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from byov.cli.command import UsageMistake


def refuse_outputs(outputs: Sequence[Path], inputs: Iterable[Path], *, overwrite: bool, option: str = "-o") -> None:
    """Raise if an output cannot be written, before any work is done for it. option: the one that names them."""
    sources, choose = list(inputs), f"choose another place with {option}"
    for path in outputs:
        if path.is_dir():
            raise UsageMistake(f"{path}: a folder, where a file is to be written; {choose}")
        if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
            raise UsageMistake(f"{path}: is one of the videos that are read; {choose}")
        if path.exists() and not overwrite:
            raise UsageMistake(f"{path}: exists; replace it with --overwrite, or {choose}")
        _refuse_folder(path.parent, choose)


def _refuse_folder(folder: Path, choose: str) -> None:
    """A folder that is not there yet is made; a file in its place is not."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise UsageMistake(f"{there}: a file, where a folder is needed for the output; {choose}")
