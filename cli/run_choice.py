"""Which run is meant."""

from pathlib import Path

from byov.cache.runs import RunRecord
from byov.cli.choices import choose_runs
from byov.errors import ApplyError


def choose_run(runs_dir: Path, wanted: str | None) -> RunRecord:
    """The run by name, else the newest."""
    runs = choose_runs(runs_dir, [] if wanted is None else [wanted], None)
    if not runs:
        raise ApplyError(f"{runs_dir}: no run here; make one with byov-train, or say where with --runs-dir")
    return runs[0]
