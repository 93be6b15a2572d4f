"""What is installed is what is in the folders."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("apply", "cache", "cli", "cluster", "data", "evaluate", "extract", "report", "train")
NAMES = ("align", "cache", "embed", "eval", "extract", "report", "runs", "sweep", "train")
COMMANDS = [f"byov-{name}" for name in NAMES]


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_no_stray_package(tmp_path):
    project = tmp_path / "project"  # a copy: what an earlier build has left behind would be packed too
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
        if path.suffix in (".py", ".css", ".js", ".toml")
    } | {str(path.relative_to(ROOT)) for path in (ROOT / "byov").iterdir() if path.suffix in (".py", ".typed")}
    assert names == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_answer_help_and_version(command):
    path = Path(sys.executable).parent / command
    for option, said in (("--help", "Usage"), ("--version", "byov ")):
        ran = subprocess.run([str(path), option], check=True, capture_output=True, text=True)
        assert said in ran.stdout


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("byov", ("torch", "h5py", "numpy", "pydantic", "av", "transformers")),
        ("byov.apply.run", ("torch", "transformers", "sklearn", "scipy")),
        ("byov.extract.extract_features", ("torch", "transformers")),
        ("byov.train.run", ("typer", "rich", "sklearn", "scipy", "av", "transformers")),
        ("byov.cli.extract", ("torch", "transformers")),
        ("byov.cli.train", ("torch",)),
        ("byov.cli.evaluate", ("torch", "sklearn", "scipy")),
        ("byov.cli.align", ("torch", "transformers", "scipy", "matplotlib", "PIL")),
        ("byov.cli.embed", ("torch", "transformers")),
        ("byov.cli.runs", ("torch", "transformers", "sklearn", "scipy", "matplotlib", "PIL")),
        ("byov.cli.sweep", ("torch", "transformers", "sklearn", "scipy", "matplotlib", "PIL", "av")),
        ("byov.cluster.workers", ("torch", "numpy", "h5py")),
        ("byov.cli.report", ("torch", "sklearn", "scipy", "matplotlib", "PIL")),
    ],
)
def test_what_takes_seconds_to_import_waits_until_it_is_needed(module, unwanted):
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in {unwanted}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_container_installs_the_pinned_versions_of_what_is_in_it():
    lines = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    installs = re.findall(r"pip install .*", lines)
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in install for install in installs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (extras,) = re.findall(r"\.\[([\w,]+)\]", lines)
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()
    ignored = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert not ignored & {*project["tool"]["setuptools"]["package-dir"].values(), "README.md", "LICENSE"}
    made = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line != "__pycache__/"}
    assert made <= ignored
