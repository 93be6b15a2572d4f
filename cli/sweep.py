"""byov-sweep: train and score many runs, and print one table."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from byov.cache.digests import SCHEMA_VERSION
from byov.cli.app import App
from byov.cli.exit_codes import FAILED
from byov.cli.options import (
    Cluster,
    Config,
    Cpus,
    FeaturesDir,
    Gpus,
    Json,
    RunsDir,
    UsageError,
    Version,
    complete_datasets,
    parse_cluster,
)
from byov.cli.outputs import check_folder
from byov.cli.score_table import print_and_save
from byov.cli.signals import run_stoppable
from byov.cli.terminal import PROGRESS, note
from byov.device import Device, usable_cores
from byov.progress import Stop
from byov.sweeps.estimates import Estimate, estimate_runs, total_time
from byov.sweeps.grids import Folders, PlannedRun, plan_runs, read_grid
from byov.sweeps.paper_tables import (
    PAPER_TABLES,
    PaperChoice,
    paper_results,
    plan_paper,
    shipped_grid,
)
from byov.sweeps.sweep import RunStatus, SweepResult, run_status, sweep, sweep_workers
from byov.sweeps.sweep_tables import sweep_results, sweep_tables
from byov.text import format_duration, pluralize, printable
from byov.workers import ClusterOptions

PAPER = "paper"
BENCHMARK = "benchmark"
experiment_option = partial(
    typer.Option, rich_help_panel="Experiments (byov-sweep paper, byov-sweep benchmark)"
)

main = App()


@main.command()
def sweep_grid(
    grid: Annotated[
        str,
        typer.Argument(
            help="`paper`, `benchmark`, or a TOML file of settings and lists of values."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their states; do not train.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Retry runs that failed before.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of parallel runs, one thread each.", show_default="CPU cores"
        ),
    ] = None,
    cluster: Cluster = None,
    cpus_per_worker: Cpus = None,
    gpus_per_worker: Gpus = None,
    device: Annotated[Device, typer.Option(help="Device for training.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, .md and .tex.")] = None,
    table: Annotated[
        list[str] | None,
        experiment_option("--tables", help=f"Tables in the paper: {', '.join(PAPER_TABLES)}."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        experiment_option(
            help="Dataset; repeatable.", show_default="all", autocompletion=complete_datasets
        ),
    ] = None,
    encoder: Annotated[
        str | None, experiment_option(help="Encoder to use.", show_default="the experiment's")
    ] = None,
    seeds: Annotated[
        int | None,
        experiment_option(
            min=1, max=1000, help="Number of seeds per row.", show_default="5; benchmark: 3"
        ),
    ] = None,
    small: Annotated[
        bool, experiment_option("--small", help="Small models, short training (paper only).")
    ] = False,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Train and score all combinations of settings in a grid, the experiments in the paper, or the
    benchmark.

    Finished runs are skipped; interrupted runs are resumed.
    """
    if out is not None:
        check_folder(out, "--out")
    folders = Folders(features_dir.absolute(), runs_dir.absolute())
    ray = parse_cluster(
        cluster, workers if cluster else None, cpus_per_worker, gpus_per_worker, device
    )
    choice = PaperChoice(tuple(dataset or ()), encoder, seeds, small)
    plan = {}
    if grid == PAPER:
        names = [name.strip() for names in table or [] for name in names.split(",")]
        plan = plan_paper(names, folders.features, choice)
        grids = [one for of_table in plan.values() for one in of_table]
    elif table or small:
        raise UsageError(f"--tables and --small are only for byov-sweep {PAPER}.")
    elif grid == BENCHMARK:
        grids = [shipped_grid(BENCHMARK, folders.features, choice)]
    elif dataset or encoder or seeds:
        raise UsageError(
            "Set dataset, encoder and seed in the grid file instead of --dataset, --encoder or "
            "--seeds."
        )
    else:
        grids = [read_grid(Path(grid))]
    planned = plan_runs(grids, folders.features, allow_missing=grid in (PAPER, BENCHMARK))
    runs = [run for run in planned if not run.missing]
    where = ray or workers or usable_cores()
    if dry_run:
        _show_plan(planned, folders, device, where, as_json=as_json)
    _note_missing(planned)
    if dry_run:
        return
    if not runs or (grid == BENCHMARK and len(runs) < len(planned)):
        raise UsageError(
            "Features are missing. Extract them as shown above, or choose datasets with --dataset."
        )

    def work(stop: Stop) -> SweepResult:
        with sweep_workers(where, runs, folders, stop) as processes:
            return sweep(
                runs,
                folders,
                processes,
                retry=retry,
                device=device,
                measure=ray is None,
                progress=PROGRESS,
                stop=stop,
            )

    result = run_stoppable(work, "interrupted; run the same command to resume")
    documents: dict[str, Any]
    if plan:
        drawn = paper_results(plan, result, folders)
        documents = {"tables": [one.document for one in drawn]}
        tables = [one.table for one in drawn]
        if out is not None:
            # Deferred, because it imports matplotlib.
            from byov.sweeps.score_curves import write_score_curves

            for one in (one for one in drawn if one.panels):
                write_score_curves(one.panels, one.x_label, out / "figures", one.name)
    else:
        found = sweep_results(runs, result, folders)
        documents = {"datasets": {results.title: document for results, document in found}}
        tables = sweep_tables([results for results, _ in found])
    statuses = [
        {"run": status.name, "state": status.state, "reason": status.detail}
        for status in result.runs
    ]
    document = {"schema_version": SCHEMA_VERSION, "runs": statuses, **documents}
    print_and_save(document, tables, out, "results", as_json=as_json)
    failed = [status for status in result.runs if status.state == "failed"]
    for status in failed:
        note(f"failed: {status.name}: {status.detail}")
    if failed:
        note(f"{len(failed)} of {pluralize(len(runs), 'run')} failed; pass --retry to try again")
        raise typer.Exit(FAILED)


