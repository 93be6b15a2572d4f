"""Fixtures for small real videos, a run trained on some of them, and commands called in this
process.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import factories
from tests.processes import Ran

import byov
from byov.cache.digests import SEAL_NAME
from byov.cli.align import main as align_main
from byov.cli.embed import main as embed_main
from byov.cli.export import main as export_main

FPS = 10
# Number of frames of each video in the dataset.
FRAMES = {"one": 12, "two": 40, "three": 1, "four": 33}
# Without positional encodings, embeddings depend on the content of a frame even after little
# training.
SETTINGS = {
    "latent": 32,
    "depth": 1,
    "decoder_depth": 1,
    "heads": 4,
    "frames": 8,
    "epochs": 1,
    "position": "none",
}


def write_video(
    path: Path,
    colors: Any,
    *,
    seconds: Any = None,
    width: int = 64,
    height: int = 48,
    pixel_aspect: int = 1,
) -> Path:
    """Write a video with one frame per color (n, 3), at the given times or at FPS frames per
    second.
    """
    images = [np.tile(color, (height, width, 1)) for color in np.asarray(colors, np.uint8)]
    seconds = np.arange(len(images)) / FPS if seconds is None else seconds
    options = {"crf": "1", "x264-params": f"asm=0:sar={pixel_aspect}/1"}
    pts_milliseconds = [round(second * 1000) for second in seconds]
    return factories.write_video(
        path, images, fps=FPS, options=options, pts_milliseconds=pts_milliseconds
    )


def edit_config(run: Path, *, settings: Mapping[str, Any] = {}, **training: Any) -> None:
    """Change options of the method and entries of the training record in a run's config.json, and
    remove its digest.
    """
    config = json.loads((run / "config.json").read_text())
    config.pop(SEAL_NAME, None)
    config["training"] |= training
    config["settings"]["method"] |= settings
    (run / "config.json").write_text(json.dumps(config))


def rainbow(count: int, seed: int = 0) -> np.ndarray:
    """Return distinct colors (count, 3) along a curve in color space, so that neighbors are
    similar.
    """
    t = np.linspace(0, 1, count)
    start = np.random.default_rng(seed).uniform(0, 20)
    return np.stack(
        [30 + start + 190 * t, 215 - 150 * t**2, 40 + 180 * np.sin(2.2 * t) ** 2], axis=1
    ).round()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with videos/<name>.mp4, features/ and runs/toy, which tests must not change."""
    root = tmp_path_factory.mktemp("trained")
    lines = ["path,view,split"]
    for index, (name, frames) in enumerate(FRAMES.items()):
        write_video(root / "videos" / f"{name}.mp4", rainbow(frames, index))
        lines.append(f"{name}.mp4,{('ego', 'exo')[index % 2]},train")
    table = root / "videos" / "mine.csv"
    table.write_text("\n".join(lines) + "\n")
    done = byov.extract_features(
        manifest=table, encoder="random/tiny", features_dir=root / "features"
    )
    assert not done.failures
    byov.train_run("toy", features_dir=root / "features", runs_dir=root / "runs", **SETTINGS)
    return root


@pytest.fixture
def videos(trained: Path) -> Path:
    return trained / "videos"


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Writable copy of the runs folder."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def command(main: Callable[[], None], name: str) -> Any:
    """Return a fixture whose value is a function that calls a command with the runs folder of
    `trained`.
    """

    @pytest.fixture
    def run(
        trained: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Ran]
    ) -> Callable[..., Ran]:
        monkeypatch.setenv("BYOV_RUNS", str(trained / "runs"))
        return lambda *arguments: call(main, name, *arguments)

    return run


byov_align = command(align_main, "byov-align")
byov_embed = command(embed_main, "byov-embed")
byov_export = command(export_main, "byov-export")


@pytest.fixture(autouse=True)
def no_temporary_files(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.rglob("*.partial"))
