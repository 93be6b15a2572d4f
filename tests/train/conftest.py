"""Tiny models, clips of random frames, and small caches of features."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.factories import write_features
from torch import Tensor

from byov.cache.manifest import Manifest, VideoEntry
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods import METHODS
from byov.train.methods.base import Method
from byov.train.sampling import BatchSource, Clips
from byov.train.settings import resolve_settings

ROOT = Path(__file__).parents[2]
WIDTH, RATIOS = 16, (0.3, 1.0)
ENCODER = "openai--clip-vit-base-patch16"
SIZES = {"latent": 8, "depth": 2, "decoder_depth": 2, "heads": 2, "frames": 6, "subset": 4}
ENCODER_SIZES = ("depth", "heads")  # which not every method has a use for


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture(params=METHODS)
def each_method(request: pytest.FixtureRequest) -> str:
    """The name of a method; a test that asks for it runs once for each of them."""
    name: str = request.param
    return name


def tiny_settings(method: str, **settings: Any) -> dict[str, Any]:
    """The sizes of a tiny model, as far as the method has them, and what is given."""
    kind = METHODS[method].settings_class
    has_encoder = kind.model_construct(**settings).has_encoder
    return settings | {
        name: value
        for name, value in SIZES.items()
        if name in kind.model_fields and name not in settings and (has_encoder or name not in ENCODER_SIZES)
    }


@pytest.fixture
def make_method() -> Callable[..., Any]:
    """make_method(name, width=12, **settings): a tiny model; not every parameter is at its initial zero or one.

    unchecked=True: also with settings that a training refuses, because there is nothing to learn.
    """

    def make(
        name: str = "byov",
        *,
        width: int = 12,
        training: Any = None,
        unchecked: bool = False,
        **settings: Any,
    ) -> Method:
        values = tiny_settings(name, **settings)
        chosen = (
            METHODS[name].settings_class.model_construct(**values)
            if unchecked
            else resolve_settings(name, "demo", values)
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            method = METHODS[name](width, chosen, training)
            with torch.no_grad():
                for parameter in method.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return method

    return make


@pytest.fixture
def make_clips() -> Callable[..., Clips]:
    """make_clips(batch, frames, seed, **fields): random frames with rising frame numbers, a few of them far apart."""

    def make(batch: int, frames: int, seed: int = 0, width: int = 12, **fields: Any) -> Clips:
        random = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (batch, frames), generator=random)
        features = torch.randn(batch, frames, width, generator=random)
        index = fields.get("index", steps.cumsum(1) - 1)
        first, length = torch.arange(batch), index[:, -1] + 1
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
def naive_training(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("naive_training")


@pytest.fixture(scope="session")
def golden_encoder() -> dict[str, NDArray[Any]]:
    with np.load(ROOT / "tests" / "golden" / "encoder.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


@pytest.fixture(scope="session")
def golden_state(golden_encoder: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """The published encoder's parameters under their published names."""
    return {
        name.removeprefix("state/"): torch.from_numpy(values)
        for name, values in golden_encoder.items()
        if name.startswith("state/")
    }


@pytest.fixture
def make_cache(tmp_path: Path) -> Callable[..., Path]:
    """make_cache({(split, view, id): frames}): a cache with features of every video, and phases unless phases=()."""

    def make(
        videos: Mapping[tuple[str, str, str], int],
        *,
        dataset: str = "demo",
        encoder: str = ENCODER,
        width: int = WIDTH,
        ratios: Sequence[float] = RATIOS,
        phases: Sequence[str] = ("reach", "pour", "put"),
        pairs: Mapping[tuple[str, str], str] | None = None,
    ) -> Path:
        folder = tmp_path / "features" / dataset
        entries = []
        for number, ((split, view, video), frames) in enumerate(videos.items()):
            random = np.random.default_rng(number)
            merged = {ratio: random.normal(size=(frames, width)).astype(np.float16) for ratio in ratios}
            write_features(folder / encoder / view / f"{video}.h5", merged)
            labels = tuple(frame * len(phases) // frames for frame in range(frames)) if phases else None
            entries.append(VideoEntry(video, view, split, frames, 30.0, labels, None, (pairs or {}).get((view, video))))
        Manifest(dataset, tuple(phases), (), tuple(entries)).save(folder / "manifest.json")
        return tmp_path / "features"

    return make


@pytest.fixture
def features_dir(make_cache: Callable[..., Path]) -> Path:
    """Dataset demo: three ego and two exo training videos, two and two for validation, one and one for test."""
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
    """What byov-train --ratio 0.3 reads of `features_dir`."""
    return open_training_data(features_dir, None, None, 0.3)


@pytest.fixture
def make_batches(training_data: TrainingData) -> Callable[..., BatchSource]:
    """make_batches(method, preload=True): the batches that a method of the width of `training_data` trains on."""

    def make(method: Method, *, preload: bool = True) -> BatchSource:
        videos = training_data.of("train")
        store = FeatureStore(training_data, videos, 2**30 if preload else 0)
        assert store.preloaded == preload
        method.reset_training_state(len(videos))
        seed, batch_size = method.settings.seed, method.settings.batch_size
        return BatchSource(method.sampler(videos), store, seed=seed, batch_size=batch_size, prepare=method.prepare)

    return make
