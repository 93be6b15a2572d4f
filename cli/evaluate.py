"""byov-eval: score frame embeddings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from byov.cache.hdf5 import read_columns
from byov.cache.layout import cached_files
from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord, choose_runs
from byov.cli.app import App
from byov.cli.options import (
    Config,
    FeaturesDir,
    Json,
    RunsDir,
    UsageError,
    Version,
    check_folder,
    dataset_option,
    run_option,
)
from byov.cli.score_table import print_and_save
from byov.cli.signals import interruptible, run_stoppable
from byov.cli.terminal import PROGRESS, note, note_unfinished
from byov.evaluate.compare import compare, compare_file, compared_readers, rows_at_once
from byov.evaluate.embedding_files import is_embedded, open_embeddings, source_videos
from byov.evaluate.protocols import ProtocolChoice, ScoredSplit
from byov.evaluate.readers import EmbeddingReader, read_manifest
from byov.evaluate.results import Results
from byov.evaluate.scope import ALL, Scope, choose_scope, scored_protocols
from byov.evaluate.table import verdict
from byov.evaluate.tasks import TASKS, EvaluationOptions
from byov.text import printable
from byov.train.feature_store import choose_dataset, choose_folder

if TYPE_CHECKING:
    TaskChoice = str
else:
    TaskChoice = Literal[(*TASKS, ALL)]
DEFAULTS = EvaluationOptions()

main = App()


@main.command()
def evaluate(
    task: Annotated[
        TaskChoice | None, typer.Option(help="Task; all: every task with labels except few-shot.")
    ] = None,
    run: Annotated[
        list[str] | None,
        run_option(help="Run to score; repeat to average over seeds.", show_default="newest"),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(help="Cached features to score: cls, merged:0.3, ...; repeatable."),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="Your own embeddings: an .npz file with embeddings, labels, lengths and is_ego, "
            "each prefixed with train_ and test_, or a file or folder written by byov-embed."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        dataset_option(help="Dataset for --features, or with labels for --embeddings."),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder for --features.")] = None,
    split: Annotated[
        ScoredSplit, typer.Option(help="Split to score; val for model selection.")
    ] = "test",
    protocol: Annotated[
        ProtocolChoice | None,
        typer.Option(
            help="Frames to score: whole videos (standard), two sub-clips of each video (trimmed), "
            "frames embedded without later frames (online), standard and trimmed (both), or all.",
            show_default="standard; all for --task all",
        ),
    ] = None,
    k: Annotated[
        str, typer.Option("--k", help="Values of K for map@K, comma-separated.")
    ] = "5,10,15",
    tau_stride: Annotated[
        int, typer.Option(min=1, help="Frame stride for Kendall's tau.")
    ] = DEFAULTS.tau_stride,
    time_column: Annotated[
        bool,
        typer.Option(
            "--time-column",
            help="Use the frame index for progression, as AE2 does for Pour Liquid.",
        ),
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Bootstrap samples for 95% intervals, e.g. 1000.")
    ] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed for few-shot draws and the bootstrap.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.json, .md and .tex.", show_default="folder of a single run"
        ),
    ] = None,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Score frame embeddings of runs, cached features or your own files.

    Without --task, print the plan.
    """
    options = EvaluationOptions(
        ks=parse_ks(k),
        tau_stride=tau_stride,
        time_column=time_column,
        seed=seed,
        bootstrap=bootstrap,
    )
    if task is None and (embeddings is not None or as_json):
        raise UsageError(f"No task given. Pass --task {' | '.join((*TASKS, ALL))}.")
    if out is not None:
        check_folder(out, "--out")
    if embeddings is not None and task is not None:
        others = {
            "--run": run,
            "--features": features,
            "--encoder": encoder,
            "--dataset (except for files written by byov-embed)": dataset
            and not is_embedded(embeddings),
            f"--split {split}": split != "test",
            f"--protocol {protocol}": protocol not in (None, "standard"),
        }
        if given := [option for option, value in others.items() if value]:
            raise UsageError(f"{given[0]} cannot be combined with --embeddings.")
        results = _score_files(embeddings, features_dir, dataset, task, options)
        stem = _stem(task, None, "test")
        _print_results(results, results.file_to_dict(), out, stem, as_json=as_json)
        return
    runs = choose_runs(runs_dir, run or [], dataset) if run or not features else []
    note_unfinished(runs)
    name = runs[0].dataset if runs else choose_dataset(features_dir, dataset)
    if not runs:
        _note_no_runs(
            runs_dir, name if dataset is None else None, task, has_features=bool(features)
        )
    if encoder is not None and not features:
        raise UsageError("--encoder needs --features cls or --features merged:RATIO.")
    encoder = encoder or (runs[0].encoder_folder if runs else None)
    columns = _choose_columns(features_dir, name, encoder, features) if features else []
    manifest = read_manifest(features_dir, name)
    if task and task != ALL and protocol and not scored_protocols([task], protocol):
        raise UsageError(f"--task {task} cannot be scored with --protocol {protocol}.")
    scope = choose_scope(manifest, [task or ALL], split=split, protocol=protocol, options=options)
    if task is None:
        _print_plan(scope, manifest, runs, columns)
        return
    is_complete = task == ALL and not features
    readers = compared_readers(runs_dir, features_dir, name, runs, None if is_complete else columns)
    if is_complete and not any(reader.kind == "random" for reader in readers):
        note(
            f"no row for random features; to add one, extract {name} with --encoder "
            "random/clip-vit-base-patch16"
        )
    folder = out
    if out is None and len(runs) == 1 and not features:
        folder = _writable(runs[0].folder)
    results = _compare(readers, scope, skip_missing=protocol is None)
    stem = _stem(task, protocol, split)
    _print_results(results, results.to_dict(), folder, stem, as_json=as_json)


