"""byov-sweep: train and score many runs, and print one table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from byov.cli import common
from byov.cli.common import ClusterOption, CpusOption, GpusOption, UsageError, parse_cluster, run_stoppable
from byov.cli.score_table import print_and_save
from byov.cli.terminal import PROGRESS, note
from byov.cluster.estimates import Estimate, estimate_runs
from byov.cluster.grids import PlannedRun, plan_runs, read_grid
from byov.cluster.paper_tables import PAPER_TABLES, PaperChoice, PaperResult, paper_results, plan_paper, shipped_grid
from byov.cluster.ray_pool import ClusterOptions
from byov.cluster.run_task import Folders, RunStatus
from byov.cluster.sweep import SweepResult, run_status, sweep, sweep_workers
from byov.cluster.sweep_tables import sweep_results, sweep_tables
from byov.device import Device, usable_cores
from byov.evaluate.evaluation import SCHEMA_VERSION
from byov.progress import Stop
from byov.text import format_duration, pluralize, printable

PAPER, BENCHMARK = "paper", "benchmark"
PANEL = "Experiments (byov-sweep paper, byov-sweep benchmark)"

app = common.new_app()


@app.command()
def sweep_grid(
    grid: Annotated[Path, typer.Argument(help="TOML file of settings and lists of settings, `paper` or `benchmark`.")],
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
        typer.Option("--tables", help=f"Tables of the paper: {','.join(PAPER_TABLES)}.", rich_help_panel=PANEL),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Dataset; repeatable.", show_default="all", rich_help_panel=PANEL),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder.", show_default="that of the experiment", rich_help_panel=PANEL)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Runs per row.", show_default="5; benchmark: 3", rich_help_panel=PANEL),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Small models, short training; paper only.", rich_help_panel=PANEL)
    ] = False,
    as_json: common.Json = False,
    runs_dir: common.RunsDir = Path("runs"),
    features_dir: common.FeaturesDir = Path("features"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Train and score every combination of a grid, the experiments of the paper, or the benchmark.

    Finished runs are skipped, interrupted ones are resumed.
    """
    folders = Folders(features_dir.absolute(), runs_dir.absolute())
    ray = parse_cluster(cluster, workers if cluster else None, cpus_per_worker, gpus_per_worker, device)
    choice = PaperChoice(tuple(dataset or ()), encoder, seeds, small)
    plan, name = {}, str(grid)
    if name == PAPER:
        names = [name.strip() for names in table or [] for name in names.split(",")]
        plan = plan_paper(names, folders.features, choice)
        grids = [one for of_table in plan.values() for one in of_table]
    elif table or small:
        raise UsageError(f"--tables and --small are options of byov-sweep {PAPER}.")
    elif name == BENCHMARK:
        grids = [shipped_grid(BENCHMARK, folders.features, choice)]
    elif dataset or encoder or seeds:
        raise UsageError(
            f"--dataset, --encoder and --seeds are options of byov-sweep {PAPER} and byov-sweep {BENCHMARK}. "
            "Set dataset, encoder and seed in the grid file instead."
        )
    else:
        grids = [read_grid(grid)]
    planned = plan_runs(grids, folders.features, allow_missing=name in (PAPER, BENCHMARK))
    runs = [run for run in planned if not run.missing]
    _note_missing(planned)
    before = {run.name: run_status(run, folders) for run in runs}
    to_do = [run for run in runs if before[run.name].state in ("to train", "to resume") or retry]
    estimates = {} if ray else estimate_runs(to_do, folders, device, PROGRESS)
    where = ray or workers or usable_cores()
    if dry_run:
        _show_plan(planned, before, estimates, as_json=as_json)
        note(_total(runs, before, estimates, where))
        return
    if not runs or (name == BENCHMARK and len(runs) < len(planned)):
        raise UsageError("Features are missing. Extract them as shown above, or choose datasets with --dataset.")
    note(_total(runs, before, estimates, where))

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
        tables = sweep_tables([results for results, _ in found])
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


def _note_missing(planned: Sequence[PlannedRun]) -> None:
    """Print the commands that extract missing features, each once."""
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
    planned: Sequence[PlannedRun], before: Mapping[str, RunStatus], estimates: Mapping[str, Estimate], *, as_json: bool
) -> None:
    entries = []
    for run in planned:
        estimate = estimates.get(run.name, Estimate())
        problem = "features are missing" if run.missing else estimate.problem
        state, detail = "cannot run", problem
        if not problem:
            state, detail = before[run.name].state, before[run.name].detail
        entries.append(
            {
                "run": run.name,
                "state": state,
                "detail": detail,
                "seconds": round(estimate.seconds),
                "title": run.title,
                "dataset": run.dataset,
                "encoder": run.encoder_folder,
                "ratio": run.ratio,
                "settings": run.settings.model_dump(mode="json"),
            }
        )
        if not as_json:
            expected = [f"about {format_duration(estimate.seconds)}"] if estimate.seconds else []
            details = "; ".join([*([detail] if detail else []), *expected])
            print(printable(f"{run.name}: {state}" + (f" ({details})" if details else "")))
    if as_json:
        print(json.dumps(entries, indent=1))


def _total(
    runs: Sequence[PlannedRun],
    before: Mapping[str, RunStatus],
    estimates: Mapping[str, Estimate],
    where: ClusterOptions | int,
) -> str:
    """Return one line about the number of runs and the expected time, and how it was estimated."""
    left = sum(status.state != "finished" for status in before.values())
    text = f"{pluralize(len(runs), 'run')}, {left} not finished"
    known = [estimate for estimate in estimates.values() if estimate.seconds]
    if not known or not isinstance(where, int):
        return text
    seconds = sum(estimate.seconds for estimate in known) / min(where, len(known))
    measured = sum(estimate.measured for estimate in known)
    sources = [f"{measured} from a few training steps, without scoring"] if measured else []
    sources += [f"{len(known) - measured} from finished runs"] if measured < len(known) else []
    workers = pluralize(min(where, len(known)), "worker")
    return f"{text}; about {format_duration(seconds)} with {workers} (estimated: {', '.join(sources)})"


def main() -> None:
    common.run(app)
