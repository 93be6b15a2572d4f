"""byov-sweep: many runs, each trained and scored, several at a time; at the end one table of them all."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from byov.cache.layout import manifest_path
from byov.cache.runs import read_progress, read_run
from byov.cli import common
from byov.cli.common import ClusterOption, CpusOption, GpusOption, UsageError, parse_cluster, run_on_ray
from byov.cli.score_table import print_and_save
from byov.cli.signals import Stopped, deferred_stop
from byov.cli.terminal import note
from byov.cluster.grids import PaperChoice, read_grid
from byov.cluster.paper_tables import PAPER_TABLES, DrawnTable, draw_paper, plan_paper
from byov.cluster.ray_session import ClusterOptions
from byov.cluster.ray_workers import ray_workers
from byov.cluster.run_work import Folders, RunResult
from byov.cluster.sweep import (
    Observer,
    Standing,
    SweepResult,
    SweptRun,
    standings,
    sweep,
    swept_runs,
)
from byov.cluster.sweep_tables import sweep_results, with_single_runs
from byov.cluster.workers import LocalWorkers, Workers
from byov.device import Device, usable_cores
from byov.errors import CacheError, Interrupted
from byov.evaluate.evaluation import SCHEMA_VERSION
from byov.evaluate.table import Table
from byov.text import format_duration, pluralize, printable

REDRAWN_SECONDS = 1.0
PAPER, PANEL = "paper", "The paper's experiments (byov-sweep paper)"

app = common.new_app()


@app.command()
def sweep_grid(
    grid: Annotated[
        Path,
        typer.Argument(
            help="A TOML file of settings and of lists of them; or the word paper: the paper's own experiments.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and how far each is; train nothing.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs again that have failed before.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time, a process of one thread each. Default: usable cores.")
    ] = None,
    cluster: ClusterOption = None,
    cpus_per_worker: CpusOption = None,
    gpus_per_worker: GpusOption = None,
    device: Annotated[Device, typer.Option(help="Where to train.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, .md and .tex.")] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--tables", help=f"Which: {', '.join(PAPER_TABLES)}; several with commas.", rich_help_panel=PANEL),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="In the place of the paper's.", rich_help_panel=PANEL)
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="In the place of the paper's.", rich_help_panel=PANEL)] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Runs of each row. Default 5.", rich_help_panel=PANEL)
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Small models, trained for a short time.", rich_help_panel=PANEL)
    ] = False,
    as_json: common.Json = False,
    runs_dir: common.RunsDir = Path("runs"),
    features_dir: common.FeaturesDir = Path("features"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Train and score every combination of a grid. What is finished is skipped, what was stopped is resumed."""
    folders = Folders(features_dir.absolute(), runs_dir.absolute())
    wanted_cluster = parse_cluster(cluster, workers if cluster else None, cpus_per_worker, gpus_per_worker, device)
    plan = None
    if str(grid) == PAPER:
        names = [name.strip() for names in table or [] for name in names.split(",")]
        plan = plan_paper(names, folders.features, PaperChoice(tuple(dataset or ()), encoder, seeds, small))
    else:
        _refuse_without_paper(tables=table, dataset=dataset, encoder=encoder, seeds=seeds, small=small)
    swept = swept_runs(plan.all_grids if plan else [read_grid(grid)], folders.features)
    if dry_run:
        _show_plan(standings(swept, folders), as_json=as_json)
        return
    size = workers or usable_cores()
    result = run(swept, folders, wanted_cluster or size, retry=retry, device=device)
    if plan:
        _deliver_paper(draw_paper(plan, result, folders), result, out, as_json=as_json)
    else:
        compared = sweep_results(swept, result, folders)
        documents = {one.title: with_single_runs(one, swept, result, folders) for one in compared}
        drawn = [table for one in compared for table in one.tables()]
        deliver_sweep(result, {"datasets": documents}, drawn, out, as_json=as_json)


def run(
    swept: Sequence[SweptRun], folders: Folders, where: ClusterOptions | int, *, retry: bool, device: Device
) -> SweepResult:
    """The sweep, told of and stopped as a command is.

    where: a cluster, or how many processes of this machine.
    """
    with deferred_stop() as stop, watching(folders) as observer:

        def work(hands: Workers) -> SweepResult:
            return sweep(swept, folders, hands, retry=retry, device=device, observer=observer, stop=stop)

        try:
            return _here(where, work) if isinstance(where, int) else _on_cluster(where, swept, folders, work)
        except Interrupted as interrupted:
            note(str(interrupted))
            raise Stopped(stop.signal_number or 0) from None


def _here(size: int, work: Callable[[Workers], SweepResult]) -> SweepResult:
    hands = LocalWorkers(size)
    try:
        return work(hands)
    finally:
        hands.close()


