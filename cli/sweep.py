"""byov-sweep: train and score many runs, and print one table."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from byov.cache.digests import SCHEMA_VERSION
from byov.cache.layout import cached_files, encoder_folders
from byov.cli.app import FAILED, App
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
    check_folder,
    complete_datasets,
    parse_cluster,
)
from byov.cli.score_table import print_and_save
from byov.cli.signals import run_stoppable
from byov.cli.terminal import PROGRESS, note
from byov.device import Device, usable_cores
from byov.errors import CacheError
from byov.evaluate.table import Table
from byov.progress import Stop
from byov.sweeps.estimates import estimate_runs, total_time
from byov.sweeps.grids import Folders, PlannedRun, plan_runs, read_grid
from byov.sweeps.paper_tables import (
    PAPER_TABLES,
    PaperChoice,
    paper_results,
    plan_paper,
    shipped_grid,
    write_score_curves,
)
from byov.sweeps.sweep import RunStatus, SweepResult, run_status, sweep, sweep_workers
from byov.sweeps.sweep_tables import sweep_results
from byov.text import format_duration, pluralize, printable

experiment_option = partial(typer.Option, rich_help_panel="Experiment")
Datasets = Annotated[
    list[str] | None,
    experiment_option(
        "--dataset",
        help="Dataset; repeatable.",
        show_default="all",
        autocompletion=complete_datasets,
    ),
]
Encoder = Annotated[
    str | None,
    experiment_option("--encoder", help="Encoder to use.", show_default="the experiment's"),
]
Seeds = Annotated[
    int | None,
    experiment_option(
        "--seeds",
        min=1,
        max=1000,
        help="Number of seeds per row.",
        show_default="paper: 5; benchmark: 3",
    ),
]


@dataclass
class _Options:
    """Options that all subcommands share."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their states; do not train.")
    ] = False
    retry: Annotated[bool, typer.Option("--retry", help="Retry runs that failed before.")] = False
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of parallel runs, one thread each.", show_default="CPU cores"
        ),
    ] = None
    cluster: Cluster = None
    cpus_per_worker: Cpus = None
    gpus_per_worker: Gpus = None
    device: Annotated[Device, typer.Option(help="Device for training.")] = "auto"
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, .md and .tex.")] = None
    as_json: Json = False
    runs_dir: RunsDir = Path("runs")
    features_dir: FeaturesDir = Path("features")
    _config: Config = None

    def __post_init__(self) -> None:
        self.folders = Folders(self.features_dir.absolute(), self.runs_dir.absolute())
        cluster = parse_cluster(
            self.cluster,
            self.workers if self.cluster else None,
            self.cpus_per_worker,
            self.gpus_per_worker,
            self.device,
        )
        # Ray cluster, or number of processes on this machine.
        self.where = cluster or self.workers or usable_cores()


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `options` of a command with the fields of `_Options`."""
    *own, _ = inspect.signature(command).parameters.values()
    shared = inspect.signature(_Options).parameters

    @wraps(command)
    def with_shared(**values: Any) -> None:
        options = _Options(**{name: values.pop(name) for name in shared})
        command(**values, options=options)

    signature = inspect.Signature([*own, *shared.values()])
    with_shared.__signature__ = signature  # type: ignore[attr-defined]
    return with_shared


class _RunByDefault(TyperGroup):
    """Group that reads `byov-sweep GRID` as `byov-sweep run GRID`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if args and args[0] not in {*self.commands, *options}:
            named = [word for word in args if word in self.commands and args[0].startswith("-")]
            command = named[0] if named else "run"  # `byov-sweep --dry-run paper`
            args = [command, *(word for word in args if word not in named[:1])]
        return super().parse_args(ctx, args)


main = App(
    "Train and score many runs in parallel, and print one table. Finished runs are skipped; "
    "interrupted runs are resumed.",
    cls=_RunByDefault,
    no_args_is_help=True,
)


@main.callback()
def _group_options(_version: Version = False) -> None:
    pass


