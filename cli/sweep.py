"""byov-sweep: train and score many runs, and print one table."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from byov.cache.runs import read_progress, read_run
from byov.cli import common
from byov.cli.common import ClusterOption, CpusOption, GpusOption, UsageError, parse_cluster, run_on_cluster
from byov.cli.runs import progress_cells
from byov.cli.score_table import print_and_save
from byov.cli.terminal import note, rich_table
from byov.cluster.grids import PlannedRun, plan_runs, read_grid
from byov.cluster.paper_tables import PAPER_TABLES, PaperChoice, PaperResult, paper_results, plan_paper
from byov.cluster.run_task import Folders, RunStatus
from byov.cluster.sweep import Observer, SweepResult, run_status, sweep, sweep_workers
from byov.cluster.sweep_tables import sweep_results
from byov.device import Device, usable_cores
from byov.errors import CacheError
from byov.evaluate.evaluation import SCHEMA_VERSION
from byov.progress import Stop
from byov.text import format_duration, pluralize, printable

REDRAW_SECONDS = 1.0
PAPER, PANEL = "paper", "Experiments of the paper (byov-sweep paper)"
PANEL_OPTIONS = "--tables, --dataset, --encoder, --seeds and --small"

app = common.new_app()


@app.command()
def sweep_grid(
    grid: Annotated[Path, typer.Argument(help="TOML file of settings and lists of settings, or `paper`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their states; train nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Retry runs that failed before.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs in parallel, one thread each.", show_default="CPU cores")
    ] = None,
    cluster: ClusterOption = None,
    cpus_per_worker: CpusOption = None,
    gpus_per_worker: GpusOption = None,
    device: Annotated[Device, typer.Option(help="Device for training.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, .md and .tex.")] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--tables", help=f"Comma-separated tables: {', '.join(PAPER_TABLES)}.", rich_help_panel=PANEL),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Dataset; repeatable.", show_default="those of the paper", rich_help_panel=PANEL),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder.", show_default="that of the paper", rich_help_panel=PANEL)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Runs per row.", show_default="5", rich_help_panel=PANEL)
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Small models, short training.", rich_help_panel=PANEL)
    ] = False,
    as_json: common.Json = False,
    runs_dir: common.RunsDir = Path("runs"),
    features_dir: common.FeaturesDir = Path("features"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Train and score every combination of a grid, or the experiments of the paper.

    Finished runs are skipped, interrupted ones are resumed.
    """
    folders = Folders(features_dir.absolute(), runs_dir.absolute())
    ray = parse_cluster(cluster, workers if cluster else None, cpus_per_worker, gpus_per_worker, device)
    plan = None
    if str(grid) == PAPER:
        names = [name.strip() for names in table or [] for name in names.split(",")]
        plan = plan_paper(names, folders.features, PaperChoice(tuple(dataset or ()), encoder, seeds, small))
        grids = [one for of_table in plan.values() for one in of_table]
    else:
        if table or dataset or encoder or seeds or small:
            raise UsageError(f"{PANEL_OPTIONS} are options of byov-sweep {PAPER}. Set them in the grid file instead.")
        grids = [read_grid(grid)]
    runs = plan_runs(grids, folders.features)
    if dry_run:
        _show_plan(runs, [run_status(run, folders) for run in runs], as_json=as_json)
        return
    where = ray or workers or usable_cores()
    console = Console(stderr=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())
    with Live(console=console, auto_refresh=False, transient=True) as live:
        observer = SweepObserver(live, folders)

        def work(stop: Stop) -> SweepResult:
            with sweep_workers(where, runs, folders, stop) as processes:
                return sweep(runs, folders, processes, retry=retry, device=device, observer=observer, stop=stop)

        result = run_on_cluster(work, "interrupted; run the same command to resume")
    documents: dict[str, Any]
    if plan:
        drawn = paper_results(plan, result, folders)
        documents, tables = {"tables": [one.document for one in drawn]}, [one.table for one in drawn]
        if out is not None:
            _write_figures(drawn, out / "figures")
    else:
        found = sweep_results(runs, result, folders)
        documents = {"datasets": {results.title: document for results, document in found}}
        tables = [table for results, _ in found for table in results.tables()]
    statuses = [{"run": status.name, "state": status.state, "reason": status.detail} for status in result.runs]
    document = {"schema_version": SCHEMA_VERSION, "runs": statuses, **documents}
    print_and_save(document, tables, out, "results", as_json=as_json)
    failed = [status for status in result.runs if status.state == "failed"]
    for status in failed:
        note(f"failed: {status.name}: {status.detail}")
    if failed:
        note(f"{len(failed)} of {pluralize(len(runs), 'run')} failed; pass --retry to try again")
        raise typer.Exit(common.FAILED)


def _write_figures(results: Sequence[PaperResult], folder: Path) -> None:
    from byov.report.figures import write_score_curves  # imports matplotlib

    for result in results:
        if result.panels:
            write_score_curves(result.panels, result.x_label, folder, result.name)


def _show_plan(runs: Sequence[PlannedRun], statuses: Sequence[RunStatus], *, as_json: bool) -> None:
    if as_json:
        entries = [
            {
                "run": run.name,
                "state": status.state,
                "detail": status.detail,
                "title": run.title,
                "dataset": run.dataset,
                "encoder": run.encoder_folder,
                "ratio": run.ratio,
                "settings": run.settings.model_dump(mode="json"),
            }
            for run, status in zip(runs, statuses, strict=True)
        ]
        print(json.dumps(entries, indent=1))
        return
    for status in statuses:
        print(printable(f"{status.name}: {status.state}" + (f" ({status.detail})" if status.detail else "")))
    left = sum(status.state != "finished" for status in statuses)
    note(f"{pluralize(len(runs), 'run')}, {left} not finished")


class SweepObserver(Observer):
    """Prints a line for each finished run and, in a terminal, shows a table of the running ones below."""

    def __init__(self, live: Live, folders: Folders) -> None:
        self._live, self._folders, self._drawn = live, folders, 0.0
        self.total = self.done = self.failed = 0

    def on_start(self, statuses: Sequence[RunStatus], to_do: int) -> None:
        self.total = to_do
        finished, failed = (sum(status.state == state for status in statuses) for state in ("finished", "failed"))
        note(f"{pluralize(len(statuses), 'run')}: {finished} finished before, {failed} failed before, {to_do} to do")

    def on_finish(self, status: RunStatus) -> None:
        self.done += status.state == "finished"
        self.failed += status.state == "failed"
        text = f"finished in {format_duration(status.seconds)}" if status.state == "finished" else status.detail
        note(f"[{self.done + self.failed} of {self.total}] {status.name}: {text}")

    def on_step(self, running: Sequence[str]) -> None:
        now = time.monotonic()
        if self._live.console.is_terminal and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._live.update(self._table(running), refresh=True)

    def _table(self, running: Sequence[str]) -> RichTable:
        table = rich_table(("running", "epoch", "best val"), [(name, *self._progress(name)) for name in running])
        table.caption_justify = "left"
        table.caption = f"{self.done} of {self.total} finished, {self.failed} failed"
        return table

    def _progress(self, name: str) -> tuple[str, str]:
        try:
            progress = read_progress(read_run(self._folders.runs, name))
        except CacheError:  # not started yet, or not a run
            return "-", "-"
        return ("scoring", "-") if progress.state == "finished" else progress_cells(progress)


def main() -> None:
    common.run(app)
