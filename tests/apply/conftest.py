"""Small real videos, a real run trained on some of them, and byov-embed and byov-align run in this process."""

import shutil
import wave
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from byov.cli.align import main as align_main
from byov.cli.embed import main as embed_main
from byov.cli.extract import main as extract_main
from byov.cli.train import main as train_main

FPS = 10
FRAMES = {"one": 12, "two": 40, "three": 1, "four": 33}  # of the dataset's videos
# Without positions, what a frame shows decides its embedding, even in a model that has hardly learned.
TRAINING = (
    *("--latent", "32", "--depth", "1", "--decoder-depth", "1", "--heads", "4", "--frames", "8"),
    *("--epochs", "1", "--position", "none", "--ratio", "0.3"),
)


def write_video(
    path: Path, colors: Any, *, seconds: Any = None, width: int = 64, height: int = 48, pixel_aspect: int = 1
) -> Path:
    """A frame of each color (n, 3), at these times or FPS a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tick = Fraction(1, 1000)
    seconds = np.arange(len(colors)) / FPS if seconds is None else seconds
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = tick
        stream.codec_context.sample_aspect_ratio = Fraction(pixel_aspect)
        for color, second in zip(np.asarray(colors, np.uint8), seconds, strict=True):
            frame = av.VideoFrame.from_ndarray(np.tile(color, (height, width, 1)), format="rgb24")
            frame.pts, frame.time_base = round(second / tick), tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def rainbow(count: int, seed: int = 0) -> np.ndarray:
    """(count, 3) colors along a bent way through color space: neighbors are alike, all differ."""
    share, start = np.linspace(0, 1, count), np.random.default_rng(seed).uniform(0, 20)
    red, green, blue = 30 + start + 190 * share, 215 - 150 * share**2, 40 + 180 * np.sin(2.2 * share) ** 2
    return np.stack([red, green, blue], axis=1).round()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, call: Callable[..., Any]) -> Path:
    """A folder with videos/<name>.mp4, features/, and runs/toy with its embeddings; only to look at."""
    root = tmp_path_factory.mktemp("trained")
    lines = ["path,view,split"]
    for index, (name, frames) in enumerate(FRAMES.items()):
        write_video(root / "videos" / f"{name}.mp4", rainbow(frames, index))
        lines.append(f"{name}.mp4,{('ego', 'exo')[index % 2]},train")
    table = root / "videos" / "mine.csv"
    table.write_text("\n".join(lines) + "\n")
    features = ("--features-dir", root / "features")
    extracted = call(extract_main, "byov-extract", "--manifest", table, "--encoder", "random/tiny", *features)
    assert extracted.code == 0, extracted
    ran = call(train_main, "byov-train", "--run", "toy", *TRAINING, *features, "--runs-dir", root / "runs")
    assert ran.code == 0, ran
    return root


@pytest.fixture
def videos(trained: Path) -> Path:
    """The folder of the run's own videos."""
    return trained / "videos"


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of the runs, the test's own to damage."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def byov_embed(trained: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Callable[..., Any]:
    """byov_embed(*arguments): the command, with the run at hand."""
    monkeypatch.setenv("BYOV_RUNS", str(trained / "runs"))
    return lambda *arguments: call(embed_main, "byov-embed", *arguments)


@pytest.fixture
def byov_align(trained: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Callable[..., Any]:
    """byov_align(*arguments): the command, with the run at hand."""
    monkeypatch.setenv("BYOV_RUNS", str(trained / "runs"))
    return lambda *arguments: call(align_main, "byov-align", *arguments)


@pytest.fixture
def one_line() -> Callable[[Any], str]:
    """one_line(ran): the one line of a command that was turned down."""

    def read(ran: Any) -> str:
        assert (ran.code, ran.out) == (2, ""), ran
        lines = [line for line in ran.err.splitlines() if not line.startswith(("run: ", "loading the encoder "))]
        assert len(lines) == 1, ran
        assert lines[0].startswith("error: "), ran
        return lines[0].removeprefix("error: ")

    return read


@pytest.fixture
def make_video() -> Callable[..., Path]:
    return write_video


@pytest.fixture
def sound() -> Callable[[Path], None]:
    """sound(path): a file with sound and no picture."""

    def write(path: Path) -> None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(1600))

    return write


@pytest.fixture
def colors() -> Callable[..., np.ndarray]:
    return rainbow


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No temporary file stays anywhere."""
    yield
    assert not list(tmp_path.rglob("*.partial"))
