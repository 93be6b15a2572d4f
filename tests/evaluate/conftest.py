import json
from pathlib import Path

import numpy as np
import pytest

from byov.evaluate.frames import Frames

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def naive(load_benchmark):
    """The tasks in plain loops, which the benchmark times as well."""
    return load_benchmark("naive_evaluator")


@pytest.fixture(params=["three_phases", "missing_phase_time_column"])
def golden(request):
    """Training frames, test frames, and what AE2's evaluator gives for them."""
    with np.load(ROOT / "tests" / "golden" / f"{request.param}.npz", allow_pickle=False) as file:
        sets = [
            Frames(
                file[f"{split}_embeddings"],
                file[f"{split}_labels"],
                file[f"{split}_lengths"],
                file[f"{split}_is_ego"].astype(bool),
                tuple(f"{split}{video}" for video in range(len(file[f"{split}_lengths"]))),
            )
            for split in ("train", "test")
        ]
        return *sets, json.loads(str(file["expected"]))


@pytest.fixture(scope="session")
def join():
    """Frames from lists: the embeddings and labels of each video, and its view."""

    def make(embeddings, labels, is_ego):
        return Frames(
            np.concatenate([np.asarray(video, np.float32) for video in embeddings]),
            None if labels is None else np.concatenate([np.asarray(video, np.int64) for video in labels]),
            np.array([len(video) for video in embeddings]),
            np.array(is_ego, bool),
            tuple(f"video{index}" for index in range(len(embeddings))),
        )

    return make


@pytest.fixture(scope="session")
def make_frames(join):
    """Videos that pass through the phases at their own pace, with a style of their own and noise."""

    def make(seed, *, ego=4, exo=4, dimensions=8, phases=3, noise=0.7):
        world, random = np.random.default_rng(99), np.random.default_rng(seed)
        path = world.standard_normal((phases + 1, dimensions))
        embeddings, labels = [], []
        for _ in range(ego + exo):
            frames = int(random.integers(20, 40))
            progress = np.linspace(0, 1, frames) ** random.uniform(0.6, 1.6)
            at = progress * phases
            labels.append(np.minimum(at.astype(int), phases - 1))
            clean = np.stack([np.interp(at, np.arange(phases + 1), column) for column in path.T], axis=1)
            style = 0.4 * random.standard_normal(dimensions)
            embeddings.append(clean + style + noise * random.standard_normal((frames, dimensions)))
        return join(embeddings, labels, [True] * ego + [False] * exo)

    return make
