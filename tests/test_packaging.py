"""The installed package, its commands and its container match the repository."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("apply", "cache", "cli", "cluster", "data", "evaluate", "extract", "report", "train")
NAMES = ("align", "cache", "embed", "eval", "extract", "report", "runs", "sweep", "train")
PACKAGED = (".py", ".css", ".js", ".j2", ".toml", ".mp4", ".csv")


@pytest.mark.slow
def test_wheel_contains_every_module(tmp_path):
    project = tmp_path / "project"  # without the files of earlier builds
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "build", "runs", "features", "datasets"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(project)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"byov/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in PACKAGED
    } | {str(path.relative_to(ROOT)) for path in (ROOT / "byov").iterdir() if path.suffix in (".py", ".typed")}
    assert names == expected


def test_every_command_is_installed():
    assert set(PROJECT["project"]["scripts"]) == {f"byov-{name}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_commands_answer_help_and_version(name):
    path = Path(sys.executable).parent / f"byov-{name}"
    for option, text in (("--help", "Usage"), ("--version", "byov ")):
        done = subprocess.run([str(path), option], check=True, capture_output=True, text=True)
        assert text in done.stdout


HEAVY = {"torch", "transformers", "sklearn", "scipy", "matplotlib", "PIL"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("byov", HEAVY | {"h5py", "numpy", "pydantic", "av"}),
        ("byov.apply.run", HEAVY - {"torch"}),
        ("byov.extract.extract_features", HEAVY),
        ("byov.train.run", HEAVY - {"torch"} | {"typer", "rich", "av"}),
        ("byov.cli.align", HEAVY),
        ("byov.cli.cache", HEAVY),
        ("byov.cli.embed", HEAVY),
        ("byov.cli.evaluate", HEAVY),
        ("byov.cli.extract", HEAVY),
        ("byov.cli.report", HEAVY),
        ("byov.cli.runs", HEAVY),
        ("byov.cli.sweep", HEAVY - {"torch"}),
        ("byov.cli.train", HEAVY - {"torch"} | {"av"}),
    ],
)
def test_slow_imports_are_deferred(module, unwanted):
    code = f"import sys, {module}; print(*(name for name in {sorted(unwanted)} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_version_is_looked_up_on_first_use(run_python):
    script = "import sys, byov; print('importlib.metadata' in sys.modules, byov.__version__)"
    assert run_python(script).stdout == f"False {PROJECT['project']['version']}\n"


def test_container_installs_pinned_versions():
    lines = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    installs = re.findall(r"pip install .*", lines)
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in install for install in installs)
    (extras,) = re.findall(r"\.\[([\w,]+)\]", lines)
    assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
    ignored = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert not ignored & {*PROJECT["tool"]["setuptools"]["package-dir"].values(), "README.md", "LICENSE"}
    generated = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line != "__pycache__/"}
    assert generated <= ignored
