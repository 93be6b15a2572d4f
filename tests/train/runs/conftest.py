"""Small caches, tiny runs, and byov-train in processes."""

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

from byov.train.run import train_run
from byov.train.settings import settings_classes

ENCODER = "random/tiny"
# As small as possible while everything still happens: 4 steps per epoch, each epoch validated and checkpointed.
TINY = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "clips": 4, "subset": 6}
TINY |= {"lr": 1e-3, "epochs": 3, "validate_every": 1}


@pytest.fixture
def start_train(start_command: Callable[..., Command], tmp_path: Path) -> Callable[..., Command]:
    """start_train(*arguments, pause_before=(text, n), ...): a running byov-train with its folders in tmp_path."""
    folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
    return lambda *arguments, **how: start_command(("byov-train", *folders, *arguments), **how)


@pytest.fixture
def byov_train(start_train: Callable[..., Command]) -> Callable[..., Ran]:
    """byov_train(*arguments): run the command to its end."""
    return lambda *arguments, **how: start_train(*arguments, **how).finish()


@pytest.fixture
def refused(byov_train: Callable[..., Ran]) -> Callable[..., str]:
    """refused(*arguments): the one-line error of byov-train."""

    def run(*arguments: object, code: int = 2, **how: Any) -> str:
        ran = byov_train(*arguments, **how)
        assert (ran.code, ran.out) == (code, ""), ran
        assert "Traceback" not in ran.err, ran
        *_, last = ran.err.splitlines()
        assert last.startswith("error: "), ran
        return last.removeprefix("error: ")

    return run


def tiny_options(method: str) -> dict[str, Any]:
    is_large = settings_classes()[method].model_fields["batch_size"].default > 2
    sizes = sizes_of(method, TINY | ({"batch_size": 2} if is_large else {}))
    return {"method": method} | sizes | {"checkpoint_every": 1}


def tiny_arguments(method: str) -> tuple[str, ...]:
    options = tiny_options(method).items()
    return tuple(text for name, value in options for text in (f"--{name.replace('_', '-')}", str(value)))


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Options of a run of byov that takes a second."""
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
    """Write a dataset of videos <split>_<view>_<number>; train, val, test: number of ego and of exo videos."""
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
    """write_cache(train=(ego, exo), val=..., test=..., ...): a dataset in tmp_path/features."""
    return lambda *counts, **options: make_cache(tmp_path / "features", *counts, **options)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("cache") / "features")


@pytest.fixture
def cache(shared_cache: Path, tmp_path: Path) -> Path:
    """tmp_path/features/toy: 4 train, 2 val and 2 test videos, free to be damaged."""
    shutil.copytree(shared_cache.parent, tmp_path / "features")
    return tmp_path / "features" / "toy"


@pytest.fixture(scope="session")
def make_reference(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """make_reference(method): the folder of its tiny run `toy`, never interrupted; read only."""

    @lru_cache
    def make(method: str) -> Path:
        torch.set_num_threads(1)
        runs_dir = tmp_path_factory.mktemp("reference")
        train_run("toy", features_dir=shared_cache.parent, runs_dir=runs_dir, **tiny_options(method))
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
    """A copy of the reference run in tmp_path/runs/toy, next to its cache."""
    shutil.copytree(reference, tmp_path / "runs" / "toy")
    return tmp_path / "runs" / "toy"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of `byov-train --run toy`."""
    return tmp_path / "runs" / "toy"
