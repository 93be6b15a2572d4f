"""byov-eval: how good frame embeddings are, by the benchmark's own measures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from byov.cache.hdf5 import read_columns
from byov.cache.layout import cached_files, encoder_folders, encoder_slug, ratio_key
from byov.cache.manifest import Manifest
from byov.cache.runs import BYOV, RunRecord, choose_runs
from byov.cli import command
from byov.cli.command import BARS, UsageMistake, interruptible, note
from byov.cli.score_table import deliver
from byov.cli.shares import refuse_percent
from byov.cli.unfinished import say_unfinished
from byov.evaluate.embedding_files import is_embedded
from byov.evaluate.embeddings import read_manifest
from byov.evaluate.evaluation import (
    Scope,
    compare,
    evaluate_file,
    frozen_columns,
    readers_to_compare,
    require_labels,
    scope_of_all,
    scope_of_runs,
)
from byov.evaluate.protocols import PROTOCOLS, ScoredSplit
from byov.evaluate.published import published_rows
from byov.evaluate.tasks import TASKS, EvaluationOptions
from byov.text import printable

ALL = "all"
if TYPE_CHECKING:
    TaskChoice = str
else:  # the tasks' own list, which a type checker cannot read
    TaskChoice = Literal[(*TASKS, ALL)]
ProtocolChoice = Literal["standard", "trimmed", "both"]
DEFAULTS = EvaluationOptions()

app = command.new_app()


@app.command()
def evaluate(
    task: Annotated[
        TaskChoice | None,
        typer.Option(help="What to score; all: what the dataset has labels for, but few-shot, beside baselines."),
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option(help="A run; several give mean and deviation. Default: the newest.")
    ] = None,
    features: Annotated[
        list[str] | None, typer.Option(help="Cached features as they are: cls, merged:0.3, merged:1.0, ...")
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="An .npz file of {train,test}_{embeddings,labels,lengths,is_ego}, anybody's; or what byov-embed has "
            "written, a file or a folder."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The dataset, where no run says it; of byov-embed's files, for their labels.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="The encoder of --features.")] = None,
    split: Annotated[ScoredSplit, typer.Option(help="test, or val for choosing.")] = "test",
    protocol: Annotated[
        ProtocolChoice | None,
        typer.Option(
            help="Whole videos, two sub-clips of each in their place, or both. Default standard; for all, both."
        ),
    ] = None,
    k: Annotated[str, typer.Option("--k", help="K of map@K.")] = ",".join(map(str, DEFAULTS.ks)),
    tau_stride: Annotated[
        int, typer.Option(min=1, help="Kendall's tau looks at every n-th frame.")
    ] = DEFAULTS.tau_stride,
    time_column: Annotated[
        bool,
        typer.Option("--time-column", help="Progression sees the frame index too, as AE2 has it for Pour Liquid."),
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamplings of the videos for 95% intervals, like 1000; 0: none.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of few-shot draws and of resampling.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results.json, .md and .tex. Default: the run's, if there is one run."),
    ] = None,
    as_json: command.Json = False,
    runs_dir: command.RunsDir = Path("runs"),
    features_dir: command.FeaturesDir = Path("features"),
    _version: command.Version = False,
) -> None:
    """Score frame embeddings: of runs, of cached features, of an .npz file. Without --task, say what would be done."""
    options = EvaluationOptions(
        ks=parse_ks(k), tau_stride=tau_stride, time_column=time_column, seed=seed, bootstrap=bootstrap
    )
    if task is None and (embeddings is not None or as_json):
        raise UsageMistake(f"which task? --task {' | '.join((*TASKS, ALL))}")
    if embeddings is not None and task is not None:
        known = dataset if is_embedded(embeddings) else None  # whose videos they are
        other = None if known else dataset
        _refuse_with_npz(run=run, features=features, dataset=other, encoder=encoder, protocol=protocol, split=split)
        manifest = read_manifest(features_dir, known) if known else None
        _score_npz(embeddings, task, options, manifest, out, as_json=as_json)
        return
    runs = choose_runs(runs_dir, run or [], dataset) if run or not features else []
    say_unfinished(runs)
    say_differences(runs)
    if not runs and not features:
        _say_no_run(runs_dir, task)
    name = choose_dataset(features_dir, dataset, runs)
    columns = choose_columns(features_dir, name, features or [], encoder, runs)
    manifest = read_manifest(features_dir, name)
    scope = _scope(manifest, task, protocol, split, options)
    if task is None:
        _explain(scope, manifest, runs, columns)
        return
    if task != ALL:
        require_labels(manifest, split, scope.tasks)
    scope = scope_of_runs(scope, runs_dir, features_dir, runs, explicit=protocol is not None)
    compared = task == ALL and not features
    frozen = frozen_columns(features_dir, name, [record.column for record in runs]) if compared else []
    if compared and not any(folder.startswith("random--") for folder, _ in frozen):
        note(f"no row of Random features: {_extraction(name, 'random/clip-vit-base-patch16')}")
    readers = readers_to_compare(runs_dir, features_dir, name, runs, requested=columns, baselines=frozen)
    results = interruptible(lambda: compare(manifest, readers, scope, BARS))
    folder = out or (runs[0].folder if len(runs) == 1 and not features else None)
    deliver(results.to_dict(), results.tables(), folder, _stem(task, protocol, split), as_json=as_json)


def parse_ks(text: str) -> tuple[int, ...]:
    """ "5,10,15" → (5, 10, 15)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 7 and int(part) > 0 for part in parts):
        raise UsageMistake(f"--k {text}: expected whole numbers from 1, like 5,10,15")
    return tuple(sorted({int(part) for part in parts}))


