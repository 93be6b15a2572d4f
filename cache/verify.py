"""Summaries and integrity checks of the feature cache and the runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

from byov.cache.digests import SEAL_NAME, check_weights
from byov.cache.embeddings import EMBED_AGAIN, check_current, check_training_data
from byov.cache.features import (
    Header,
    cached_header,
    check_same_identity,
    check_version,
    read_header,
)
from byov.cache.hdf5 import EXTRACT_AGAIN, read_array
from byov.cache.layout import (
    Protocol,
    cached_files,
    embedded_parts,
    encoder_folders,
    manifest_path,
    video_path,
)
from byov.cache.manifest import VideoEntry, load_manifest
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
    embedding_path,
    embeddings_folder,
    read_run,
)
from byov.errors import CacheError, StaleError
from byov.files import MAX_MANIFEST_BYTES, read_json

FAILURES_NAME = "failures.json"
RESTORE = "restore it from a copy, or delete the run and train it again"


def summarize(folder: Path) -> dict[str, Any]:
    """Summarize the contents of an encoder folder."""
    manifest = load_manifest(folder.parent / "manifest.json")
    files = list(cached_files(folder))
    headers = []
    for path in files:
        with suppress(CacheError):
            headers.append(read_header(path))
    ratios = [frozenset(header.ratios) for header in headers]
    return {
        "dataset": folder.parent.name,
        "encoder": headers[0].provenance.encoder if headers else folder.name,
        "folder": str(folder),
        "cached_videos": len(headers),
        "dataset_videos": len(manifest.videos),
        "dataset_pairs": len({video.pair for video in manifest.videos} - {None}),
        "frames": sum(header.frames for header in headers),
        # Present in every file.
        "ratios": sorted(frozenset.intersection(*ratios), key=float) if ratios else [],
        "disk_bytes": sum(header.path.stat().st_size for header in headers),
        "unreadable": len(files) - len(headers),
        "failures": len(read_failures(folder)),
    }


def read_failures(folder: Path) -> dict[str, str]:
    """Return a dict that maps the ids of videos that could not be extracted to the reasons."""
    path = folder / FAILURES_NAME
    try:
        raw = read_json(path)
        return {str(video): str(reason) for video, reason in raw.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise CacheError(f"{path}: not readable ({error}); delete it") from error


@dataclass(frozen=True)
class Checked:
    """Result of checking one file."""

    path: Path
    problem: str | None = None
    remedy: str = ""
    # False for files without a digest: edited by hand, or metrics of an unfinished run.
    covered: bool = True


def verify_all(features_dir: Path, runs_dir: Path, dataset: str | None = None) -> Iterator[Checked]:
    """Verify the digests of all files in the cache and the runs, or only those of one dataset."""
    folders = {path.parents[0] for path in features_dir.glob("[!.]*/manifest.json")}
    # Include datasets whose manifest was deleted.
    folders |= {path.parents[2] for path in features_dir.glob("[!.]*/*/*/*.h5")}
    chosen = sorted(folder for folder in folders if dataset in (None, folder.name))
    if not chosen:
        encoder_folders(features_dir, dataset)  # raises if there is no such cache
    for folder in chosen:
        yield _run_check(folder / "manifest.json", "run byov-extract again", _check_manifest)
        for encoder in sorted(
            path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
        ):
            yield from verify_folder(encoder)
    names = {
        path.parent.name
        for path in runs_dir.glob("[!.]*/*")
        if path.name in (CONFIG_NAME, MODEL_NAME)
    }
    for name in sorted(names):
        yield from verify_run(runs_dir, name, features_dir, dataset)


def _check_manifest(path: Path) -> bool:
    load_manifest(path)
    return _is_sealed(path)


def _is_sealed(path: Path) -> bool:
    return SEAL_NAME in read_json(path, MAX_MANIFEST_BYTES)


def verify_folder(folder: Path) -> Iterator[Checked]:
    """Check the feature files in an encoder folder, and that every video in the manifest has
    one.
    """
    try:
        videos = load_manifest(folder.parent / "manifest.json").videos
    except CacheError:
        videos = None  # verify_all reports problems with the manifest
    entries = {video_path(folder, video.view, video.id): video for video in videos or ()}
    first: Header | None = None

    def check(path: Path) -> bool:
        nonlocal first
        header = cached_header(folder, path.parent.name, path.stem)
        for column in header.columns:
            read_array(path, column)
        check_same_identity(header, first or header)
        if videos is not None and path not in entries:
            raise CacheError(f"{path}: not in the manifest")
        if videos is not None and entries[path].frames != header.frames:
            raise CacheError(
                f"{path}: {header.frames} frames, but {entries[path].frames} in the manifest"
            )
        if videos is not None:
            check_version(header, entries[path])
        first = first or header
        return True

    present = list(cached_files(folder))
    for path in present:
        yield _run_check(path, EXTRACT_AGAIN, check)
    if present:
        failed: dict[str, str] = {}
        with suppress(CacheError):  # if failures.json is damaged, assume no failures
            failed = read_failures(folder)
        expected = [
            path for path, entry in entries.items() if entry.frames and entry.id not in failed
        ]
        yield from _check_absent(folder, expected, present, "run byov-extract")


def _check_absent(
    folder: Path, expected: Sequence[Path], present: Sequence[Path], remedy: str
) -> Iterator[Checked]:
    absent = [path for path in expected if path not in set(present)]
    if absent:
        first = absent[0].relative_to(folder)
        yield Checked(
            folder, f"{len(absent)} of {len(expected)} files are missing (first: {first})", remedy
        )


def verify_run(
    runs_dir: Path, name: str, features_dir: Path, dataset: str | None = None
) -> Iterator[Checked]:
    """Check all files of a run, unless it was trained on another dataset."""
    config = runs_dir / name / CONFIG_NAME
    try:
        run = read_run(runs_dir, name)
    except CacheError as error:
        yield Checked(config, _without_path(error, config), RESTORE)
        return
    if dataset not in (None, run.dataset):
        return
    manifest = None
    with suppress(CacheError):  # verify_all reports problems with the manifest
        manifest = load_manifest(manifest_path(features_dir, run.dataset))

    def check(path: Path) -> bool:
        if manifest and FILES_KEY in run.training:
            check_training_data(run, features_dir, manifest)
        return _is_sealed(path)

    yield _run_check(config, "", check)
    yield from _verify_models(run)
    yield from _verify_embeddings(run, features_dir, manifest.videos if manifest else ())


def _verify_models(run: RunRecord) -> Iterator[Checked]:
    resume = f"byov-train --run {run.name} --resume"
    remedies = {
        MODEL_NAME: RESTORE,
        LAST_MODEL_NAME: f"delete it and recreate it with {resume}",
        METRICS_NAME: f"recreate it with {resume}, or restore it from a copy",
    }

    def check(path: Path) -> bool:
        if path.name == METRICS_NAME:
            return check_file(path, run.training)
        if path.name in remedies:
            return bool(check_model(run.folder, run.training, path.name).metadata)
        if not check_weights(path, run.training).metadata:
            raise CacheError(f"{path}: without a digest, so it was damaged or not written by byov")
        return True

    for name, remedy in remedies.items():
        if (run.folder / name).exists() or (name == MODEL_NAME and FILES_KEY in run.training):
            yield _run_check(run.folder / name, remedy, check)
    for path in checkpoint_files(run):
        yield _run_check(path, f"delete it; {resume} continues from the previous one", check)


def _verify_embeddings(
    run: RunRecord, features_dir: Path, videos: Sequence[VideoEntry]
) -> Iterator[Checked]:
    """Check a run's embeddings, and that none are missing; users may delete folders other than
    embeddings/.
    """
    trained = None
    entries: dict[tuple[str, str], VideoEntry] = {(video.view, video.id): video for video in videos}
    remedy = f"byov-train --run {run.name} --embed-only"
    with suppress(CacheError):  # _verify_models reports problems with the model
        trained = check_model(run.folder, run.training).sha256

    def check(path: Path) -> bool:
        for column in ("embedding", "pts_seconds"):
            read_array(path, column, remedy=EMBED_AGAIN)
        is_trimmed = path.parents[1].name.endswith("-trimmed")
        video = path.stem.rpartition("@")[0] if is_trimmed else path.stem
        entry = entries.get((path.parent.name, video))
        if not entries:  # verify_all reports problems with the manifest
            return True
        if entry is None:
            raise StaleError(f"{path}: its video is not in the manifest")
        check_current(
            path,
            entry,
            run,
            features_dir,
            run.untrained_sha256 if "untrained" in path.parents[1].name else trained,
        )
        return True

    features = features_dir / run.dataset / run.encoder_folder
    for untrained, protocol in product((False, True), get_args(Protocol)):
        folder = embeddings_folder(run.folder, protocol, untrained=untrained)
        present = list(cached_files(folder))
        for path in present:
            yield _run_check(path, remedy, check)
        if FILES_KEY in run.training and (
            folder.is_dir() or (protocol, untrained) == ("standard", False)
        ):
            expected = [
                embedding_path(folder, video.view, video.id, clip)
                for video in videos
                if video.frames and video_path(features, video.view, video.id).is_file()
                for part, clip in embedded_parts(
                    run.dataset, video.view, video.id, video.split, video.frames
                )
                if part == protocol
            ]
            yield from _check_absent(folder, expected, present, remedy)


def _run_check(path: Path, remedy: str, check: Callable[[Path], bool]) -> Checked:
    """Call `check`, which raises an error if the file is damaged and returns whether it has a
    digest.
    """
    try:
        return Checked(path, covered=check(path))
    except (CacheError, OSError) as error:
        return Checked(path, _without_path(error, path), remedy)


def _without_path(error: Exception, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
