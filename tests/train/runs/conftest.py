"""Small caches, and byov-train in processes of their own that cost no import of PyTorch each."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import factories
from tests.processes import BEFORE_NAMING, ENVIRONMENT, Ran

from byov.cache.manifest import Manifest, VideoEntry
from byov.train.settings import TrainSettings, resolve_settings, settings_classes

RATIOS = (0.3, 1.0)
WIDTH = 16
PHASES = ("reach", "pour", "leave")
# A model and a run as small as they can be while everything in them still happens.
SIZES = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "clips": 2, "subset": 6}
SHORT = {"lr": 1e-3, "epochs": 3, "validate_every": 1}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# Imports PyTorch once, then forks a child for each command. A child can be told to stop itself (SIGSTOP) right before
# the n-th file gets a name that contains a text: there the test kills it, sends it signals, or lets it go on.
SERVER = (
    BEFORE_NAMING
    + """
import json, os, resource, signal, sys, traceback, warnings
import torch
import byov.train.run
from byov.cli.train import main
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # PyTorch imports most of itself here

def block(package):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())

def work(request):
    for number, path in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), number)
    warnings.simplefilter("error")
    if request["pause_before"]:
        before_naming(*request["pause_before"], lambda: os.kill(os.getpid(), signal.SIGSTOP))
    if request["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    if request["largest_file_kills"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if request["without"]:
        block(request["without"])
    sys.argv = ["byov-train", *request["arguments"]]
    code = 70
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        print(os.waitpid(request["wait"], os.WUNTRACED)[1], flush=True)
    else:
        child = os.fork()
        if not child:
            work(request)
        print(child, flush=True)
"""
)


class Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | ONE_THREAD,
        )

    def ask(self, **request: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Command:
    """A byov-train at work."""

    def __init__(self, server: Server, folder: Path, arguments: Sequence[object], how: dict[str, Any]) -> None:
        self._server, self._files = server, (folder / "out.txt", folder / "err.txt")
        self._over: Ran | None = None
        self.pid = server.ask(
            arguments=[*map(str, arguments)],
            out=str(self._files[0]),
            err=str(self._files[1]),
            **{key: how.pop(key, None) for key in ("pause_before", "largest_file", "largest_file_kills", "without")},
        )
        assert not how

    def paused(self) -> bool:
        """Wait until it stands still where it was told to; False if it ended before."""
        status = self._server.ask(wait=self.pid)
        if os.WIFSTOPPED(status):
            return True
        self._over = self._ran(status)
        return False

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def finish(self) -> Ran:
        """Let it go on, and wait for its end."""
        if self._over is None:
            self.send(signal.SIGCONT)
            self._over = self._ran(self._server.ask(wait=self.pid))
        return self._over

    def kill(self) -> None:
        if self._over is None:
            self.send(signal.SIGKILL)
            self.finish()

    def _ran(self, status: int) -> Ran:
        out, err = (path.read_text() for path in self._files)
        return Ran(os.waitstatus_to_exitcode(status), out, err)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start_train(server: Server, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """start_train(*arguments, pause_before=(text, n), ...): byov-train with its folders below tmp_path, at work."""
    started: list[Command] = []

    def start(*arguments: object, **how: Any) -> Command:
        folder = tmp_path / f"command-{len(started)}"
        folder.mkdir()
        folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
        started.append(Command(server, folder, (*folders, *arguments), how))
        return started[-1]

    yield start
    for command in started:
        command.kill()


@pytest.fixture
def byov_train(start_train: Callable[..., Command]) -> Callable[..., Ran]:
    """byov_train(*arguments): the command from beginning to end."""
    return lambda *arguments, **how: start_train(*arguments, **how).finish()


@pytest.fixture
def refused(byov_train: Callable[..., Ran]) -> Callable[..., str]:
    """refused(*arguments): the one line with which byov-train turns them down."""

    def run(*arguments: object, code: int = 2, **how: Any) -> str:
        ran = byov_train(*arguments, **how)
        lines = ran.err.splitlines()
        assert (ran.code, ran.out) == (code, ""), ran
        assert lines, ran
        assert lines[-1].startswith("error: "), ran
        assert "Traceback" not in ran.err, ran
        return lines[-1].removeprefix("error: ")

    return run


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Options of a run that takes a second: 4 steps per epoch, 3 epochs, each validated and checkpointed."""
    return _tiny("byov")


@pytest.fixture
def tiny_settings(each_method: str) -> TrainSettings:
    """What `tiny_of_each` says, for the library."""
    return resolve_settings(each_method, "toy", _tiny_settings(each_method))


@pytest.fixture
def tiny_of_each(each_method: str) -> tuple[str, ...]:
    """Options of such a run of the method at hand."""
    return _tiny(each_method)


def _tiny_settings(method: str) -> dict[str, Any]:
    kind = settings_classes()[method]
    unused = () if kind.model_construct().has_encoder else ("depth", "heads")
    sizes = SIZES | SHORT | ({"batch_size": 2} if kind.model_construct().batch_size > 2 else {})
    return {name: value for name, value in sizes.items() if name in kind.model_fields and name not in unused}


def _tiny(method: str) -> tuple[str, ...]:
    given = {"method": method} | _tiny_settings(method) | {"checkpoint_every": 1}
    return tuple(text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value)))


