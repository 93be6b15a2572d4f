"""Videos, and the real command on Ray."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from tests.factories import read_files
from tests.ray_processes import RayProcesses, all_processes, open_files

COMMAND = str(Path(sys.executable).parent / "byov-extract")


def write_video(path: Path, frames: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (32, 48, 3))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=15)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for _ in range(frames):
            image = np.clip(image + random.integers(-40, 41, image.shape), 0, 255)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image.astype(np.uint8), format="rgb24")))
        container.mux(stream.encode(None))


def write_videos(root: Path, frames: Sequence[int]) -> Path:
    """A CSV of videos of so many frames, ego and exo in turn: v0, v1, ..."""
    lines = ["path,view,split"]
    for index, count in enumerate(frames):
        write_video(root / f"v{index}.mp4", count, seed=index)
        lines.append(f"v{index}.mp4,{('ego', 'exo')[index % 2]},train")
    table = root / "mine.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    return read_files


class RayExtractions(RayProcesses):
    def start(self, table: Path, features: Path, *options: object) -> "subprocess.Popen[str]":
        """byov-extract, under way."""
        return subprocess.Popen(
            [COMMAND, "--manifest", table, "--encoder", "random/tiny", "--features-dir", features, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=table.parent,
            env=self.environment,
        )

    def run(self, table: Path, features: Path, *options: object) -> "subprocess.CompletedProcess[str]":
        process = self.start(table, features, *options)
        out, err = process.communicate(timeout=900)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="session")
def wait_for_work() -> Callable[..., int]:
    """wait_for_work(process, features): the worker that has a video under its hands."""

    def wait(process: "subprocess.Popen[str]", features: Path, name: str = "*.h5") -> int:
        while process.poll() is None:
            for partial in features.rglob(f".{name}.*.partial"):
                for pid in all_processes():
                    if str(partial) in open_files(pid):
                        return pid
            time.sleep(0.01)
        raise AssertionError(f"ended without work: {process.communicate()}")

    return wait


@pytest.fixture(scope="module")
def ray() -> Iterator[RayExtractions]:
    processes = RayExtractions()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def make_videos(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda frames: write_videos(tmp_path_factory.mktemp("videos"), frames)
