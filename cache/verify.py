"""Summary and complete check of the cache and the runs."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from byov.cache.digests import check_seal, check_weights
from byov.cache.embeddings import EMBED_AGAIN, read_embedding
from byov.cache.features import Header, check_same_identity, read_header
from byov.cache.hdf5 import EXTRACT_AGAIN, read_array
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import load_index, load_manifest
from byov.cache.runs import (
    CONFIG_NAME,
    LAST_MODEL_NAME,
    METRICS_NAME,
    MODEL_NAME,
    RunRecord,
    check_file,
    check_model,
    checkpoint_files,
    embeddings_folder,
    list_runs,
    read_run,
)
from byov.errors import CacheError

RESTORE = "restore it from a copy, or delete the run and train it again"


@dataclass(frozen=True)
class EncoderSummary:
    """Contents of one encoder's folder of a dataset."""

    dataset: str
    encoder: str
    folder: Path
    cached_videos: int
    dataset_videos: int
    dataset_pairs: int
    frames: int
    ratios: tuple[str, ...]  # ratios that every file has
    disk_bytes: int
    unreadable: int
    failures: int


def summarize(folder: Path) -> EncoderSummary:
    """Summarize an encoder's folder; files that are in the index and did not change are not opened."""
    manifest, index = load_manifest(folder.parent / "manifest.json"), load_index(folder.parent)
    indexed = index.files.get(folder.name, {})
    encoder = index.identities.get(folder.name, {}).get("encoder", "")
    frames, disk_bytes, unreadable, ratios = 0, 0, 0, list[frozenset[str]]()
    for path in cached_files(folder):
        try:
            file, known = path.stat(), indexed.get(path.stem)
            found = known if known and known.is_current(file) else read_header(path)
        except (CacheError, OSError):
            unreadable += 1
            continue
        if isinstance(found, Header):
            encoder = encoder or found.provenance.encoder
        ratios.append(frozenset(found.ratios))
        frames += found.frames
        disk_bytes += file.st_size
    return EncoderSummary(
        dataset=folder.parent.name,
        encoder=encoder or folder.name,
        folder=folder,
        cached_videos=len(ratios),
        dataset_videos=len(manifest.videos),
        dataset_pairs=len({video.pair for video in manifest.videos} - {None}),
        frames=frames,
        ratios=tuple(sorted(frozenset.intersection(*ratios), key=float)) if ratios else (),
        disk_bytes=disk_bytes,
        unreadable=unreadable,
        failures=len(read_failures(folder)),
    )


def failures_path(folder: Path) -> Path:
    return folder / "failures.json"


