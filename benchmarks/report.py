"""Time and size of a report.

python benchmarks/report.py    about two minutes on two cores
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import seconds, write_dataset

SPLITS = ("train",) * 8 + ("val",) * 8 + ("test",) * 40
FRAMES = 100


def run(command: str, *arguments: object) -> str:
    """Run an installed command and return its standard output."""
    path = Path(sys.executable).with_name(command)
    return subprocess.run([path, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def main(root: Path) -> None:
    table = write_dataset(root, SPLITS, FRAMES, events="1;2")
    folders = ("--features-dir", root / "features", "--runs-dir", root / "runs")
    run("byov-extract", "--manifest", table, "--encoder", "random/tiny", *folders[:2])
    run("byov-train", "--latent", 256, "--depth", 1, "--decoder-depth", 1, "--heads", 4, "--epochs", 5, *folders)
    summary = {}
    elapsed = seconds(lambda: summary.update(json.loads(run("byov-report", "--json", *folders))))
    print(
        f"report of {SPLITS.count('test')} videos of {FRAMES} frames: {elapsed:.1f} s "
        f"(want < 60), {summary['bytes'] / 1e6:.1f} MB (want < 15); missing: {summary['missing'] or 'nothing'}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
