"""Install the dataset reader from docs/architecture.md as a package and extract a dataset."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories import write_noise_video

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
RUN = "from byov.cli.extract import main; main()"
RUN_IN_PYTHON = """
import sys, byov
options = {"sessions": sys.argv[1], "held_out": 2}
print(byov.extract_features(source_options=options, encoder="random/tiny").cached)
"""


@pytest.fixture
def run(tmp_path, clean_environment):
    """Return a function that runs code in a process in which the documented plug-in is
    installed.
    """
    section = PAGE.read_text().partition("## Add a dataset")[2].partition("\n## ")[0]
    source, entry = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (tmp_path / "sessions.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    group, name, value = re.fullmatch(
        r'\[project.entry-points."(.+)"\]\n(\w+) = "(.+)"\n', entry
    ).groups()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")

    def execute(code, *arguments):
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=clean_environment | {"PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return execute


def test_documented_reader_is_used_as_a_plug_in(run, tmp_path):
    for index, session in enumerate(("friday", "monday", "sunday")):
        for file in ("head.mp4", "room.mp4"):
            write_noise_video(tmp_path / "my" / session / file, 3, seed=index)
    ran = run(RUN, "--sessions", "my", "--held-out", 2, "--encoder", "random/tiny", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["extracted_videos"] == 6
    manifest = json.loads((tmp_path / "features/my/manifest.json").read_text())
    assert [video["split"] for video in manifest["videos"]] == ["test"] * 4 + ["train"] * 2
    ran = run(RUN_IN_PYTHON, "my")
    assert (ran.returncode, ran.stdout) == (0, "6\n"), ran.stderr
    ran = run(RUN, "--folder", "my", "--held-out", 2)
    assert (ran.returncode, "--held-out requires --sessions" in ran.stderr) == (2, True)
