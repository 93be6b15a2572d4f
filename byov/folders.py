"""The three folders, where nothing else is said: what the commands take from the environment, else from the folder at
hand."""

import os
from pathlib import Path

Folder = str | os.PathLike[str] | None


def datasets_folder(given: Folder = None) -> Path:
    """Videos and labels."""
    return _chosen(given, "BYOV_DATASETS", "datasets")


def features_folder(given: Folder = None) -> Path:
    """The feature cache."""
    return _chosen(given, "BYOV_FEATURES", "features")


def runs_folder(given: Folder = None) -> Path:
    """Models, embeddings and results.

    >>> runs_folder("elsewhere").as_posix(), runs_folder().as_posix()
    ('elsewhere', 'runs')
    """
    return _chosen(given, "BYOV_RUNS", "runs")


def _chosen(given: Folder, variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or usual if given is None else given)