def parse_column(text: str) -> str:
    """ "merged:0.3" → "merged/0.3", the name in the cache."""
    name, _, ratio = text.replace("/", ":").partition(":")
    try:
        if (name, ratio) == ("cls", ""):
            return "cls"
        if name == "merged":
            refuse_percent("--features", float(ratio), prefix="merged:")
            return f"merged/{ratio_key(float(ratio))}"
    except ValueError:
        pass
    raise UsageMistake(f"--features {text}: expected cls or merged:RATIO, like merged:0.3")


def choose_dataset(features_dir: Path, wanted: str | None, runs: Sequence[RunRecord]) -> str:
    """The dataset by name, or that of the runs, or the only one in the cache."""
    if runs:
        return runs[0].dataset
    folders = encoder_folders(features_dir, wanted)
    if wanted is not None:
        return wanted
    there = list(dict.fromkeys(folder.parent.name for folder in folders))
    if not there:
        raise UsageMistake(f"{features_dir} holds no features; make some with byov-extract --dataset demo")
    if len(there) > 1:
        raise UsageMistake(f"which dataset? --dataset {' | '.join(there)}")
    note(f"dataset: {there[0]}, the only one in the cache (choose with --dataset)")
    return there[0]


def choose_columns(
    features_dir: Path, dataset: str, columns: Sequence[str], encoder: str | None, runs: Sequence[RunRecord]
) -> list[tuple[str, str]]:
    """(encoder folder, column) of the features that were asked for."""
    if not columns:
        if encoder is not None:
            raise UsageMistake("--encoder goes with --features cls or --features merged:RATIO")
        return []
    folder = _choose_encoder(features_dir, dataset, encoder, runs)
    first = next(cached_files(folder), None)
    if first is None:
        raise UsageMistake(f"{folder} holds no features; extract them with byov-extract --dataset {dataset}")
    there = [name for name in read_columns(first) if name == "cls" or name.startswith("merged/")]
    wanted = list(dict.fromkeys(map(parse_column, columns)))
    for column in wanted:
        if column not in there:
            shown = ", ".join(name.replace("/", ":") for name in there)
            raise UsageMistake(f"{folder} has no {column.replace('/', ':')}; it has {shown}")
    return [(folder.name, column) for column in wanted]


def _choose_encoder(features_dir: Path, dataset: str, encoder: str | None, runs: Sequence[RunRecord]) -> Path:
    folders = {folder.name: folder for folder in encoder_folders(features_dir, dataset)}
    names = " | ".join(name.replace("--", "/", 1) for name in folders)
    if encoder is not None:
        slug = encoder if encoder in folders else encoder_slug(encoder)
        if slug not in folders:
            raise UsageMistake(f"no features of {encoder} for {dataset}; --encoder {names}")
        return folders[slug]
    of_runs = {run.encoder_folder for run in runs} & folders.keys()
    chosen = of_runs or folders.keys()
    if len(chosen) != 1:
        raise UsageMistake(f"which encoder's features? --encoder {names}")
    name = next(iter(chosen))
    note(f"encoder: {name}, {'that of the run' if of_runs else 'the only one of ' + dataset} (choose with --encoder)")
    return folders[name]


