"""The check of everything: manifests, features, runs with their models, checkpoints, metrics and embeddings."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from byov.cache.digests import check_seal, check_weights
from byov.cache.embeddings import EMBED_AGAIN, read_embedding
from byov.cache.features import Header, check_same_identity, read_header
from byov.cache.hdf5 import BLOCK_ROWS, EXTRACT_AGAIN, open_file, read_array, read_columns, stored_digest
from byov.cache.header_index import HeaderIndex
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import (
    CONFIG_NAME,
    FILES_KEY,
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


@dataclass(frozen=True)
class EncoderSummary:
    """One encoder's folder of one dataset."""

    dataset: str
    encoder: str
    folder: Path
    cached_videos: int
    dataset_videos: int
    dataset_pairs: int
    frames: int
    ratios: tuple[str, ...]  # those that every file has
    disk_bytes: int
    unreadable: int
    failures: int


def summarize(folder: Path) -> EncoderSummary:
    videos, frames, unreadable, disk_bytes = 0, 0, 0, 0
    encoder, ratios = folder.name, frozenset[str]()
    with HeaderIndex(folder) as index:
        for path in cached_files(folder):
            try:
                disk_bytes += path.stat().st_size
                header = index.read(path).header
            except (CacheError, OSError):
                unreadable += 1
                continue
            encoder = encoder if videos else header.provenance.encoder
            ratios = ratios.intersection(header.ratios) if videos else frozenset(header.ratios)
            videos += 1
            frames += header.frames
    manifest = load_manifest(folder.parent / "manifest.json")
    return EncoderSummary(
        dataset=folder.parent.name,
        encoder=encoder,
        folder=folder,
        cached_videos=videos,
        dataset_videos=len(manifest.videos),
        dataset_pairs=len({video.pair for video in manifest.videos} - {None}),
        frames=frames,
        ratios=tuple(sorted(ratios, key=float)),
        disk_bytes=disk_bytes,
        unreadable=unreadable,
        failures=len(read_failures(folder)),
    )


def failures_path(folder: Path) -> Path:
    return folder / "failures.json"


