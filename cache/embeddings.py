"""Embedding files, one per video or sub-clip of a run, and checks that they are up to date."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from byov.cache.digests import json_sha256
from byov.cache.features import BaseProvenance, video_digests
from byov.cache.hdf5 import RowWriter, open_file, read_array, read_header_attributes
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.runs import RunRecord
from byov.errors import StaleError
from byov.records import READ_FROM_FILE

EMBED_AGAIN = "recompute it with byov-train --run NAME --embed-only"


@dataclass(frozen=True, kw_only=True, config=READ_FROM_FILE)
class EmbeddingProvenance(BaseProvenance):
    """Model and features that a video's embeddings were computed from.

    The view is "" if byov-embed was called without --view.
    """

    run: str
    model_sha256: str  # digest of the model file
    dataset: str
    column: str  # column of the feature file, such as "merged/0.3"
    column_sha256: str
    first_frame: int  # index of the first frame in the video; 0 unless it is a sub-clip
    # Digest of the video file; "" in runs, because the feature files contain it.
    source_sha256: str = ""
    times_sha256: str = ""  # digest of the frame times of the whole video; "" outside of runs


def write_embedding(
    path: Path,
    embedding: NDArray[np.float32],
    pts_seconds: NDArray[np.float64],
    source: EmbeddingProvenance,
) -> None:
    """Write the embeddings `(T, D)` and frame times `(T,)` of a video."""
    with RowWriter(path) as rows:
        rows.append({"embedding": embedding, "pts_seconds": pts_seconds})
        rows.finish(asdict(source) | {"complete": True})


def read_embedding(path: Path) -> tuple[NDArray[np.float32], EmbeddingProvenance]:
    """Read the embeddings `(T, D)` of a video and their provenance."""
    source = read_source(path)
    return read_array(path, "embedding", remedy=EMBED_AGAIN), source


def read_source(path: Path) -> EmbeddingProvenance:
    """Read the provenance of an embedding file without reading the embeddings."""
    with open_file(path, EMBED_AGAIN) as file:
        return EmbeddingProvenance(**read_header_attributes(file))


def check_current(
    path: Path, entry: VideoEntry, run: RunRecord, features_dir: Path, model_sha256: str | None
) -> EmbeddingProvenance:
    """Check that an embedding file of a run is up to date, and return its provenance.

    Raises StaleError unless the file contains the video `entry` and the frames given by its path,
    embedded from the current features with the model whose digest is `model_sha256` (None to accept
    any model).
    """
    source = read_source(path)
    first_frame = "0"
    if path.parents[1].name.endswith("-trimmed"):
        first_frame = path.stem.rpartition("@")[2].partition("-")[0]
    folder = features_dir / run.dataset / run.encoder_folder
    features = video_path(folder, entry.view, entry.id)
    if not features.is_file():
        raise StaleError(
            f"{path}: cannot be checked without {features}; run byov-extract --dataset "
            f"{run.dataset}"
        )
    column_sha256, times_sha256 = video_digests(folder, entry, run.column, "pts_seconds")
    expected = {
        "model_sha256": model_sha256 or source.model_sha256,
        "dataset": run.dataset,
        "view": entry.view,
        "video": entry.id,
        "first_frame": first_frame,
        "column": run.column,
        "column_sha256": column_sha256,
        "times_sha256": times_sha256,
    }
    reasons = {
        "model_sha256": "the model",
        "column_sha256": f"{run.column} in {features}",
        "times_sha256": f"pts_seconds in {features}",
    }
    for key, value in expected.items():
        recorded = str(getattr(source, key))
        if recorded != value:
            reason = (
                f"{reasons[key]} has changed"
                if key in reasons
                else f"{key} is {recorded!r}, expected {value!r}"
            )
            raise StaleError(
                f"{path}: {reason}; embed again with byov-train --run {run.name} --embed-only"
            )
    return source


def training_digests(videos: Iterable[tuple[VideoEntry, str]]) -> dict[str, str]:
    """Return the digests of train and val features and labels that are recorded in config.json."""
    used = [(video, sha256) for video, sha256 in videos if video.split != "test"]
    features = sorted((video.split, video.view, video.id, sha256) for video, sha256 in used)
    labels = [
        (video.split, video.view, video.id, video.labels, video.pair, video.actions)
        for video, _ in used
    ]
    return {"features_sha256": json_sha256(features), "labels_sha256": json_sha256(labels)}


def check_training_data(run: RunRecord, features_dir: Path, manifest: Manifest) -> str | None:
    """Raise StaleError if the features that a run was trained and validated on differ from those in
    the cache.

    Returns a note if only labels, pairs or the order of videos have changed: the model is still
    valid, but another checkpoint might have been selected.
    """
    folder = features_dir / run.dataset / run.encoder_folder
    videos = [video for video in manifest.videos if video.split != "test"]
    cached = [video for video in videos if video_path(folder, video.view, video.id).is_file()]
    digests = training_digests(
        (video, video_digests(folder, video, run.column)[0]) for video in cached
    )
    if digests["features_sha256"] != run.features_sha256:
        raise StaleError(
            f"{run.name} was not trained on the train and val features now in {folder} "
            f"({len(cached)} of {len(videos)} videos); restore them, or train it again: byov-runs "
            f"settings {run.name} > run.toml, byov-train --config run.toml --run NAME"
        )
    changed = digests["labels_sha256"] != run.labels_sha256
    return (
        f"{run.name}: labels, pairs or order of the train and val videos changed after training"
        if changed
        else None
    )
