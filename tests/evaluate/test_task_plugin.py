"""Install the task from docs/architecture.md as a package and score it."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
RUN = "from byov.cli.evaluate import main; main()"


def test_documented_task_is_scored_as_a_plug_in(
    tmp_path, manifest, features_dir, clean_environment
):
    section = PAGE.read_text().partition("## Add a task")[2].partition("\n## ")[0]
    source, entry = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (tmp_path / "jitter.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    group, line = entry.strip().splitlines()
    name, value = line.split(" = ")
    (info / "entry_points.txt").write_text(
        f"[{group.split(chr(34))[1]}]\n{name} = {value.strip(chr(34))}\n"
    )
    options = [
        "--features",
        "merged:0.3",
        "--encoder",
        "random/tiny",
        "--features-dir",
        str(features_dir),
        "--json",
    ]
    for task in ("jitter", "all"):
        ran = subprocess.run(
            [sys.executable, "-c", RUN, "--task", task, "--dataset", manifest.dataset, *options],
            env=clean_environment | {"PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        document = json.loads(ran.stdout)
        for row in document["protocols"]["standard"]["rows"]:
            assert row["scores"]["jitter"]["step"] > 0
        assert len(document["tasks"]) > 1 or task == "jitter"
