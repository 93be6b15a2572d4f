"""What a flag that was left out means: what is unambiguous is used and said, else the choices are listed."""

from collections.abc import Sequence
from pathlib import Path

from byov.cache.contents import encoder_folders
from byov.cache.layout import cached_files, encoder_slug, ratio_key
from byov.cache.row_reader import read_columns
from byov.cache.runs import RunRecord
from byov.cli.command import UsageMistake
from byov.cli.messages import note


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
        if name == "merged" and 0 < float(ratio) <= 1:
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
