"""Resolve folders: an explicit argument, then an environment variable, then a folder in the working
directory.
"""

import os
from pathlib import Path

Folder = str | os.PathLike[str] | None


def datasets_folder(given: Folder = None) -> Path:
    """Return the folder that contains the datasets."""
    return _chosen(given, "BYOV_DATASETS", "datasets")


def features_folder(given: Folder = None) -> Path:
    """Return the folder of the feature cache."""
    return _chosen(given, "BYOV_FEATURES", "features")


def runs_folder(given: Folder = None) -> Path:
    """Return the folder that contains the runs.

    >>> runs_folder("elsewhere").as_posix(), runs_folder().as_posix()
    ('elsewhere', 'runs')
    """
    return _chosen(given, "BYOV_RUNS", "runs")


def _chosen(given: Folder, variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default if given is None else given)


def dataset_folder(name: str) -> str:
    """Return the folder name of a dataset: metaworld/hammer -> metaworld-hammer."""
    return str(name).replace("/", "-")