def _on_cluster(
    cluster: ClusterOptions, swept: Sequence[SweptRun], folders: Folders, work: Callable[[Workers], SweepResult]
) -> SweepResult:
    manifests = [manifest_path(folders.features, name) for name in dict.fromkeys(one.run.dataset for one in swept)]

    def target() -> SweepResult:
        with ray_workers(cluster, folders.runs, manifests) as hands:
            return work(hands)

    return run_on_ray(target, "interrupted; the same command goes on with it")


def deliver_sweep(
    result: SweepResult, documents: dict[str, Any], drawn: Sequence[Table], out: Path | None, *, as_json: bool
) -> None:
    """As deliver; and say what failed."""
    failed = [one for one in result.runs if one.state == "failed"]
    whole = {
        "schema_version": SCHEMA_VERSION,
        "runs": [{"run": one.name, "state": one.state, "reason": one.reason} for one in result.runs],
        **documents,
    }
    print_and_save(whole, drawn, out, "results", as_json=as_json)
    for one in failed:
        note(f"failed: {one.name}: {one.reason}")
    if failed:
        note(f"{pluralize(len(failed), 'run')} of {len(result.runs)} failed; --retry tries them again")
        raise typer.Exit(common.FAILED)


def _deliver_paper(drawn: Sequence[DrawnTable], result: SweepResult, out: Path | None, *, as_json: bool) -> None:
    """As deliver_sweep; figures too, of tables that have one."""
    if out is not None:
        from byov.report.paper.score_curves import write_score_curves  # matplotlib takes its time

        for one in drawn:
            if one.panels:
                write_score_curves(one.panels, one.along, out / "figures", one.name)
    deliver_sweep(
        result, {"tables": [one.document for one in drawn]}, [one.table for one in drawn], out, as_json=as_json
    )


def _refuse_without_paper(**given: object) -> None:
    for option, value in given.items():
        if value:
            raise UsageError(f"--{option} goes with byov-sweep {PAPER}; a grid says it in its file")


def _show_plan(plan: Sequence[Standing], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_entry(one) for one in plan], indent=1))
        return
    for one in plan:
        print(printable(f"{one.name}: {one.state}" + (f" ({one.said})" if one.said else "")))
    left = sum(one.state != "finished" for one in plan)
    note(f"{pluralize(len(plan), 'run')}, {left} of them not finished")


def _entry(one: Standing) -> dict[str, Any]:
    run = one.swept.run
    return {
        "run": run.name,
        "state": one.state,
        "said": one.said,
        "title": run.title,
        "dataset": run.dataset,
        "encoder": run.encoder_folder,
        "ratio": run.ratio,
        "settings": run.settings.model_dump(mode="json"),
    }


# How a sweep is watched: lines for a log, and in a terminal a table of what is under way below them.


class LinesObserver:
    """A line for each run that has ended."""

    def __init__(self) -> None:
        self.total = self.done = self.failed = 0

    def begun(self, plan: Sequence[Standing], to_do: int) -> None:
        self.total = to_do
        finished, failed = (sum(one.state == state for one in plan) for state in ("finished", "failed"))
        note(f"{pluralize(len(plan), 'run')}: {finished} finished before, {failed} failed before, {to_do} to do")

    def ended(self, result: RunResult) -> None:
        self.done += result.state == "finished"
        self.failed += result.state == "failed"
        said = f"{result.state} in {format_duration(result.seconds)}" if result.state == "finished" else result.reason
        note(f"[{self.done + self.failed} of {self.total}] {result.name}: {said}")

    def step(self, running: Sequence[str]) -> None:
        pass


class TableObserver(LinesObserver):
    """Below the lines, what is under way."""

    def __init__(self, live: Live, folders: Folders) -> None:
        super().__init__()
        self._live, self._folders, self._drawn = live, folders, 0.0

    def step(self, running: Sequence[str]) -> None:
        now = time.monotonic()
        if now - self._drawn >= REDRAWN_SECONDS:
            self._drawn = now
            self._live.update(self._table(running), refresh=True)

    def _table(self, running: Sequence[str]) -> RichTable:
        table = RichTable(box=None, pad_edge=False, caption_justify="left")
        for heading in ("under way", "epoch", "best val"):
            table.add_column(heading)
        for name in running:
            table.add_row(*(Text(printable(cell)) for cell in (name, *self._progress(name))))
        table.caption = f"{self.done} of {self.total} finished, {self.failed} failed"
        return table

    def _progress(self, name: str) -> tuple[str, str]:
        try:
            progress = read_progress(read_run(self._folders.runs, name))
        except CacheError:  # not begun yet, or no run
            return "-", "-"
        if progress.state == "finished":
            return "scoring", "-"
        best = "-" if progress.best is None else f"{progress.metric} {progress.best:.4f}"
        return f"{progress.epoch or 0} of {progress.epochs or '?'}", best


@contextmanager
def watching(folders: Folders) -> Iterator[Observer]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield LinesObserver()
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield TableObserver(live, folders)


def main() -> None:
    common.run(app)
