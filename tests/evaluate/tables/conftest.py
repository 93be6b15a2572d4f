"""A small cache of an action in three phases, runs of it, and byov-eval."""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import write_features

from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.runs import embedding_path, embeddings_folder
from byov.cli import evaluate as cli
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import trimmed_clips

DATASET, COLUMN = "tea", "merged/0.3"
PHASES = ("reach", "pour", "put back")
CLIP, RANDOM = "openai/clip-vit-base-patch16", "random/tiny"
RATIOS, WIDTH = (0.3, 1.0), 8
COUNTS = {"train": 3, "val": 2, "test": 3}  # videos of each view
UNTRAINED = sha256(b"untrained").hexdigest()


def _labels(frames: int) -> np.ndarray:
    return np.minimum(3 * np.arange(frames) // frames, 2)


def _embedding(seed: int, labels: np.ndarray) -> np.ndarray:
    """(T, WIDTH) of frames that tell their phase, through noise."""
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(3, WIDTH))
    return (centers[labels] + 0.7 * random.normal(size=(len(labels), WIDTH))).astype(np.float32)


def _videos() -> Iterator[VideoEntry]:
    for number, (split, count) in enumerate(COUNTS.items()):
        for view in ("ego", "exo"):
            for index in range(count):
                frames = 40 + 7 * index + 3 * number + (view == "exo")
                labels = tuple(_labels(frames).tolist())
                yield VideoEntry(f"{split}_{view}_{index}", view, split, frames, 30.0, labels, None)


def _write_features(path: Path, encoder: str, video: VideoEntry, seed: int, *, has_cls: bool) -> None:
    frames = video.frames or 0
    values = _embedding(seed, np.array(video.labels)) if encoder == CLIP else np.zeros((frames, WIDTH), np.float32)
    values = values + np.random.default_rng(seed).normal(size=values.shape) / 10
    merged = {ratio: (values + ratio).astype(np.float16) for ratio in RATIOS}
    cls = values.astype(np.float16) if has_cls else None
    write_features(path, merged, cls=cls, encoder=encoder, preprocessing="squash")


@pytest.fixture
def manifest() -> Manifest:
    """Dataset tea: three train, two val and three test videos of each view, in three phases."""
    return Manifest(DATASET, PHASES, (), tuple(_videos()))


@pytest.fixture
def features_dir(tmp_path: Path, manifest: Manifest) -> Path:
    """CLIP features with a class token that tell the phase, and random ones without."""
    root = tmp_path / "features"
    manifest.save(root / DATASET / "manifest.json")
    for encoder, has_cls in ((CLIP, True), (RANDOM, False)):
        for seed, video in enumerate(manifest.videos):
            path = root / DATASET / encoder.replace("/", "--") / video.view / f"{video.id}.h5"
            _write_features(path, encoder, video, seed, has_cls=has_cls)
    return root


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def write_run(runs_dir: Path, manifest: Manifest) -> Callable[..., Path]:
    """Make a run, with its embeddings or without; `said` changes what their files say of themselves."""

    def write(
        name: str = "first",
        *,
        seed: int = 0,
        dataset: str = DATASET,
        recipe: str = "paper",
        title: str = "",
        embedded: bool = True,
        trimmed: bool = True,
        **said: Any,
    ) -> Path:
        folder, model = runs_dir / name, f"model {name}".encode()
        training = {
            "dataset": dataset,
            "encoder": CLIP,
            "encoder_folder": CLIP.replace("/", "--"),
            "column": COLUMN,
            "recipe": recipe,
            **({"title": title} if title else {}),
            "seed": seed,
            "untrained_sha256": UNTRAINED,
        }
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"training": training}))
        (folder / "model.safetensors").write_bytes(model)
        for untrained in (False, True) if embedded else ():
            digest = UNTRAINED if untrained else sha256(model).hexdigest()
            for number, video in enumerate(manifest.videos):
                embedding = _embedding(100 * seed + number, np.array(video.labels) * (not untrained))
                for clip in _clips(video, trimmed=trimmed):
                    into = embeddings_folder(folder, untrained=untrained, trimmed=clip is not None)
                    first, last = clip or (0, len(embedding) - 1)
                    source = _source(
                        **({"run": name, "video": video.id, "model_sha256": digest, "first_frame": first} | said)
                    )
                    rows = embedding[first : last + 1]
                    path = embedding_path(into, video.view, video.id, clip)
                    write_embedding(path, rows, np.arange(len(rows)) / 30, source)
        return folder

    return write


def _clips(video: VideoEntry, *, trimmed: bool) -> list[tuple[int, int] | None]:
    """The whole video, and its sub-clips if it is to be scored."""
    if video.split == "train" or not trimmed:
        return [None]
    return [None, *trimmed_clips(DATASET, video.view, video.id, video.frames or 0)]


def _source(**changes: Any) -> EmbeddingProvenance:
    values: dict[str, Any] = {
        "dataset": DATASET,
        "encoder": CLIP,
        "encoder_revision": "",
        "encoder_sha256": "ab" * 32,
        "preprocessing": "squash",
        "column": COLUMN,
        "column_sha256": "01" * 32,
    }
    return EmbeddingProvenance(**(values | changes))


@pytest.fixture
def make_frames() -> Callable[..., Frames]:
    """(lengths, is_ego) → frames in three phases whose embeddings tell them through noise."""

    def make(lengths: list[int], is_ego: list[bool], seed: int = 0) -> Frames:
        labels = np.concatenate([_labels(length) for length in lengths])
        names = tuple(f"video {index}" for index in range(len(lengths)))
        return Frames(_embedding(seed, labels), labels, np.array(lengths), np.array(is_ego), names)

    return make


@pytest.fixture
def golden() -> Path:
    return Path(__file__).parents[2] / "golden"


@pytest.fixture
def byov_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> Callable[..., tuple[int, str, str]]:
    """Run byov-eval in an empty folder beside runs/ and features/ → (exit code, standard output, standard error)."""
    for variable in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        ran = call(cli.main, "byov-eval", *arguments)
        return ran.code, ran.out, ran.err

    return run