@main.command()
@with_options
def run(
    grid: Annotated[Path, typer.Argument(help="TOML file of settings and lists of values.")],
    *,
    options: _Options,
) -> None:
    """Train and score all combinations of settings in a grid."""
    planned = plan_runs([read_grid(grid)], options.folders.features)
    _print_datasets(planned, _sweep(planned, options), options)


@main.command()
@with_options
def benchmark(
    dataset: Datasets = None,
    encoder: Encoder = None,
    seeds: Seeds = None,
    *,
    options: _Options,
) -> None:
    """Compare all methods on the Meta-World datasets."""
    choice = PaperChoice(tuple(dataset or ()), encoder, seeds)
    grid = shipped_grid("benchmark", options.folders.features, choice)
    planned = plan_runs([grid], options.folders.features, allow_missing=True)
    _print_datasets(planned, _sweep(planned, options, needs_all=True), options)


@main.command()
@with_options
def paper(
    table: Annotated[
        list[str] | None,
        experiment_option("--tables", help=f"Tables in the paper: {', '.join(PAPER_TABLES)}."),
    ] = None,
    dataset: Datasets = None,
    encoder: Encoder = None,
    seeds: Seeds = None,
    small: Annotated[
        bool, experiment_option("--small", help="Small models, short training.")
    ] = False,
    add: Annotated[
        list[Path] | None,
        experiment_option(
            "--add",
            help="Grid of your own methods, for the tables that compare methods; repeatable.",
        ),
    ] = None,
    *,
    options: _Options,
) -> None:
    """Reproduce the paper's tables."""
    names = [name.strip() for names in table or [] for name in names.split(",")]
    choice = PaperChoice(tuple(dataset or ()), encoder, seeds, small, tuple(add or ()))
    plan = plan_paper(names, options.folders.features, choice)
    grids = [grid for table_grids in plan.values() for grid in table_grids]
    result = _sweep(plan_runs(grids, options.folders.features, allow_missing=True), options)
    results = paper_results(plan, result, options.folders)
    if options.out is not None:
        for paper_result in results:
            if paper_result.panels:
                write_score_curves(
                    paper_result.panels,
                    paper_result.x_label,
                    options.out / "figures",
                    paper_result.name,
                )
    document = {"tables": [paper_result.document for paper_result in results]}
    _print_results(document, [paper_result.table for paper_result in results], result, options)


def _sweep(
    planned: Sequence[PlannedRun], options: _Options, *, needs_all: bool = False
) -> SweepResult:
    """Train and score runs whose features are cached; with --dry-run, show them and exit."""
    if options.out is not None:
        check_folder(options.out, "--out")
    if options.dry_run:
        _show_plan(planned, options)
    _note_missing(planned, options.folders.features)
    if options.dry_run:
        raise typer.Exit
    runs = [run for run in planned if not run.missing]
    if not runs or (needs_all and len(runs) < len(planned)):
        raise UsageError(
            "Features are missing. Extract them as shown above, or choose datasets with --dataset."
        )

    def work(stop: Stop) -> SweepResult:
        with sweep_workers(options.where, runs, options.folders, stop) as workers:
            return sweep(
                runs,
                options.folders,
                workers,
                retry=options.retry,
                device=options.device,
                measure=isinstance(options.where, int),
                progress=PROGRESS,
                stop=stop,
            )

    return run_stoppable(work, "interrupted; run the same command to resume")


def _print_datasets(planned: Sequence[PlannedRun], result: SweepResult, options: _Options) -> None:
    """Print and save the tables of each dataset and of their mean."""
    datasets = sweep_results(planned, result, options.folders)
    document = {"datasets": {results.title: results.to_dict() for results in datasets}}
    tables = [table for results in datasets for table in results.tables()]
    tables.sort(key=lambda table: not table.is_main)
    _print_results(document, tables, result, options)


