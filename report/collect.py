"""Collect the contents of a report from a run and the feature cache."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from byov.cache.hdf5 import read_array
from byov.cache.runs import DIAGNOSTICS_PREFIX, METRICS_NAME, RunRecord, read_metrics
from byov.device import usable_cores
from byov.errors import CacheError, EvaluationError, TrainError
from byov.evaluate.compare import compare, compared_readers
from byov.evaluate.readers import RunEmbeddings
from byov.evaluate.results import Results
from byov.evaluate.scope import choose_scope
from byov.evaluate.table import verdict
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import VIEWS, Split
from byov.report import content, provenance
from byov.report.content import Unavailable
from byov.report.examples import (
    SplitEmbeddings,
    centers,
    choose_strips,
    evenly_spaced,
    find_failures,
    project,
    read_split,
    sampled_vectors,
)
from byov.report.pictures import (
    Pixels,
    SourceVideos,
    encode_pictures,
    progress_labels,
    thumbnail_area,
    token_selection,
)

T = TypeVar("T")

# limits on the number of sampled frames per video
MAX_SAMPLES = 100
MIN_SAMPLES = 8
MIN_PICTURE_BYTES = 2500  # about 180 x 135 pixels as JPEG
OTHER_BYTES = 1_200_000  # page size without pictures and embeddings
BASE64_OVERHEAD = 4 / 3
TOKEN_FRAMES = 5
VALIDATION = ("retrieval", "trimmed", "both", "tau")  # metrics in metrics.jsonl
NO_CURVE = ("epoch", "step", "lr")  # keys in metrics.jsonl that are not plotted
# Prefixes of keys in metrics.jsonl that are not training losses.
NO_LOSS = ("map@", DIAGNOSTICS_PREFIX)
DIAGNOSTICS = {
    "self": "self-view",
    "cross": "cross-view",
    "cross/other": "cross-view, another video",
    "cross/reversed": "cross-view, reversed",
    "cross/mean": "cross-view, mean of the view",
    "trivial/constant": "mean frame of all clips",
    "trivial/view": "mean frame of the view",
    "trivial/video": "mean frame of the clip",
}


def attempt(make: Callable[..., T], data: SplitEmbeddings, *args: Any) -> T | Unavailable:
    """Call `make` and convert its errors to `Unavailable`, removing local paths because reports are
    shared.
    """
    try:
        return make(data, *args)
    except (CacheError, EvaluationError, TrainError) as error:
        text = str(error)
        for folder, name in ((data.features_dir, "features"), (data.runs_dir, "runs")):
            if folder != Path():
                text = text.replace(f"{folder}{os.sep}", f"{name}{os.sep}")
        return Unavailable(text)


def _available(parts: Sequence[T | Unavailable]) -> tuple[T, ...] | Unavailable:
    """Return the parts that can be shown, or the first reason if there are none."""
    shown = tuple(part for part in parts if not isinstance(part, Unavailable))
    return shown or next(part for part in parts if isinstance(part, Unavailable))


def collect(
    runs_dir: Path,
    features_dir: Path,
    run: RunRecord,
    compared: Sequence[RunRecord] = (),
    *,
    split: Split | None = None,
    videos: Path | None = None,
    seed: int = 0,
    max_mb: float = 15.0,  # small enough to send by email
    progress: Progress = NO_PROGRESS,
) -> content.Content:
    """Collect the parts of a report. Parts that cannot be shown are `Unavailable`.

    The tables include all compared runs, the figures only the first. Video files are searched for
    in `videos`, then at the paths they had during extraction. `seed` is the random seed for t-SNE;
    `max_mb` limits the size of the page.
    """
    with progress.bar("report", unit="step", total=4, brief=True) as steps:
        data = read_split(runs_dir, features_dir, run.name, split)
        runs = [data]
        for record in compared[:1]:
            reader = RunEmbeddings(runs_dir, features_dir, record.name)
            runs.append(
                replace(data, reader=reader, frames=reader.frames_of(data.segments, data.split))
            )
        steps.advance(latest="tables")
        results = attempt(_evaluate, data, (run, *compared), progress)
        strips = attempt(choose_strips, data)
        failures = attempt(find_failures, data)
        token_frames = {
            video: centers(len(data.segments[video]), TOKEN_FRAMES)
            for view in VIEWS
            for video in data.videos_of(view)[:1]
        }
        bytes_per_frame = sum(each.frames.embeddings.shape[1] for each in runs)
        max_samples, picture_bytes = page_budget(
            data.frames.lengths, bytes_per_frame, int(max_mb * 1e6)
        )
        sampled = [evenly_spaced(len(segment), max_samples) for segment in data.segments]
        steps.advance(latest="t-SNE")
        projection = attempt(project, data, runs, sampled, seed)
        steps.advance(latest="frames")
        shown_frames = [
            {*frames, *token_frames.get(video, ())} for video, frames in enumerate(sampled)
        ]
        pairs = [pair for worst in (failures.worst if failures else ()) for pair in worst.pairs]
        for ref in chain(*(strips or ()), *pairs):
            shown_frames[ref.video].add(ref.frame)
        samples = [tuple(sorted(frames)) for frames in shown_frames]
        sources = SourceVideos(data.feature_folder.parent, videos)
        area = thumbnail_area(sum(map(len, samples)), picture_bytes)

        def decode(video: int, frames: Sequence[int]) -> Pixels | Unavailable:
            return attempt(lambda _: sources.decode(data.feature_header(video), frames, area), data)

        with ThreadPoolExecutor(usable_cores()) as pool:
            done = pool.map(decode, range(len(samples)), samples)
            pixels = list(
                track(done, progress, "frames", unit="video", total=len(samples), brief=True)
            )
        pictures = encode_pictures(pixels, picture_bytes)
        steps.advance()
    if strips:
        strips = _available(
            [
                reason if isinstance(reason := pictures[strip[0].video], Unavailable) else strip
                for strip in strips
            ]
        )
    tokens = _available(
        [
            attempt(token_selection, data, video, frames, samples[video], pixels[video])
            for video, frames in token_frames.items()
        ]
    )
    shown = tuple(
        content.ShownVideo(
            name=segment.name,
            view=segment.video.view,
            frames=len(segment),
            pts_seconds=read_array(
                data.reader.path(segment), "pts_seconds", remedy=data.reader.remedy
            ),
            labels=segment.video.labels if data.reader.manifest.phases else None,
            samples=samples[video],
            tau=None if np.isnan(data.mean_taus[video]) else float(data.mean_taus[video]),
            pictures=pictures[video],
        )
        for video, segment in enumerate(data.segments)
    )
    return content.Content(
        run=run.name,
        dataset=run.dataset,
        facts=provenance.facts(data.reader.run, data.split, data.frames),
        split=data.split,
        phases=data.reader.manifest.phases if any(video.labels for video in shown) else (),
        videos=shown,
        verdict=verdict(results.rows, data.reader.name) if results else "",
        tables=results if isinstance(results, Unavailable) else tuple(results.tables()),
        own_row=data.reader.name,
        curves=attempt(lambda _: read_curves(run), data),
        projection=projection,
        strips=strips,
        tokens=tokens,
        failures=failures,
        progress=attempt(progress_labels, data, sources),
        vectors=attempt(sampled_vectors, data, runs, samples),
        manifest_rows=provenance.manifest_rows(data.reader.manifest, data.feature_folder.parent),
        provenance=provenance.provenance(data.reader),
    )


def page_budget(
    lengths: NDArray[np.int64], bytes_per_frame: int, page_bytes: int
) -> tuple[int, int]:
    """Return the number of samples per video and the total picture size in bytes that fit within
    the page size.
    """
    available = max(int((page_bytes - OTHER_BYTES) / BASE64_OVERHEAD), 0)
    fitting = available // (len(lengths) * (bytes_per_frame + MIN_PICTURE_BYTES))
    samples = min(max(fitting, MIN_SAMPLES), MAX_SAMPLES)
    return samples, max(available - int(lengths.clip(max=samples).sum()) * bytes_per_frame, 0)


def _evaluate(data: SplitEmbeddings, runs: Sequence[RunRecord], progress: Progress) -> Results:
    """Compute the results of byov-eval --task all."""
    manifest = data.reader.manifest
    if data.split == "train":
        raise EvaluationError(f"{manifest.dataset} has no test or val videos to score")
    scope = choose_scope(manifest, split=data.split)
    readers = compared_readers(data.runs_dir, data.features_dir, manifest.dataset, runs)
    return compare(readers, scope, skip_missing=True, progress=progress)


def read_curves(run: RunRecord) -> content.Curves:
    """Read a run's losses and validation scores from metrics.jsonl."""
    records = read_metrics(run)
    names = dict.fromkeys(name for record in records for name in record)
    losses = [
        name
        for name in names
        if name not in (*NO_CURVE, *VALIDATION) and not name.startswith(NO_LOSS)
    ]
    if not losses and not names.keys() & VALIDATION:
        raise CacheError(
            f"the run has no losses or scores in {METRICS_NAME}, or the file is missing or damaged"
        )
    # Find the epoch of the saved model by its validation scores, unless the last model was saved.
    saved = run.settings.get("select") != "last" and run.training.get("validation")
    kept = [record["epoch"] for record in records if saved and saved.items() <= record.items()]
    return content.Curves(
        losses=tuple(_curve(records, name) for name in losses),
        validation=tuple(_curve(records, name) for name in VALIDATION if name in names),
        kept_epoch=kept[0] if kept else None,
        diagnostics=tuple(
            _curve(records, DIAGNOSTICS_PREFIX + name)._replace(name=title)
            for name, title in DIAGNOSTICS.items()
            if DIAGNOSTICS_PREFIX + name in names
        ),
    )


def _curve(records: Sequence[dict[str, Any]], name: str) -> content.Curve:
    points = [(record["epoch"], float(record[name])) for record in records if name in record]
    return content.Curve(
        name, tuple(epoch for epoch, _ in points), tuple(value for _, value in points)
    )