def _write_features(path: Path, features: np.ndarray, **provenance: Any) -> None:
    """One video's file; the features are those of the first ratio, the second has their negatives."""
    source = {"encoder": "random/tiny", "encoder_revision": "0", "source_name": "a.mp4", "source_bytes": 1}
    factories.write_features(path, {RATIOS[0]: features, RATIOS[1]: -features}, cls=features, **(source | provenance))


def _write_cache(root: Path, names: Sequence[str], *, encoder: str = "random--tiny", labels: bool = True) -> Path:
    """A dataset of videos named <split>_<view>_<number>, its features drawn from their names."""
    videos = []
    for name in names:
        split, view, number = name.split("_")
        random = np.random.default_rng(list(name.encode()))
        frames = int(random.integers(20, 41))
        phase = np.arange(frames) * len(PHASES) // frames
        features = random.normal(size=(frames, WIDTH)) + 2 * np.eye(WIDTH)[phase]
        _write_features(root / encoder / view / f"{name}.h5", features.astype(np.float16))
        phases = tuple(phase.tolist()) if labels else None
        videos.append(VideoEntry(name, view, split, frames, 30.0, phases, None, f"{split} {number}"))
    Manifest(root.name, PHASES if labels else (), (), tuple(videos)).save(root / "manifest.json")
    return root


def _names(train: Sequence[int], val: Sequence[int], test: Sequence[int]) -> list[str]:
    return [
        f"{split}_{view}_{number}"
        for split, counts in (("train", train), ("val", val), ("test", test))
        for view, count in zip(("ego", "exo"), counts, strict=True)
        for number in range(count)
    ]


@pytest.fixture
def write_cache(tmp_path: Path) -> Callable[..., Path]:
    """write_cache(train=(ego, exo), val=..., test=..., dataset="toy", ...): a dataset in tmp_path/features."""

    def write(
        train: Sequence[int] = (2, 2),
        val: Sequence[int] = (1, 1),
        test: Sequence[int] = (1, 1),
        *,
        dataset: str = "toy",
        **options: Any,
    ) -> Path:
        return _write_cache(tmp_path / "features" / dataset, _names(train, val, test), **options)

    return write


@pytest.fixture
def write_features() -> Callable[..., None]:
    return _write_features


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_cache(tmp_path_factory.mktemp("cache") / "features" / "toy", _names((2, 2), (1, 1), (1, 1)))


@pytest.fixture
def cache(shared_cache: Path, tmp_path: Path) -> Path:
    """tmp_path/features/toy: 4 videos to train on, 2 to validate, 2 to test; the test's own to damage."""
    shutil.copytree(shared_cache.parent, tmp_path / "features")
    return tmp_path / "features" / "toy"


@pytest.fixture(scope="session")
def make_reference(
    server: Server, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """make_reference(method): the folder of its tiny run, called toy, that was never stopped; only to look at."""

    @lru_cache
    def make(method: str) -> Path:
        folder = tmp_path_factory.mktemp("reference")
        folders = ("--features-dir", shared_cache.parent, "--runs-dir", folder / "runs")
        ran = Command(server, folder, (*folders, "--ratio", 0.3, "--run", "toy", *_tiny(method)), {}).finish()
        assert ran.code == 0, ran
        return folder / "runs" / "toy"

    return make


@pytest.fixture(scope="session")
def reference(make_reference: Callable[[str], Path]) -> Path:
    return make_reference("byov")


@pytest.fixture
def reference_of_each(make_reference: Callable[[str], Path], each_method: str) -> Path:
    """The same of the method at hand."""
    return make_reference(each_method)


@pytest.fixture
def finished(reference: Path, cache: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    """A copy of the reference run as tmp_path/runs/toy, beside its cache."""
    shutil.copytree(reference, tmp_path / "runs" / "toy")
    return tmp_path / "runs" / "toy"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Where `byov-train --run toy` puts its run."""
    return tmp_path / "runs" / "toy"


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a run by name, without its lock and its checkpoints."""

    def read(run: Path) -> dict[str, bytes]:
        files = (path for path in sorted(run.rglob("*")) if path.is_file())
        return {
            str(path.relative_to(run)): path.read_bytes()
            for path in files
            if path.name != ".lock" and path.parent.name != "checkpoint"
        }

    return read
