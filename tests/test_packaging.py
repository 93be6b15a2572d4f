"""Tests that the installed package and its commands match the repository."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("apply", "cache", "cli", "data", "evaluate", "extract", "report", "sweeps", "train")
NAMES = (
    *("align", "annotate", "cache", "embed", "eval", "export", "extract", "report", "runs"),
    *("sweep", "train"),
)
PACKAGED = (".py", ".css", ".js", ".j2", ".toml", ".mp4", ".csv")


@pytest.mark.slow
def test_wheel_contains_every_module(tmp_path):
    project = tmp_path / "project"  # a copy without the files of earlier builds
    shutil.copytree(
        ROOT, project, ignore=shutil.ignore_patterns(".*", "build", "runs", "features", "datasets")
    )
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(project),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"byov/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in PACKAGED
    } | {
        str(path.relative_to(ROOT))
        for path in (ROOT / "byov").iterdir()
        if path.suffix in (".py", ".typed")
    }
    assert names == expected


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_their_version(name, call):
    (command,) = entry_points(group="console_scripts", name=f"byov-{name}")
    assert (
        call(command.load(), command.name, "--version").out
        == f"byov {PROJECT['project']['version']}\n"
    )
    assert set(PROJECT["project"]["scripts"]) == {f"byov-{each}" for each in NAMES}


HEAVY = {"torch", "transformers", "sklearn", "scipy", "matplotlib", "PIL"}


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("byov", HEAVY | {"h5py", "numpy", "pydantic", "av", "importlib.metadata"}),
        ("byov.cli.train, byov.train.runs", HEAVY - {"torch"} | {"av"}),
        ("byov.train.runs", {"typer", "rich"}),
        ("byov.apply.run, byov.cli.sweep", HEAVY - {"torch"}),
        (
            "byov.cli.align, byov.cli.cache, byov.cli.embed, byov.cli.evaluate, byov.cli.extract, "
            "byov.cli.report, byov.cli.runs, byov.cli.annotate",
            HEAVY,
        ),
    ],
)
def test_slow_imports_are_deferred(modules, unwanted, run_python):
    code = (
        f"import sys, {modules}; print(*(name for name in {sorted(unwanted)} if name in "
        "sys.modules))"
    )
    done = run_python(code, PYTHONWARNINGS="default")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