def _print_results(
    results: Results, document: Mapping[str, Any], folder: Path | None, stem: str, *, as_json: bool
) -> None:
    print_and_save(
        document, results.tables(), folder, stem, as_json=as_json, summary=verdict(results.rows)
    )


def _writable(folder: Path) -> Path | None:
    if os.access(folder, os.W_OK | os.X_OK):
        return folder
    note(f"{folder}: permission denied; the results are not saved (choose a folder with --out)")
    return None


def _note_no_runs(
    runs_dir: Path, only_dataset: str | None, task: str | None, *, has_features: bool
) -> None:
    """Print what is scored instead of runs; raise UsageError if there is nothing to score."""
    if only_dataset is not None:
        note(f"dataset: {only_dataset}, the only one in the cache")
    if has_features:
        return
    hint = "train one with byov-train --ratio 0.3"
    if task not in (ALL, None):
        raise UsageError(
            f"No run in {runs_dir}: {hint}, or score cached features with --features cls."
        )
    note(f"no run in {runs_dir} ({hint}): scoring cached features and time only")


def _score_files(
    path: Path, features_dir: Path, dataset: str | None, task: str, options: EvaluationOptions
) -> Results:
    reader = open_embeddings(
        path,
        read_manifest(features_dir, dataset) if dataset else None,
        source_videos(features_dir, dataset) if dataset else None,
    )
    options = replace(options, training_progression=True)
    return interruptible(lambda: compare_file(reader, [task], options, PROGRESS))


def _compare(readers: Sequence[EmbeddingReader], scope: Scope, *, skip_missing: bool) -> Results:
    """Compare readers, in parallel processes if there are many frames to score."""
    workers = rows_at_once(readers[0].manifest, scope.split, len(readers))
    work = partial(
        compare, readers, scope, skip_missing=skip_missing, workers=workers, progress=PROGRESS
    )
    if workers == 1:
        return interruptible(work)
    return run_stoppable(lambda stop: work(stop=stop), "interrupted")


def parse_ks(text: str) -> tuple[int, ...]:
    """Parse the value of --k, such as "5,10,15"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 7 and int(part) > 0 for part in parts):
        raise UsageError(f"--k {text}: expected positive integers, such as 5,10,15.")
    return tuple(sorted({int(part) for part in parts}))


def _choose_columns(
    features_dir: Path, dataset: str, encoder: str | None, wanted: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (encoder folder, column) for each value of --features; the column for merged:0.3 is
    "merged/0.3".
    """
    folder = choose_folder(features_dir, dataset, encoder)
    first = next(cached_files(folder), None)
    columns = {
        name.replace("/", ":"): name
        for name in (read_columns(first) if first else ())
        if name.startswith(("cls", "merged"))
    }
    names = [name.replace("/", ":") for name in dict.fromkeys(wanted)]
    if unknown := [name for name in names if name not in columns]:
        choices = ", ".join(columns) or "nothing"
        raise UsageError(f"--features {unknown[0]}: not in {folder}. Choose from {choices}.")
    return [(folder.name, columns[name]) for name in names]


def _stem(task: str, protocol: str | None, split: str) -> str:
    """Return the file name "results", followed by the task, protocol and split unless they are the
    defaults.
    """
    defaults = {ALL, ALL if task == ALL else TASKS[task].protocols[0], "test"}
    return "-".join(
        ["results", *(part for part in (task, protocol, split) if part and part not in defaults)]
    )


def _print_plan(
    scope: Scope,
    manifest: Manifest,
    runs: Sequence[RunRecord],
    columns: Sequence[tuple[str, str]],
) -> None:
    scored = [
        f"run {run.name} ({run.recipe}, {run.encoder} {run.column}, seed {run.seed})"
        for run in runs
    ]
    scored += [f"features {folder} {column}" for folder, column in columns]
    print(
        printable(
            f"byov-eval --task all would score {', '.join(scored) or 'the cached features'} on the "
            f"{scope.split} split of {manifest.dataset}:"
        )
    )
    print(f"  tasks      {', '.join(scope.tasks)}")
    print(f"  protocols  {', '.join(scope.protocols)}")
    print(f"To score one task, pass --task {' | '.join(TASKS)}.")
