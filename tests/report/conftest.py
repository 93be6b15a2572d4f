"""Fixtures for a browser, made-up reports, and a small project with videos, features and a trained
run.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import write_video
from tests.processes import skip_or_fail
from tests.report.browser import Browser, Tab, find_chromium
from tests.report.made_up import make_content

from byov.cache.digests import seal_json
from byov.cache.embeddings import training_digests
from byov.cache.features import video_digests
from byov.cache.manifest import Manifest, load_manifest
from byov.cache.runs import read_config, read_run
from byov.cli.extract import main as extract_main
from byov.cli.report import main as report_main
from byov.cli.train import main as train_main
from byov.report.collect import collect
from byov.report.content import Content
from byov.report.examples import SplitEmbeddings, read_split
from byov.report.page.render import render_page

DATASET = "tea"
RUN = "first"
ODD_NAME = "cup & 'saucer' [1]"
# (id, view, split, number of frames) of each video
VIDEOS = (
    ("train_ego_0", "ego", "train", 20),
    ("train_ego_1", "ego", "train", 23),
    ("train_exo_0", "exo", "train", 21),
    ("train_exo_1", "exo", "train", 19),
    ("val_ego", "ego", "val", 20),
    ("val_exo", "exo", "val", 18),
    ("test_exo_0", "exo", "test", 31),
    (ODD_NAME, "ego", "test", 24),
    ("test_ego_1", "ego", "test", 29),
    ("test_exo_1", "exo", "test", 22),
    ("test_exo_2", "exo", "test", 27),
    ("still", "ego", "test", 1),
)
TINY = (
    "--latent=32",
    "--depth=1",
    "--decoder-depth=1",
    "--heads=4",
    "--frames=8",
    "--lr=1e-3",
    "--epochs=3",
    "--validate-every=1",
    "--device=cpu",
)


class Project:
    """Folder with videos/, features/ and runs/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.features_dir = root / "features"
        self.runs_dir = root / "runs"
        self.run = self.runs_dir / RUN
        self.manifest_path = self.features_dir / DATASET / "manifest.json"

    def video(self, video_id: str) -> Path:
        return self.root / "videos" / f"{video_id}.mp4"

    def features(self, view: str, video_id: str) -> Path:
        return self.features_dir / DATASET / "random--tiny" / view / f"{video_id}.h5"

    def manifest(self) -> Manifest:
        return load_manifest(self.manifest_path)

    def keep_videos(self, *ids: str) -> "Project":
        """Keep only some videos in the manifest, and change the run as if it had been trained on
        them.
        """
        manifest = self.manifest()
        videos = tuple(video for video in manifest.videos if video.id in ids)
        Manifest(manifest.dataset, manifest.phases, manifest.actions, videos).save(
            self.manifest_path
        )
        folder = self.features_dir / DATASET / "random--tiny"
        config = read_config(self.run)
        config["training"] |= training_digests(
            (video, *video_digests(folder, video, "merged/0.3")) for video in videos
        )
        (self.run / "config.json").write_bytes(seal_json(config))
        return self

    def read_split(self) -> SplitEmbeddings:
        return read_split(self.runs_dir, self.features_dir, RUN)

    def collect(self, **options: Any) -> Content:
        return collect(self.runs_dir, self.features_dir, read_run(self.runs_dir, RUN), **options)


def gray_of(frame: int) -> int:
    """Return the brightness of the left half of a frame."""
    return 20 + 6 * frame


def hue_of(seed: int) -> np.ndarray:
    """Return the color of the right half of a video's frames."""
    return np.random.default_rng(seed).integers(40, 200, 3)


def make_frames(count: int, seed: int = 0, width: int = 96, height: int = 64) -> list[np.ndarray]:
    """Make frames with a gray level per frame (left) and the video's color with a falling square
    (right).
    """
    images = []
    for frame in range(count):
        image = np.empty((height, width, 3), np.uint8)
        image[:, : width // 2] = gray_of(frame)
        image[:, width // 2 :] = hue_of(seed)
        top = frame * height // 40
        image[top : top + height // 5, 3 * width // 4 : 3 * width // 4 + width // 8] = 255
        images.append(image)
    return images


@pytest.fixture(scope="session")
def shared_project(tmp_path_factory: pytest.TempPathFactory, call: Callable[..., Any]) -> Project:
    """Project that tests must not change; see `project`."""
    project = Project(tmp_path_factory.mktemp("project"))
    lines = ["path,view,split,id,events"]
    for seed, (video_id, view, split, frames) in enumerate(VIDEOS):
        write_video(
            project.video(video_id),
            make_frames(frames, seed),
            options={"crf": "8", "preset": "ultrafast"},
        )
        events = f"{frames / 30:.3f};{frames / 15:.3f}" if frames > 1 else "0;0"
        lines.append(f"{video_id}.mp4,{view},{split},{video_id},{events}")
    table = project.root / "videos" / f"{DATASET}.csv"
    table.write_text("\n".join(lines) + "\n")
    where = ("--features-dir", project.features_dir)
    encoder = ("--encoder", "random/tiny", "--device", "cpu")
    extracted = call(extract_main, "byov-extract", "--manifest", table, *encoder, *where)
    assert extracted.code == 0, extracted.err
    runs = ("--runs-dir", project.runs_dir)
    trained = call(train_main, "byov-train", "--run", RUN, *TINY, *where, *runs)
    assert trained.code == 0, trained.err
    return project


@pytest.fixture
def project(shared_project: Project, tmp_path: Path) -> Project:
    """Copy of the shared project that a test may change."""
    return Project(Path(shutil.copytree(shared_project.root, tmp_path / "copy")))


@pytest.fixture(scope="session")
def collected(shared_project: Project) -> Content:
    """Contents of the report on the project's test split."""
    return shared_project.collect()


@pytest.fixture
def byov_report(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Callable[..., Any]:
    """Run byov-report in the folder of a project."""

    def run(project: Project, *arguments: object) -> Any:
        monkeypatch.chdir(project.root)
        return call(report_main, "byov-report", *arguments)

    return run


@pytest.fixture(scope="session")
def content() -> Content:
    return make_content()


@pytest.fixture(scope="session")
def page(content: Content) -> str:
    return render_page(content)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        skip_or_fail("needs chromium or google-chrome (or its path in BYOV_CHROMIUM)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Browser(program, Path(folder))
        yield started
        started.close()


@pytest.fixture
def open_file(browser: Browser) -> Iterator[Callable[[Path], Tab]]:
    """Open a page from disk in a new tab."""
    tabs: list[Tab] = []

    def opened(path: Path) -> Tab:
        tabs.append(Tab(browser, path))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()


@pytest.fixture
def open_page(open_file: Callable[[Path], Tab], tmp_path: Path) -> Callable[[Content], Tab]:
    """Render a made-up report and open it in a new tab."""

    def opened(content: Content) -> Tab:
        path = tmp_path / "report.html"
        path.write_text(render_page(content), encoding="utf-8")
        return open_file(path)

    return opened


@pytest.fixture(scope="session")
def shared_tab(browser: Browser, page: str, tmp_path_factory: pytest.TempPathFactory) -> Tab:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return Tab(browser, path)


@pytest.fixture
def tab(browser: Browser, shared_tab: Tab) -> Tab:
    """Freshly loaded tab with the report of `content`."""
    browser.events.clear()
    shared_tab.emulate()
    shared_tab.reload()
    return shared_tab