def read_failures(folder: Path) -> dict[str, str]:
    """Return video id → reason for the videos that could not be extracted."""
    try:
        raw = json.loads(failures_path(folder).read_text(encoding="utf-8"))
        return {str(video): str(reason) for video, reason in raw.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CacheError(f"{failures_path(folder)}: not readable ({error}); delete it") from error


@dataclass(frozen=True)
class Checked:
    """Result of checking one file."""

    path: Path
    problem: str | None = None
    remedy: str = ""
    covered: bool = True  # False for a file without a digest: edited by hand, or metrics of an unfinished run


def verify_all(features_dir: Path, runs_dir: Path, dataset: str | None = None) -> Iterator[Checked]:
    """Compare every file of the cache and of the runs with its digest; or those of one dataset only."""
    for manifest in _manifests(features_dir, dataset):
        yield _run_check(manifest, "run byov-extract again", _check_manifest)
        for folder in encoder_folders(features_dir, manifest.parent.name):
            yield from verify_folder(folder)
    for name in list_runs(runs_dir) if runs_dir.is_dir() else []:
        yield from verify_run(runs_dir, name, dataset)


def count_files(features_dir: Path, runs_dir: Path, dataset: str | None = None) -> int:
    """Return about how many files verify_all will check, for a progress bar."""
    folders = [manifest.parent for manifest in _manifests(features_dir, dataset)]
    in_runs = sum(1 for _ in runs_dir.rglob("*.h5")) if runs_dir.is_dir() else 0
    return sum(1 + sum(1 for _ in folder.rglob("*.h5")) for folder in folders) + in_runs


def _manifests(features_dir: Path, dataset: str | None) -> list[Path]:
    encoder_folders(features_dir, dataset)  # raises if there is no such cache
    return [path for path in sorted(features_dir.glob("*/manifest.json")) if dataset in (None, path.parent.name)]


def _check_manifest(path: Path) -> bool:
    load_manifest(path)
    return check_seal(path.read_bytes())


def verify_folder(folder: Path) -> Iterator[Checked]:
    """Check the feature files of an encoder's folder."""
    manifest = folder.parent / "manifest.json"
    try:
        frames = {Path(video.view, f"{video.id}.h5"): video.frames for video in load_manifest(manifest).videos}
    except CacheError:
        if not manifest.exists():
            raise
        frames = None  # verify_all reports it
    first: Header | None = None

    def check(path: Path) -> bool:
        nonlocal first
        header, name = read_header(path), path.relative_to(folder)
        for column in header.columns:
            read_array(path, column)
        check_same_identity(header, first or header)
        if frames is not None and name not in frames:
            raise CacheError(f"{path}: not in the manifest")
        if frames is not None and frames[name] != header.frames:
            raise CacheError(f"{path}: {header.frames} frames, {frames[name]} in the manifest")
        first = first or header
        return True

    for path in cached_files(folder):
        yield _run_check(path, EXTRACT_AGAIN, check)


def verify_run(runs_dir: Path, name: str, dataset: str | None = None) -> Iterator[Checked]:
    """Check all files of a run; nothing if it was trained on another dataset."""
    config = runs_dir / name / CONFIG_NAME
    try:
        run = read_run(runs_dir, name)
    except CacheError as error:
        yield Checked(config, _without_path(error, config), RESTORE)
        return
    if dataset not in (None, run.dataset):
        return
    yield Checked(config, covered=check_seal(config.read_bytes()))
    yield from _verify_models(run)
    yield from _verify_embeddings(run)


def _verify_models(run: RunRecord) -> Iterator[Checked]:
    resume = f"byov-train --run {run.name} --resume"
    remedies = {MODEL_NAME: RESTORE, LAST_MODEL_NAME: f"delete it and write it again with {resume}"}

    def check_checkpoint(path: Path) -> bool:
        found = check_weights(path)
        if found.identity != run.training.get("identity"):
            raise CacheError(f"{path}: a checkpoint of another run ({found.origin})")
        return found.sealed

    def check_weights_file(path: Path) -> bool:
        return check_model(run.folder, run.training, path.name).sealed

    for name, remedy in remedies.items():
        if (run.folder / name).exists():
            yield _run_check(run.folder / name, remedy, check_weights_file)
    for path in checkpoint_files(run):
        yield _run_check(path, f"delete it; {resume} continues from the previous one", check_checkpoint)
    if (run.folder / METRICS_NAME).exists():
        remedy = "restore it from a copy; only the curves of the report need it"
        yield _run_check(run.folder / METRICS_NAME, remedy, lambda path: check_file(path, run.training))


def _verify_embeddings(run: RunRecord) -> Iterator[Checked]:
    try:
        trained: str | None = check_model(run.folder, run.training).sha256
    except CacheError:
        trained = None  # _verify_models reports it
    for untrained, trimmed in product((False, True), repeat=2):
        check = partial(_check_embedding, model_sha256=run.untrained_sha256 if untrained else trained)
        for path in cached_files(embeddings_folder(run.folder, untrained=untrained, trimmed=trimmed)):
            yield _run_check(path, f"byov-train --run {run.name} --embed-only", check)


def _check_embedding(path: Path, model_sha256: str | None) -> bool:
    _, source = read_embedding(path)
    read_array(path, "pts_seconds", remedy=EMBED_AGAIN)
    if model_sha256 is not None and source.model_sha256 != model_sha256:
        raise CacheError(f"{path}: of model {source.model_sha256[:12]}, the run's is {model_sha256[:12]}")
    return True


def _run_check(path: Path, remedy: str, check: Callable[[Path], bool]) -> Checked:
    """Call `check`, which raises if the file is damaged and returns whether a digest covers it."""
    try:
        return Checked(path, covered=check(path))
    except (CacheError, OSError) as error:
        return Checked(path, _without_path(error, path), remedy)


def _without_path(error: Exception, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