def read_failures(folder: Path) -> dict[str, str]:
    """Video id → reason, of the videos that the last run over them could not extract."""
    try:
        raw = json.loads(failures_path(folder).read_text(encoding="utf-8"))
        return {str(video): str(reason) for video, reason in raw.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CacheError(f"{failures_path(folder)}: not readable ({error}); delete it") from error


def check_digests(path: Path) -> None:
    """Raise unless all arrays of a file are as they were written; block by block, whatever their size."""
    with open_file(path) as file:
        for name in read_columns(path):
            digest = hashlib.sha256()
            for first in range(0, file[name].shape[0], BLOCK_ROWS):
                digest.update(file[name][first : first + BLOCK_ROWS].tobytes())
            if digest.hexdigest() != stored_digest(file, name):
                raise CacheError(f"{path}: {name} does not match its digest; delete the file and extract again")


@dataclass(frozen=True)
class Checked:
    """One file: what is wrong with it and what to do, or nothing."""

    path: Path
    problem: str | None = None
    remedy: str = ""
    covered: bool = True  # False: written without a digest, by byov 0.2 or before or by other means; so far as it goes
    growing: bool = False  # of a run that is not finished: not covered, as its digest is taken when training ends


def verify_all(features_dir: Path, runs_dir: Path, dataset: str | None = None) -> Iterator[Checked]:
    """Every file of the cache and of the runs, read from end to end; of one dataset, or of all."""
    for manifest in _manifests(features_dir, dataset):
        yield verify_manifest(manifest)
        for folder in encoder_folders(features_dir, manifest.parent.name):
            yield from verify_folder(folder)
    for name in list_runs(runs_dir) if runs_dir.is_dir() else []:
        yield from verify_run(runs_dir, name, dataset)


def count_files(features_dir: Path, runs_dir: Path, dataset: str | None = None) -> int:
    """About how many verify_all will look at: for a progress bar."""
    folders = [manifest.parent for manifest in _manifests(features_dir, dataset)]
    return sum(1 + sum(1 for _ in folder.rglob("*.h5")) for folder in folders) + (
        sum(1 for _ in runs_dir.rglob("*.h5")) if runs_dir.is_dir() else 0
    )


def _manifests(features_dir: Path, dataset: str | None) -> list[Path]:
    encoder_folders(features_dir, dataset)  # raises if there is no such cache
    return [path for path in sorted(features_dir.glob("*/manifest.json")) if dataset in (None, path.parent.name)]


def verify_manifest(path: Path) -> Checked:
    return _checked(path, "run byov-extract again", partial(_check_manifest, path))


def _check_manifest(path: Path) -> bool:
    load_manifest(path)
    return check_seal(path.read_bytes())


def verify_folder(folder: Path) -> Iterator[Checked]:
    """The feature files of an encoder's folder."""
    try:
        manifest: Manifest | None = load_manifest(folder.parent / "manifest.json")
    except CacheError:
        if not (folder.parent / "manifest.json").exists():
            raise
        manifest = None  # verify_manifest says so
    videos = () if manifest is None else manifest.videos
    entries: dict[tuple[str, str], VideoEntry] = {(video.view, video.id): video for video in videos}
    first: Header | None = None
    for path in cached_files(folder):
        try:
            header = read_header(path)
            check_digests(path)
            if manifest is not None:
                _check_against_manifest(header, entries.get((path.parent.name, path.stem)))
            first = first or header
            check_same_identity(header, first)
        except CacheError as error:
            yield Checked(path, _without_path(error, path), _remedy_of_features(error))
        else:
            yield Checked(path, covered=header.provenance.schema_version > 1)


def verify_run(runs_dir: Path, name: str, dataset: str | None = None) -> Iterator[Checked]:
    """A run's record, and all that it has written; nothing if it is of another dataset."""
    folder = runs_dir / name
    try:
        run = read_run(runs_dir, name)
    except CacheError as error:
        remedy = "restore it from a copy, or delete the run and train it again"
        yield Checked(folder / CONFIG_NAME, _without_path(error, folder / CONFIG_NAME), remedy)
        return
    if dataset not in (None, run.dataset):
        return
    yield Checked(folder / CONFIG_NAME, covered=check_seal((folder / CONFIG_NAME).read_bytes()))
    yield from _verify_models(run)
    yield from _verify_embeddings(run)


def _verify_models(run: RunRecord) -> Iterator[Checked]:
    again = f"restore it from a copy, or delete the run and train it again under the name {run.name}"
    resume = f"byov-train --run {run.name} --resume"
    for name, remedy in ((MODEL_NAME, again), (LAST_MODEL_NAME, f"delete it and write it again with {resume}")):
        path = run.folder / name
        if path.exists():
            yield _checked(path, remedy, partial(_check_model, path, run.training))
    for path in checkpoint_files(run):
        remedy = f"delete it; {resume} goes on from the one before"
        yield _checked(path, remedy, partial(_check_checkpoint, path, run.training))
    metrics = run.folder / METRICS_NAME
    if metrics.exists():
        remedy = "restore it from a copy; only the curves of the report need it"
        checked = _checked(metrics, remedy, partial(_check_metrics, metrics, run.training))
        yield replace(checked, growing=not checked.covered and check_seal(run.config.read_bytes()))


def _check_model(path: Path, training: Mapping[str, Any]) -> bool:
    return check_model(path.parent, training, path.name).sealed


def _check_checkpoint(path: Path, training: Mapping[str, Any]) -> bool:
    found = check_weights(path)
    if found.identity != training.get("identity"):
        raise CacheError(f"{path}: a checkpoint of another run ({found.origin})")
    return found.sealed


def _check_metrics(path: Path, training: Mapping[str, Any]) -> bool:
    check_file(path, training)
    return FILES_KEY in training


def _verify_embeddings(run: RunRecord) -> Iterator[Checked]:
    remedy = f"byov-train --run {run.name} --embed-only"
    try:
        trained: str | None = check_model(run.folder, run.training).sha256
    except CacheError:
        trained = None  # said already
    for untrained in (False, True):
        expected = run.untrained_sha256 if untrained else trained
        for trimmed in (False, True):
            folder = embeddings_folder(run.folder, untrained=untrained, trimmed=trimmed)
            for path in cached_files(folder):
                yield _checked(path, remedy, partial(_check_embedding, path, expected))


def _check_embedding(path: Path, model_sha256: str | None) -> bool:
    _, source = read_embedding(path)
    read_array(path, "pts_seconds", remedy=EMBED_AGAIN)
    if model_sha256 is not None and source.model_sha256 != model_sha256:
        raise CacheError(f"{path}: of model {source.model_sha256[:12]}, the run's is {model_sha256[:12]}")
    return source.schema_version > 1


def _checked(path: Path, remedy: str, check: Callable[[], bool]) -> Checked:
    """check: raises what is wrong, and says whether a digest covered all of it."""
    try:
        return Checked(path, covered=check())
    except (CacheError, OSError) as error:
        return Checked(path, _without_path(error, path), remedy)


def _check_against_manifest(header: Header, entry: VideoEntry | None) -> None:
    if entry is None:
        raise CacheError(f"{header.path}: not in the manifest")
    if entry.frames != header.frames:
        raise CacheError(f"{header.path}: {header.frames} frames, {entry.frames} in the manifest")


def _remedy_of_features(error: CacheError) -> str:
    if "manifest" in str(error):
        return "run byov-extract again, which brings the manifest up to date"
    return EXTRACT_AGAIN


def _without_path(error: Exception, path: Path) -> str:
    """What is wrong; the path stands beside it."""
    return str(error).removeprefix(f"{path}: ")