def _note_missing(planned: Sequence[PlannedRun]) -> None:
    """Print the commands that extract missing features, without duplicates."""
    ratios: dict[str, list[str]] = {}
    for run in planned:
        if run.missing:
            command, _, ratio = run.missing.partition(" --ratios ")
            ratios.setdefault(command, []).extend([ratio] * bool(ratio))
    if ratios:
        note("features are missing; extract them with:")
    for command, missing in ratios.items():
        note(f"  {command}" + (f" --ratios {','.join(dict.fromkeys(missing))}" if missing else ""))


def _show_plan(
    planned: Sequence[PlannedRun],
    folders: Folders,
    device: Device,
    where: ClusterOptions | int,
    *,
    as_json: bool,
) -> None:
    before = {run.name: run_status(run, folders) for run in planned if not run.missing}
    to_do = [run for run in planned if run.name in before and before[run.name].state != "finished"]
    estimates = estimate_runs(to_do, folders, device, PROGRESS) if isinstance(where, int) else {}
    entries = []
    for run in planned:
        status = before.get(run.name)
        estimate = estimates.get(run.name, Estimate())
        if status is None or estimate.problem:
            status = RunStatus(run.name, "cannot run", estimate.problem or "features are missing")
        expected = f"about {format_duration(estimate.seconds)}" if estimate.seconds else ""
        details = "; ".join(filter(None, (status.detail, expected)))
        if not as_json:
            print(printable(f"{run.name}: {status.state}" + (f" ({details})" if details else "")))
        entry = {
            "run": run.name,
            "state": status.state,
            "detail": status.detail,
            "seconds": round(estimate.seconds),
        }
        entry |= {
            "title": run.title,
            "dataset": run.dataset,
            "encoder": run.encoder_folder,
            "ratio": run.ratio,
        }
        entries.append(entry | {"settings": run.settings.model_dump(mode="json")})
    if as_json:
        print(json.dumps(entries, indent=1))
    counts = ", ".join(
        f"{count} {state}" for state, count in Counter(entry["state"] for entry in entries).items()
    )
    expected = total_time(estimates.values(), where if isinstance(where, int) else 1)
    note(f"{pluralize(len(planned), 'run')}: {counts}{expected}")
