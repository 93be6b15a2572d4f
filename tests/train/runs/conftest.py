"""Fixtures for tests of training runs: small caches, tiny runs, and byov-train in child
processes.
"""

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import factories
from tests.processes import Command, Ran
from tests.train.conftest import sizes_of
from tests.train.runs.run_files import train_run

from byov.train.registry import config_class

ENCODER = "random/tiny"
# The smallest settings that cover every code path: 4 steps per epoch, with validation and a
# checkpoint in each epoch.
TINY = {
    "latent": 32,
    "depth": 1,
    "decoder_depth": 1,
    "heads": 4,
    "frames": 8,
    "clips": 4,
    "subset": 6,
}
TINY |= {"lr": 1e-3, "epochs": 3, "validate_every": 1}


@pytest.fixture
def start_train(start_command: Callable[..., Command], tmp_path: Path) -> Callable[..., Command]:
    """Return a function that starts byov-train with its folders in tmp_path."""
    folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
    return lambda *arguments, **how: start_command(("byov-train", *folders, *arguments), **how)


@pytest.fixture
def byov_train(start_train: Callable[..., Command]) -> Callable[..., Ran]:
    """Return a function that runs byov-train until it ends."""
    return lambda *arguments, **how: start_train(*arguments, **how).finish()


@pytest.fixture
def refused(byov_train: Callable[..., Ran]) -> Callable[..., str]:
    """Return a function that runs byov-train, which must fail, and returns its one-line error."""

    def run(*arguments: object, code: int = 2, **how: Any) -> str:
        return byov_train(*arguments, **how).error(code)

    return run


def tiny_options(method: str) -> dict[str, Any]:
    is_large = config_class(method).defaults("", {})["batch_size"] > 2
    sizes = sizes_of(method, TINY | ({"batch_size": 2} if is_large else {}))
    return {"method": method} | sizes | {"checkpoint_every": 1}


def tiny_arguments(method: str) -> tuple[str, ...]:
    options = tiny_options(method).items()
    return tuple(
        text for name, value in options for text in (f"--{name.replace('_', '-')}", str(value))
    )


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Options for a byov run that takes one second."""
    return tiny_arguments("byov")


def make_cache(
    features_dir: Path,
    train: tuple[int, int] = (2, 2),
    val: tuple[int, int] = (1, 1),
    test: tuple[int, int] = (1, 1),
    *,
    dataset: str = "toy",
    encoder: str = ENCODER,
    labels: bool = True,
) -> Path:
    """Write a dataset of videos <split>_<view>_<number>, given the numbers of ego and exo videos in
    each split.
    """
    random = np.random.default_rng(0)
    names = [
        (split, view, f"{split}_{view}_{number}")
        for split, counts in (("train", train), ("val", val), ("test", test))
        for view, count in zip(("ego", "exo"), counts, strict=True)
        for number in range(count)
    ]
    factories.write_cache(
        features_dir,
        {name: int(random.integers(20, 41)) for name in names},
        dataset=dataset,
        encoder=encoder,
        encoder_revision="0",
        phases=factories.PHASES if labels else (),
        pairs={(view, video): f"{split} {video[-1]}" for split, view, video in names},
        has_cls=True,
    )
    return features_dir / dataset


@pytest.fixture
def write_cache(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a dataset to tmp_path/features with `make_cache`."""
    return lambda *counts, **options: make_cache(tmp_path / "features", *counts, **options)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("cache") / "features")


@pytest.fixture
def cache(shared_cache: Path, tmp_path: Path) -> Path:
    """Writable cache tmp_path/features/toy with 4 train, 2 val and 2 test videos."""
    shutil.copytree(shared_cache.parent, tmp_path / "features")
    return tmp_path / "features" / "toy"


@pytest.fixture(scope="session")
def make_reference(
    shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function that trains a tiny run of a method without interruption; its folder must
    not be changed.
    """

    @lru_cache
    def make(method: str) -> Path:
        torch.set_num_threads(1)
        runs_dir = tmp_path_factory.mktemp("reference")
        train_run(
            "toy", features_dir=shared_cache.parent, runs_dir=runs_dir, **tiny_options(method)
        )
        return runs_dir / "toy"

    return make


@pytest.fixture(scope="session")
def reference(make_reference: Callable[[str], Path]) -> Path:
    return make_reference("byov")


@pytest.fixture
def reference_of_each(make_reference: Callable[[str], Path], each_method: str) -> Path:
    return make_reference(each_method)


@pytest.fixture
def finished(reference: Path, cache: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    """Writable copy of the reference run in tmp_path/runs/toy, together with its cache."""
    shutil.copytree(reference, tmp_path / "runs" / "toy")
    return tmp_path / "runs" / "toy"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of the run that `byov-train --run toy` writes."""
    return tmp_path / "runs" / "toy"
