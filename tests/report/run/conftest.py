"""A small real project: videos, their features, a trained run; made once, copied for the tests that change it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import read_run
from byov.cli.extract import main as extract_main
from byov.cli.report import main as report_main
from byov.cli.train import main as train_main
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment
from byov.report.collect import Request, collect
from byov.report.content import Content
from byov.report.material import Material, choose_split, read_material

WIDTH, HEIGHT = 96, 64
DATASET, RUN = "tea", "first"
ODD_NAME = "cup & 'saucer' [1]"
# (id, view, split, frames); the last of test is one frame long
VIDEOS = (
    *(("train_ego_0", "ego", "train", 20), ("train_ego_1", "ego", "train", 23)),
    *(("train_exo_0", "exo", "train", 21), ("train_exo_1", "exo", "train", 19)),
    *(("val_ego", "ego", "val", 20), ("val_exo", "exo", "val", 18)),
    *(("test_exo_0", "exo", "test", 31), (ODD_NAME, "ego", "test", 24), ("test_ego_1", "ego", "test", 29)),
    *(("test_exo_1", "exo", "test", 22), ("test_exo_2", "exo", "test", 27), ("still", "ego", "test", 1)),
)
TINY = (
    *("--latent", "32", "--depth", "1", "--decoder-depth", "1", "--heads", "4", "--frames", "8", "--lr", "1e-3"),
    *("--epochs", "3", "--validate-every", "1", "--device", "cpu"),
)


@dataclass(frozen=True)
class Project:
    """videos/, features/ and runs/ below one folder."""

    root: Path

    @property
    def features_dir(self) -> Path:
        return self.root / "features"

    @property
    def runs_dir(self) -> Path:
        return self.root / "runs"

    @property
    def run(self) -> Path:
        return self.runs_dir / RUN

    @property
    def manifest_path(self) -> Path:
        return self.features_dir / DATASET / "manifest.json"

    def video(self, video_id: str) -> Path:
        return self.root / "videos" / f"{video_id}.mp4"

    def features(self, view: str, video_id: str) -> Path:
        return self.features_dir / DATASET / "random--tiny" / view / f"{video_id}.h5"

    def manifest(self) -> Manifest:
        return load_manifest(self.manifest_path)

    def request(self, **changes: Any) -> Request:
        return Request(self.runs_dir, self.features_dir, read_run(self.runs_dir, RUN), **changes)

    def collect(self, **changes: Any) -> Content:
        return collect(self.request(**changes))

    def material(self, split: str | None = None) -> Material:
        source = RunEmbeddings(self.runs_dir, self.features_dir, RUN)
        return read_material(source, self.runs_dir, self.features_dir, choose_split(source.manifest, split))


def gray_of(frame: int) -> int:
    """How bright the left half of a frame is."""
    return 20 + 6 * frame


def _image(frame: int, seed: int, width: int, height: int) -> np.ndarray:
    """Left half: gray by the frame's number. Right half: a hue of the video's, on which a square moves down."""
    image = np.empty((height, width, 3), np.uint8)
    image[:, : width // 2] = gray_of(frame)
    image[:, width // 2 :] = np.random.default_rng(seed).integers(40, 200, 3)
    top = frame * height // 40
    image[top : top + height // 5, 3 * width // 4 : 3 * width // 4 + width // 8] = 255
    return image


def _write_video(path: Path, frames: int, *, seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "8", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in range(frames):
            image = _image(frame, seed, width, height)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="session")
def whole_project(tmp_path_factory: pytest.TempPathFactory, call: Callable[..., Any]) -> Project:
    """Not to be changed: see `project`."""
    project = Project(tmp_path_factory.mktemp("project"))
    lines = ["path,view,split,id,events"]
    for seed, (video_id, view, split, frames) in enumerate(VIDEOS):
        _write_video(project.video(video_id), frames, seed=seed)
        lines.append(f"{video_id}.mp4,{view},{split},{video_id},{frames / 30:.3f};{frames / 15:.3f}")
    table = project.root / "videos" / f"{DATASET}.csv"
    table.write_text("\n".join(lines) + "\n")
    where = ("--features-dir", project.features_dir)
    ran = call(extract_main, "byov-extract", "--manifest", table, "--encoder", "random/tiny", "--device", "cpu", *where)
    assert ran.code == 0, ran.err
    ran = call(train_main, "byov-train", "--run", RUN, *TINY, *where, "--runs-dir", project.runs_dir)
    assert ran.code == 0, ran.err
    return project


@pytest.fixture
def project(whole_project: Project, tmp_path: Path) -> Project:
    """A copy to change."""
    return Project(Path(shutil.copytree(whole_project.root, tmp_path / "copy")))


@pytest.fixture(scope="session")
def content(whole_project: Project) -> Content:
    """The report of the project, on its test split."""
    return whole_project.collect()


@pytest.fixture(scope="session")
def material(whole_project: Project) -> Material:
    return whole_project.material()


@pytest.fixture
def make_material(whole_project: Project) -> Callable[..., Material]:
    """(frames of each video, whether it is ego) → walks through a space in place of embeddings; no files."""

    def make(lengths: list[int], is_ego: list[bool]) -> Material:
        random = np.random.default_rng(0)
        walks = [np.cumsum(random.normal(size=(length, 8)), axis=0).astype(np.float32) for length in lengths]
        entries = [
            VideoEntry(f"v{index}", "ego" if ego else "exo", "test", length, 10.0, None, None)
            for index, (length, ego) in enumerate(zip(lengths, is_ego, strict=True))
        ]
        segments = tuple(Segment(entry, entry.frames or 0) for entry in entries)
        names = tuple(segment.name for segment in segments)
        frames = Frames(np.concatenate(walks), None, np.array(lengths), np.array(is_ego), names)
        return replace(whole_project.material(), segments=segments, frames=frames)

    return make


@pytest.fixture
def keep_videos() -> Callable[..., None]:
    """Leave only some videos in the manifest; what belongs to the others stays on disk."""

    def keep(project: Project, *ids: str) -> None:
        manifest = project.manifest()
        videos = tuple(video for video in manifest.videos if video.id in ids)
        Manifest(manifest.dataset, manifest.phases, manifest.actions, videos).save(project.manifest_path)

    return keep


@pytest.fixture
def byov_report(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Callable[..., Any]:
    """byov_report(project, *arguments): the command, from a folder that it may not write to by accident."""

    def run(project: Project, *arguments: object) -> Any:
        monkeypatch.chdir(project.root)
        return call(report_main, "byov-report", *arguments)

    return run


@pytest.fixture
def write_video() -> Callable[..., Path]:
    """write_video(path, frames, seed=, width=, height=)"""
    return _write_video


@pytest.fixture
def gray() -> Callable[[int], int]:
    """A frame's number → how bright its left half is."""
    return gray_of
