"""Fixtures for training tests: tiny models, random clips and small feature caches."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.factories import write_cache
from torch import Tensor

from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods.base import Method, build_method, training_batches
from byov.train.registry import METHODS, config_class, resolve
from byov.train.sampling import BatchSource, Clips

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = {"latent": 8, "depth": 2, "decoder_depth": 2, "heads": 2, "frames": 6, "subset": 4}


def sizes_of(method: str, sizes: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the sizes that are settings of the method and have an effect on its backbone."""
    cls = config_class(method)
    unused = cls.model_construct(**settings).unused
    return {
        name: value
        for name, value in sizes.items()
        if name in cls.settings() and name not in unused
    }


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture(params=METHODS)
def each_method(request: pytest.FixtureRequest) -> str:
    """Run the test once for each method."""
    name: str = request.param
    return name


@pytest.fixture
def make_method() -> Callable[..., Any]:
    """Return a function that builds a tiny model with noise added to all parameters, so that none
    is constant.
    """

    def make(
        name: str = "byov", *, width: int = 12, training: Any = None, **settings: Any
    ) -> Method:
        sizes = sizes_of(name, SIZES, **settings)
        method = build_method(width, resolve(name, "demo", sizes | settings), training)
        noise = seeded()
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
        return method

    return make


@pytest.fixture
def make_clips() -> Callable[..., Clips]:
    """Return a function that makes clips of random features with increasing, unevenly spaced frame
    indices.
    """

    def make(batch: int, frames: int, seed: int = 0, width: int = 12, **fields: Any) -> Clips:
        random = seeded(seed)
        steps = torch.randint(1, 4, (batch, frames), generator=random)
        features = torch.randn(batch, frames, width, generator=random)
        index = fields.get("index", steps.cumsum(1) - 1)
        first = torch.arange(batch)
        length = index[:, -1] + 1
        values = {
            "features": features,
            "index": index,
            "first": first,
            "length": length,
            "video_length": first + length + 2,
            "video": torch.arange(batch),
            "padding": torch.zeros(batch, frames, dtype=torch.bool),
            "first_item": 0,
            "items": batch,
        }
        return Clips(**(values | fields))

    return make


@pytest.fixture(scope="session")
def naive_training() -> ModuleType:
    return import_module("tests.train.naive")


@pytest.fixture(scope="session")
def golden_encoder() -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN / "encoder.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


@pytest.fixture(scope="session")
def golden_state(golden_encoder: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Parameters of the published encoder, under their published names."""
    return {
        name.removeprefix("state/"): torch.from_numpy(values)
        for name, values in golden_encoder.items()
        if name.startswith("state/")
    }


@pytest.fixture
def make_cache(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a cache with `write_cache`, given {(split, view, id): number of
    frames}.
    """

    def make(videos: Mapping[tuple[str, str, str], int], **options: Any) -> Path:
        write_cache(tmp_path / "features", videos, **options)
        return tmp_path / "features"

    return make


@pytest.fixture
def features_dir(make_cache: Callable[..., Path]) -> Path:
    """Cache of a dataset with 3 ego and 2 exo videos for training, 2 and 2 for validation, 1 and 1
    for testing.
    """
    return make_cache(
        {
            ("train", "ego", "a"): 40,
            ("train", "ego", "b"): 25,
            ("train", "ego", "short"): 3,
            ("train", "exo", "c"): 33,
            ("train", "exo", "a"): 50,
            ("val", "ego", "d"): 36,
            ("val", "ego", "e"): 41,
            ("val", "exo", "f"): 30,
            ("val", "exo", "g"): 27,
            ("test", "ego", "h"): 20,
            ("test", "exo", "i"): 21,
        },
        pairs={("ego", "a"): "p", ("exo", "c"): "p", ("ego", "short"): "q", ("exo", "a"): "q"},
    )


@pytest.fixture
def training_data(features_dir: Path) -> TrainingData:
    """Training data in `features_dir` at STM ratio 0.3."""
    return open_training_data(features_dir, None, None, 0.3)


@pytest.fixture
def make_batches(training_data: TrainingData) -> Callable[..., BatchSource]:
    """Return a function that starts the training of a method and returns its batches from
    `training_data`.
    """

    def make(method: Method, *, preload: bool = True) -> BatchSource:
        videos = training_data.split("train")
        store = FeatureStore(training_data, videos, 2**30 if preload else 0)
        assert store.preloaded == preload
        return training_batches(method, videos, store, method.config)

    return make
