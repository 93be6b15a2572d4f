"""Test that a complete cache and a finished run work on a read-only disk and without write
permission.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.chaos import files
from tests.factories import read_files

# Run several commands in one process to import PyTorch only once.
COMMANDS = """
import json, sys
from importlib import import_module
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv = [f"byov-{name}", *arguments]
    module = {"eval": "evaluate"}.get(name, name)
    try:
        import_module(f"byov.cli.{module}").main()
    except SystemExit as ended:
        print(f"byov-{name} ended with {ended.code or 0}", flush=True)
"""
Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("read-only")


@pytest.fixture(scope="module")
def run(folder: Path, clean_environment: dict[str, str]) -> Run:
    """Return a function that runs commands in the folder, prefixed by `before`, and returns the
    printed lines.
    """

    def start(*commands: Sequence[object], before: Sequence[str] = ()) -> list[str]:
        typed = json.dumps([[str(word) for word in command] for command in commands])
        ran = subprocess.run(
            [*before, sys.executable, "-c", COMMANDS, typed],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=300,
            env=clean_environment | {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert ran.returncode == 0, ran
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stdout.splitlines()

    return start


EXTRACT = ("extract", "--manifest", "videos.csv", "--encoder", "random/tiny", "--ratios", "0.3")
TRAIN = (
    "train",
    "--latent",
    8,
    "--depth",
    1,
    "--decoder-depth",
    1,
    "--heads",
    2,
    "--frames",
    4,
    "--epochs",
    1,
)
EVALUATE = ("eval", "--run", "first", "--task", "retrieval")


@pytest.fixture(scope="module")
def made(folder: Path, run: Run) -> Path:
    """Folder with complete features/ and runs/first."""
    lines = ["path,view,split,events,phases"]
    for split in ("train", "val", "test"):
        for view in ("ego", "exo"):
            files.write_video(folder / f"{split}_{view}.mp4")
            lines.append(f"{split}_{view}.mp4,{view},{split},0.8,reach;pour")
    (folder / "videos.csv").write_text("\n".join(lines) + "\n")
    done = run(EXTRACT, (*TRAIN, "--run", "first"))
    assert [line for line in done if "ended" in line] == [
        "byov-extract ended with 0",
        "byov-train ended with 0",
    ], done
    return folder


@pytest.fixture(params=["disk", "rights"])
def closed(request: pytest.FixtureRequest, made: Path) -> Iterator[tuple[str, ...]]:
    """Make features/ and runs/first read-only; yield the words to prefix to commands."""
    folders = (made / "features", made / "runs" / "first")
    if request.param == "rights":
        before = request.getfixturevalue("without_rights")
        for folder in folders:
            for path in (folder, *folder.rglob("*")):
                path.chmod(path.stat().st_mode & ~0o222)  # pytest can still remove them
        yield before
        return
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a disk read-only")
    mounted = []
    try:
        for folder in folders:
            if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
                pytest.skip("mounting is not permitted here")
            mounted.append(folder)
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield ()
    finally:
        for folder in mounted:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_complete_folders_are_only_read(made: Path, closed: tuple[str, ...], run: Run) -> None:
    before = [read_files(made / "features"), read_files(made / "runs" / "first")]
    lines = run(
        EXTRACT,
        ("cache", "verify"),
        (*TRAIN, "--run", f"second-{len(closed)}"),
        EVALUATE,
        before=closed,
    )
    ended = [line for line in lines if " ended with " in line]
    assert ended == [
        f"byov-{name} ended with 0" for name in ("extract", "cache", "train", "eval")
    ], lines
    assert any("6 already cached" in line for line in lines), lines
    assert any(line.startswith("first: BYOV") for line in lines), lines
    assert [read_files(made / "features"), read_files(made / "runs" / "first")] == before
