"""make demo, from its videos to the report, with fewer videos and smaller models than it shows to people."""

import os
import subprocess
from pathlib import Path

import pytest

from byov.data.demo import write_demo

ROOT = Path(__file__).parents[3]
SMALL = {
    "DEMO_PAPER": "--latent 32 --depth 1 --decoder-depth 1 --heads 4 --epochs 2 --batch-size 4 --select both",
    "DEMO_TIMELINE": "--method timeline --latent 32 --depth 1 --heads 4 --epochs 2",
}
ROWS = (
    *("efficientnet-lite0 features, merged 0.3 ", "efficientnet-lite0 features, merged 0.3, standardized"),
    *("Time only", "Untrained (demo-paper)", "demo-paper: BYOV, paper", "demo-timeline: Timeline"),
)
VIDEOS = {"train": (3, 3), "val": (2, 2), "test": (2, 2)}
OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")


@pytest.fixture
def make_demo(tmp_path):
    """make_demo(...): the lines that `make demo` prints, its folders below tmp_path."""
    if not (ROOT / ".venv" / ".ready").exists():
        pytest.skip("make would set up an environment first")
    folders = {f"BYOV_{name.upper()}": str(tmp_path / name) for name in ("datasets", "features", "runs")}
    write_demo(tmp_path / "datasets" / "demo", videos=VIDEOS)
    environment = {key: value for key, value in os.environ.items() if key not in OUTER_MAKE} | folders

    def run(*variables):
        ran = subprocess.run(
            ["make", "demo", *variables], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    return run


@pytest.mark.slow
def test_the_demo_ends_with_its_tables_and_a_report_that_opens(make_demo, tmp_path, open_file):
    lines = make_demo(*(f"{name}={options}" for name, options in SMALL.items()))
    for row in ROWS:
        assert sum(line.startswith(row) for line in lines) == 2, "one for each protocol"
    report = tmp_path / "runs" / "demo-timeline" / "report.html"
    assert lines[-1] == str(report)
    tab = open_file(report)
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert tab.value("document.querySelectorAll('.unavailable:not([hidden]), .missing').length") == 0
    assert make_demo()[-1] == str(report), "what is done is not done again"
