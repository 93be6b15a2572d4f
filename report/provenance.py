"""Header and provenance of a report, and the videos it is about, without absolute paths and
timestamps.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from math import prod
from pathlib import Path

from byov import __version__
from byov.cache.manifest import Manifest, load_index, read_sources
from byov.cache.runs import MODEL_NAME, RunRecord, unfinished_text
from byov.data.dataset import parse_source
from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.errors import CacheError, TrainError
from byov.evaluate.frames import Frames
from byov.evaluate.readers import RunEmbeddings
from byov.records import UNLABELED
from byov.text import pluralize
from byov.train.methods.base import tensor_shapes
from byov.train.registry import differences, resolve, run_config

Lines = tuple[tuple[str, str], ...]
ORIGIN = (
    "model_sha256",
    "encoder_revision",
    "encoder_sha256",
    "preprocessing",
    "column",
    "features_sha256",
)


def facts(run: RunRecord, split: str, frames: Frames) -> Lines:
    """Return the key facts of a run, shown below the title."""
    ego = int(frames.is_ego.sum())
    videos = f"{ego} ego and {len(frames.is_ego) - ego} exo videos"
    millions = sum(map(prod, tensor_shapes(run.folder / MODEL_NAME).values())) / 1e6
    # The setting `depth` applies only to the encoder backbone.
    network = {"frame": "frame head", "transformer": "transformer"}.get(
        str(run.settings.get("backbone")),
        pluralize(run.settings["depth"], "block") if "depth" in run.settings else "network",
    )
    kind, label = run.label
    unfinished = unfinished_text(run)
    return (
        *((("Training", unfinished),) if unfinished else ()),
        (kind.capitalize(), label),
        ("Encoder", run.encoder),
        ("STM ratio", run.column.removeprefix("merged/")),
        ("Seed", str(run.seed)),
        (
            "Model",
            f"{millions:.2f} million parameters, {network}, embedding width "
            f"{frames.embeddings.shape[1]}",
        ),
        ("Split", f"{split}: {videos}, {len(frames.embeddings):,} frames"),
    )


def provenance(reader: RunEmbeddings) -> Lines:
    """Return the settings, model, features and versions that the page depends on."""
    run = reader.run
    trained_with = " ".join(
        f"{name} {number}" for name, number in (run.training.get("versions") or {}).items()
    )
    return (
        (f"Settings that differ from the {run.label[0]}", _changed_settings(run)),
        *((name, str(value)) for name, value in reader.origin().items() if name in ORIGIN),
        ("trained with", trained_with or "unknown"),
        ("report created with", f"byov {__version__}"),
    )


def _changed_settings(run: RunRecord) -> str:
    try:
        config = run_config(run)
        kept = {
            name: value
            for name, value in config.flat().items()
            if name in ("recipe", "size", "seed")
        }
        usual = resolve(config.method.name, run.dataset, kept)
    except TrainError:
        return "not readable by this version of byov"
    return "; ".join(differences(usual, config)) or "none"


def manifest_rows(manifest: Manifest, dataset_folder: Path) -> tuple[dict[str, str], ...]:
    """Return all videos in the dataset as rows of a CSV file for byov-extract --manifest.

    Paths are relative to the common folder of all videos because reports are shared.
    """
    paths: dict[str, str] = {}
    # The index is damaged or empty, or the videos are on different drives.
    with suppress(CacheError, ValueError):
        sources = read_sources(dataset_folder)
        top = os.path.commonpath([path.parent for path in sources.values()])
        paths = {video: path.relative_to(top).as_posix() for video, path in sources.items()}
    fragments = load_index(dataset_folder).segments
    rows = []
    for video in manifest.videos:
        start, end = parse_source(fragments.get(video.id, ""))[1].cells
        row = {
            "path": paths.get(video.id, ""),
            "view": video.view,
            "split": video.split,
            "id": video.id,
            "events": events_text(video.labels or (), len(manifest.phases)),
            "start": start,
            "end": end,
            "pair": video.pair or "",
        }
        rows.append(row)
    return tuple(rows)


def events_text(labels: Sequence[int], phases: int) -> str:
    """Format the first frames of the phases, such as "31f;52f", with marks where labels stop and
    resume.

    Phases that never occur start after the last frame, unless that frame is unlabeled. Return "" if
    the labels are not consecutive phases.
    """
    known = [label for label in labels if label != UNLABELED]
    if not known or known != sorted(known) or known[0] < 0 or known[-1] >= phases:
        return ""
    events = list[str]()
    phase = 0
    first = 0
    for label, stretch in groupby(labels):
        if label == UNLABELED:
            events.append(f"{first}f {UNLABELED_MARK}")
        elif label == phase and first:
            events.append(f"{first}f {RESUME_MARK}")
        events += [f"{first}f" for _ in range(phase, label)]
        phase = max(phase, label)
        first += len(list(stretch))
    if labels[-1] != UNLABELED:
        events += [f"{first}f" for _ in range(phase + 1, phases)]
    return ";".join(events)