def say_differences(runs: Sequence[RunRecord]) -> None:
    """Who expects one mean over all runs is told why there is none."""
    labels = [run.label for run in runs]
    different = {
        "method": {label if what == "method" else BYOV for what, label in labels},
        "recipe": {label for what, label in labels if what == "recipe"},
        "encoder": {run.encoder for run in runs},
        "column": {run.column for run in runs},
    }
    for what, values in different.items():
        if len(values) > 1:
            told = ", ".join(sorted(values))
            note(f"the runs differ in {what} ({told}): there is no mean over all of them")


def _extraction(dataset: str, encoder: str) -> str:
    """What extracts a dataset. One's own videos have a name in the cache, and none that byov-extract knows."""
    from byov.data.registry import READERS

    if dataset in READERS:
        return f"byov-extract --dataset {dataset} --encoder {encoder}"
    return f"byov-extract --manifest FILE or --folder FOLDER, as {dataset} was extracted, with --encoder {encoder}"


def _say_no_run(runs_dir: Path, task: str | None) -> None:
    """A single task needs embeddings to score; all tasks say something of the dataset without any."""
    make = "make one with byov-train --ratio 0.3"
    if task in (ALL, None):
        note(f"no run in {runs_dir} ({make}): only cached features and Time only")
    else:
        raise UsageMistake(f"no run in {runs_dir}; {make}, or score cached features with --features cls")


def _scope(
    manifest: Manifest, task: str | None, protocol: str | None, split: ScoredSplit, options: EvaluationOptions
) -> Scope:
    scope = scope_of_all(manifest, split, options)
    if task is not None and task != ALL:
        scope = replace(scope, tasks=(task,), protocols=("standard",))
    if protocol is not None:
        chosen = PROTOCOLS if protocol == "both" else tuple(one for one in PROTOCOLS if one == protocol)
        scope = replace(scope, protocols=chosen)
    return scope


def _score_npz(
    path: Path,
    task: str,
    options: EvaluationOptions,
    manifest: Manifest | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    options, tasks = replace(options, training_progression=True), None if task == ALL else [task]
    results = interruptible(lambda: evaluate_file(path, tasks, options, BARS, manifest))
    deliver(results.file_to_dict(), results.tables(), out, _stem(task, None, "test"), as_json=as_json)


def _stem(task: str, protocol: str | None, split: str) -> str:
    """results, and which task, protocol and split where they are not all, the usual ones and test."""
    usual = "both" if task == ALL else "standard"
    parts = [task if task != ALL else None, protocol if protocol != usual else None, split if split != "test" else None]
    return "-".join(["results", *(part for part in parts if part)])


def _explain(scope: Scope, manifest: Manifest, runs: Sequence[RunRecord], columns: Sequence[tuple[str, str]]) -> None:
    scored = [f"run {run.name} ({run.recipe}, {run.encoder} {run.column}, seed {run.seed})" for run in runs]
    scored += [f"features {folder} {column}" for folder, column in columns]
    beside = [
        *([] if columns else ["cached features"]),
        *(["the run's features standardized"] if runs and not columns else []),
        "Time only",
        *(["the untrained model"] if runs else []),
        *(["what the paper has published"] if published_rows(manifest.dataset) else []),
    ]
    lines = [
        f"byov-eval --task all would score {', '.join(scored) or 'the frozen features'} on the {scope.split} split of "
        f"{manifest.dataset}:",
        f"  tasks      {', '.join(scope.tasks)}",
        f"  protocols  {', '.join(scope.protocols)}",
        f"  beside     {', '.join(beside)}",
        *([f"  files      {runs[0].folder}/results.json, .md, .tex"] if len(runs) == 1 else []),
        f"one task: --task {' | '.join(TASKS)}",
    ]
    for line in lines:
        print(printable(line))


def _refuse_with_npz(*, protocol: str | None, split: str, **others: object) -> None:
    for option, value in others.items():
        if value:
            why = "a file brings its own videos"
            if option == "dataset":  # of an .npz of many videos; with byov-embed's files it goes
                why = "a file of this layout brings its own videos and labels; "
                why += "--dataset goes with what byov-embed writes"
            raise UsageMistake(f"--{option} does not go with --embeddings: {why}")
    if split != "test":
        raise UsageMistake(f"--split {split} does not go with --embeddings: a file has train and test videos")
    if protocol not in (None, "standard"):
        raise UsageMistake(
            f"--protocol {protocol} does not go with --embeddings: sub-clips have to be embedded on their own"
        )


def main() -> None:
    command.run(app)
