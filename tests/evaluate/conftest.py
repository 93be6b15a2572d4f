"""Fixtures for synthetic frames, a small cached dataset with runs, and byov-eval."""

import shutil
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests import factories

from byov.cache.layout import trimmed_clips
from byov.cli import evaluate as cli
from byov.evaluate.embedding_files import read_npz
from byov.evaluate.frames import Frames

GOLDEN = Path(__file__).parents[1] / "golden"
RANDOM_ENCODER = "random/tiny"
CLIP_FOLDER = "openai--clip-vit-base-patch16"


@pytest.fixture(scope="session")
def naive():
    """Module with the metrics written as plain loops."""
    return import_module("tests.evaluate.naive")


@pytest.fixture(params=["three_phases", "missing_phase_time_column"])
def golden(request):
    """Training frames, test frames, and the scores from AE2's evaluator."""
    path = GOLDEN / f"{request.param}.npz"
    reader = read_npz(path)
    with np.load(path) as file:
        return reader.frames("train"), reader.frames("test"), str(file["expected"])


@pytest.fixture(scope="session")
def join():
    """Build `Frames` from lists with the embeddings, labels and view of each video."""

    def make(embeddings, labels, is_ego, **more):
        return Frames(
            np.concatenate([np.asarray(video, np.float32) for video in embeddings]),
            None
            if labels is None
            else np.concatenate([np.asarray(video, np.int64) for video in labels]),
            np.array([len(video) for video in embeddings]),
            np.array(is_ego, bool),
            **more,
        )

    return make


@pytest.fixture(scope="session")
def make_frames(join):
    """Make videos that go through the phases at different speeds, each with its own offset and
    noise.
    """

    def make(seed, *, ego=4, exo=4, dimensions=8, phases=3, noise=0.7):
        world = np.random.default_rng(99)
        random = np.random.default_rng(seed)
        path = world.standard_normal((phases + 1, dimensions))
        embeddings = []
        labels = []
        for _ in range(ego + exo):
            frames = int(random.integers(20, 40))
            at = phases * np.linspace(0, 1, frames) ** random.uniform(0.6, 1.6)
            labels.append(np.minimum(at.astype(int), phases - 1))
            clean = np.stack(
                [np.interp(at, np.arange(phases + 1), column) for column in path.T], axis=1
            )
            style = 0.4 * random.standard_normal(dimensions)
            embeddings.append(clean + style + noise * random.standard_normal((frames, dimensions)))
        return join(embeddings, labels, [True] * ego + [False] * exo)

    return make


@pytest.fixture
def train(make_frames):
    return make_frames(1)


@pytest.fixture
def test(make_frames):
    return make_frames(2)


@pytest.fixture
def runs_dir(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def features_dir(tmp_path):
    return tmp_path / "features"


@pytest.fixture(scope="session")
def tea(tmp_path_factory):
    """Features (CLIP and random) and manifest of the tea dataset, with 3 train, 2 val and 3 test
    videos per view.
    """
    videos = {
        (split, view, f"{split}_{view}_{index}"): 40 + 7 * index + (view == "exo")
        for split, count in {"train": 3, "val": 2, "test": 3}.items()
        for view in ("ego", "exo")
        for index in range(count)
    }
    folder = tmp_path_factory.mktemp("tea")
    factories.write_cache(folder, videos, dataset="tea", encoder=RANDOM_ENCODER)
    return folder, factories.write_cache(folder, videos, dataset="tea", has_cls=True)


@pytest.fixture(scope="session")
def make_run(tmp_path_factory, tea):
    """Write each run once per session and copy it later, because atomic writes are slower than
    copies.
    """

    @cache
    def make(name, trimmed, recipe, title, **options):
        clips = {
            video.id: trimmed_clips("tea", video.view, video.id, video.frames)
            for video in tea[1].videos
            if trimmed and video.split != "train"
        }
        training = {"recipe": recipe} | ({"title": title} if title else {})
        folder = tmp_path_factory.mktemp("runs")
        return factories.write_run(folder, *tea, name, clips=clips, training=training, **options)

    return make


@pytest.fixture
def manifest(features_dir, tea):
    """Copy the features of tea and return its manifest."""
    shutil.copytree(tea[0], features_dir)
    return tea[1]


@pytest.fixture
def write_run(runs_dir, manifest, make_run):  # noqa: ARG001
    """Copy a run on tea, with embeddings of its videos and sub-clips."""

    def write(name="first", *, trimmed=True, recipe="paper", title="", **options):
        return shutil.copytree(make_run(name, trimmed, recipe, title, **options), runs_dir / name)

    return write


@pytest.fixture
def byov_eval(tmp_path, monkeypatch, call):
    """Run byov-eval in the folder with runs/ and features/; return (exit code, stdout, stderr)."""
    for variable in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        ran = call(cli.main, "byov-eval", *arguments)
        return ran.code, ran.out, ran.err

    return run
