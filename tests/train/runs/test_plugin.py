"""Tests that the method in docs/architecture.md, installed as a package, can be trained, resumed
and evaluated.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
pytestmark = pytest.mark.slow  # each command imports PyTorch


@pytest.fixture
def package(tmp_path):
    """Installed package with the code in docs/architecture.md."""
    text = PAGE.read_text().partition("## Add a method")[2]
    code, project = (
        re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "toml")
    )
    project = tomllib.loads(project)["project"]
    ((name, target),) = project["entry-points"]["byov.methods"].items()
    folder = tmp_path / "site"
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(f"[byov.methods]\n{name} = {target}\n")
    (folder / f"{target.partition(':')[0]}.py").write_text(code)
    return folder


@pytest.fixture
def typed(cache, tmp_path, package):  # noqa: ARG001
    """Return a function that runs an installed command that can import the plug-in."""

    def run(command, *arguments):
        folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
        return subprocess.run(
            [str(word) for word in (Path(sys.executable).with_name(command), *arguments, *folders)],
            capture_output=True,
            text=True,
            env=os.environ
            | {"PYTHONPATH": str(package), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        )

    return run


def test_the_method_of_the_page_is_trained_resumed_and_evaluated(typed, run):
    options = ("--method", "autoencoder", "--bottleneck", 4, "--lr", 0.01, "--validate-every", 1)
    trained = typed("byov-train", "--run", "toy", *options, "--epochs", 2)
    assert trained.returncode == 0, trained.stderr
    resumed = typed("byov-train", "--run", "toy", "--resume", "--epochs", 3)
    assert resumed.returncode == 0, resumed.stderr
    losses = [
        json.loads(line).get("loss") for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert losses[3] < losses[1]
    scored = typed("byov-eval", "--run", "toy", "--task", "retrieval", "--json")
    assert scored.returncode == 0, scored.stderr
    assert "Autoencoder" in scored.stdout


def test_a_broken_method_is_skipped_with_one_line(typed, package):
    path = package / "byov_autoencoder.py"
    path.write_text("import nowhere_to_be_found\n" + path.read_text())
    failed = typed("byov-train", "--method", "autoencoder")
    note, *_, error = failed.stderr.splitlines()
    assert failed.returncode == 2
    assert "nowhere_to_be_found" in note
    assert error.startswith("error: unknown method 'autoencoder'")