def _print_results(
    document: dict[str, Any], tables: Sequence[Table], result: SweepResult, options: _Options
) -> None:
    """Print and save tables and the state of each run; exit with FAILED if a run failed."""
    statuses = [
        {"run": status.name, "state": status.state, "reason": status.detail}
        for status in result.runs
    ]
    document = {"schema_version": SCHEMA_VERSION, "runs": statuses, **document}
    print_and_save(document, tables, options.out, "results", as_json=options.as_json)
    failed = [status for status in result.runs if status.state == "failed"]
    for status in failed:
        note(f"failed: {status.name}: {status.detail}")
    if failed:
        total = pluralize(len(result.runs), "run")
        note(
            f"{len(failed)} of {total} failed; remove them from the grid, or correct the cause and "
            "pass --retry"
        )
        raise typer.Exit(FAILED)


def _note_missing(planned: Sequence[PlannedRun], features_dir: Path) -> None:
    """Print the commands that extract missing features, without duplicates, and which other
    features are cached.
    """
    ratios: dict[str, list[str]] = {}
    for run in planned:
        if run.missing:
            command, _, ratio = run.missing.partition(" --ratios ")
            ratios.setdefault(command, []).extend([ratio] * bool(ratio))
    if ratios:
        note("features are missing; extract them with:")
    for command, missing in ratios.items():
        note(f"  {command}" + (f" --ratios {','.join(dict.fromkeys(missing))}" if missing else ""))
    for dataset in dict.fromkeys(run.dataset for run in planned if run.missing):
        with suppress(CacheError):  # nothing of this dataset is cached
            folders = encoder_folders(features_dir, dataset)
            names = [folder.name for folder in folders if any(cached_files(folder))]
            if names:
                note(f"{dataset} has other features: --encoder {' | '.join(names)}")


def _show_plan(planned: Sequence[PlannedRun], options: _Options) -> None:
    before = {run.name: run_status(run, options.folders) for run in planned if not run.missing}
    to_do = [run for run in planned if run.name in before and before[run.name].state != "finished"]
    estimates = {}
    processes = 1
    if isinstance(options.where, int):
        estimates = estimate_runs(to_do, options.folders, options.device, PROGRESS)
        processes = options.where
    entries = []
    lines = []
    for run in planned:
        status = before.get(run.name)
        seconds, problem = estimates.get(run.name, (0.0, ""))
        if status is None or problem:
            status = RunStatus(run.name, "cannot run", problem or "features are missing")
        expected = f"about {format_duration(seconds)}" if seconds else ""
        details = "; ".join(filter(None, (status.detail, expected)))
        if not run.missing:
            lines.append(f"{run.name}: {status.state}" + (f" ({details})" if details else ""))
        entry = {
            "run": run.name,
            "state": status.state,
            "detail": status.detail,
            "seconds": round(seconds),
            "title": run.title,
            "dataset": run.dataset,
            "encoder": run.encoder_folder,
            "ratio": run.ratio,
            "settings": run.config.flat(),
        }
        entries.append(entry)
    counts = ", ".join(
        f"{count} {state}" for state, count in Counter(entry["state"] for entry in entries).items()
    )
    expected = total_time(estimates.values(), processes)
    note(f"{pluralize(len(planned), 'run')}: {counts}{expected}")
    missing = [run for run in planned if run.missing]
    if missing:
        note(f"can run: {_inputs([run for run in planned if not run.missing]) or 'nothing'}")
        note(f"features are missing: {_inputs(missing)}")
    if options.as_json:
        print(json.dumps(entries, indent=1))
    else:
        print("".join(f"{printable(line)}\n" for line in lines), end="")


def _inputs(runs: Sequence[PlannedRun]) -> str:
    """Describe the features of runs, such as "CLIP of pour_milk, tennis_forehand"."""
    datasets: dict[str, dict[str, None]] = {}
    for run in runs:
        datasets.setdefault(run.encoder, {})[run.dataset] = None
    return "; ".join(f"{encoder} of {', '.join(names)}" for encoder, names in datasets.items())
