"""byov-sweep: train and score many runs, and print one table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from byov.cli import common
from byov.cli.common import ClusterOption, CpusOption, GpusOption, UsageError, parse_cluster, run_stoppable
from byov.cli.score_table import print_and_save
from byov.cli.terminal import PROGRESS, note
from byov.cluster.grids import PlannedRun, plan_runs, read_grid
from byov.cluster.paper_tables import PAPER_TABLES, PaperChoice, PaperResult, paper_results, plan_paper
from byov.cluster.run_task import Folders, RunStatus
from byov.cluster.sweep import SweepResult, run_status, sweep, sweep_workers
from byov.cluster.sweep_tables import sweep_results
from byov.device import Device, usable_cores
from byov.evaluate.evaluation import SCHEMA_VERSION
from byov.progress import Stop
from byov.text import pluralize, printable

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

    def work(stop: Stop) -> SweepResult:
        with sweep_workers(where, runs, folders, stop) as processes:
            return sweep(runs, folders, processes, retry=retry, device=device, progress=PROGRESS, stop=stop)

    result = run_stoppable(work, "interrupted; run the same command to resume")
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


def main() -> None:
    common.run(app)
