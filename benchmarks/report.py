"""Time and size of a report.

python benchmarks/report.py    about two minutes on two cores
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import seconds, write_videos

VIDEOS = {"train": 8, "val": 8, "test": 40}  # half of them ego
FRAMES = 100


def run(command: str, *arguments: object) -> str:
    """Run an installed command and return its standard output."""
    path = Path(sys.executable).with_name(command)
    return subprocess.run([path, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def main(root: Path) -> None:
    names = {f"{split}{index}.mp4": split for split, count in VIDEOS.items() for index in range(count)}
    write_videos(root, list(names), FRAMES)
    lines = [f"{name},{('ego', 'exo')[row % 2]},{split},1;2" for row, (name, split) in enumerate(names.items())]
    table = root / "bench.csv"
    table.write_text("\n".join(["path,view,split,events", *lines]) + "\n")
    folders = ("--features-dir", root / "features", "--runs-dir", root / "runs")
    run("byov-extract", "--manifest", table, "--encoder", "random/tiny", *folders[:2])
    run("byov-train", "--latent", 256, "--depth", 1, "--decoder-depth", 1, "--heads", 4, "--epochs", 5, *folders)
    summary = {}
    elapsed = seconds(lambda: summary.update(json.loads(run("byov-report", "--json", *folders))))
    print(
        f"report of {VIDEOS['test']} videos of {FRAMES} frames: {elapsed:.1f} s "
        f"(want < 60), {summary['bytes'] / 1e6:.1f} MB (want < 15); missing: {summary['missing'] or 'nothing'}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
