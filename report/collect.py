"""Collect the contents of a report from a run and the feature cache."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.cache.hdf5 import read_array
from byov.cache.runs import DIAGNOSTICS_PREFIX, METRICS_NAME, RunRecord, read_metrics
from byov.device import usable_cores
from byov.errors import CacheError, EvaluationError, TrainError
from byov.evaluate.compare import compare, compared_readers
from byov.evaluate.readers import CachedFeatures, RunEmbeddings, TimeOnly
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
from byov.report.moments import Moments, choose_opening, find_moments
from byov.report.pictures import (
    MAX_AREA,
    Pixels,
    SourceVideos,
    encode_video,
    jpeg_bytes,
    progress_labels,
    token_selection,
)
from byov.report.summary import (
    MomentErrors,
    compared_sentences,
    predict_progress,
    score_chart,
    summary_sentence,
    worse_sentences,
)

T = TypeVar("T")

# limits on the number of embedded frames per video
MAX_SAMPLES = 300
MIN_SAMPLES = 8
MIN_AREA = 160 * 120  # pixels; if frames would be smaller, clips have every stride-th frame only
MAX_FRAME_BYTES = 100_000  # mean size of a frame in a clip; more than any frame needs
OTHER_BYTES = 900_000  # page size without pictures and embeddings
BASE64_OVERHEAD = 4 / 3
# Estimated sizes, to choose the scale. Clips are limited to what is left by the stills.
CLIP_BYTES_PER_PIXEL = 0.03
STILL_BYTES_PER_PIXEL = 0.12
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


class Budget(NamedTuple):
    """Numbers and sizes of frames that fit within a page."""

    samples: int  # maximum number of embedded frames per video
    stride: int  # distance between the frames of a clip
    area: int  # maximum number of pixels per frame
    frame_bytes: int  # maximum mean size of a frame in a clip


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
        names = [each.reader.name for each in runs]
        features = CachedFeatures(features_dir, run.dataset, run.encoder_folder, run.column)
        pts_seconds = [
            read_array(data.reader.path(segment), "pts_seconds", remedy=data.reader.remedy)
            for segment in data.segments
        ]
        moments = find_moments(data.segments, pts_seconds, ordered=data.reader.manifest.ordered)
        strips = attempt(choose_strips, data)
        failures = attempt(find_failures, data)
        token_frames = {
            video: centers(len(data.segments[video]), TOKEN_FRAMES)
            for view in VIEWS
            for video in data.videos_of(view)[:1]
        }
        stills = [{len(segment) // 2} for segment in data.segments]
        pairs = [pair for worst in (failures.worst if failures else ()) for pair in worst.pairs]
        for ref in chain(*(strips or ()), *pairs):
            stills[ref.video].add(ref.frame)
        for video, frames in token_frames.items():
            stills[video].update(frames)
        bytes_per_frame = sum(each.frames.embeddings.shape[1] for each in runs)
        budget = page_budget(
            data.frames.lengths, bytes_per_frame, sum(map(len, stills)), int(max_mb * 1e6)
        )
        samples = [evenly_spaced(len(segment), budget.samples) for segment in data.segments]
        steps.advance(latest="t-SNE")
        projection = attempt(project, data, runs, samples, seed)
        steps.advance(latest="frames")
        sources = SourceVideos(data.feature_folder.parent, videos)
        encoded = _encode_videos(data, sources, budget, stills, progress)
        steps.advance()
    if strips:
        strips = _available(
            [
                reason if isinstance(reason := encoded[strip[0].video], Unavailable) else strip
                for strip in strips
            ]
        )
    tokens = _available(
        [
            reason
            if isinstance(reason := encoded[video], Unavailable)
            else attempt(token_selection, data, video, {at: reason[1][at] for at in frames})
            for video, frames in token_frames.items()
        ]
    )
    shown = tuple(
        _shown_video(data, video, pts_seconds[video], samples[video], encoded[video])
        for video in range(len(data.segments))
    )
    return content.Content(
        run=run.name,
        dataset=run.dataset,
        facts=provenance.facts(data.reader.run, data.split, data.frames),
        split=data.split,
        phases=data.reader.manifest.phases if any(video.labels for video in shown) else (),
        videos=shown,
        summary=_summarize(data, runs, moments, features, results),
        opening=choose_opening(data.segments, moments, data.by_video),
        verdict=verdict(results.rows, data.reader.name) if results else "",
        predictions=attempt(_predict, data, runs),
        tables=results if isinstance(results, Unavailable) else tuple(results.tables()),
        chart=score_chart(results, names, features.name) if results else None,
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


def _encode_videos(
    data: SplitEmbeddings,
    sources: SourceVideos,
    budget: Budget,
    stills: Sequence[set[int]],
    progress: Progress,
) -> list[tuple[content.VideoClip, dict[int, Pixels]] | Unavailable]:
    """Encode each video as a clip, and decode its stills."""

    def encode(data: SplitEmbeddings, video: int) -> tuple[content.VideoClip, dict[int, Pixels]]:
        header = data.feature_header(video)
        frames = sorted({*range(0, header.frames, budget.stride), *stills[video]})
        pixels = sources.read(header, frames, budget.area)
        pairs = zip(frames, pixels, strict=True)
        return encode_video(pairs, budget.stride, stills[video], budget.frame_bytes)

    count = len(data.segments)
    with ThreadPoolExecutor(usable_cores()) as pool:
        done = pool.map(lambda video: attempt(encode, data, video), range(count))
        return list(track(done, progress, "frames", unit="video", total=count, brief=True))


def _shown_video(
    data: SplitEmbeddings,
    video: int,
    pts_seconds: NDArray[np.float64],
    samples: tuple[int, ...],
    encoded: tuple[content.VideoClip, dict[int, Pixels]] | Unavailable,
) -> content.ShownVideo:
    segment = data.segments[video]
    clip, stills = (encoded, {}) if isinstance(encoded, Unavailable) else encoded
    return content.ShownVideo(
        name=segment.name,
        view=segment.video.view,
        frames=len(segment),
        pts_seconds=pts_seconds,
        labels=segment.video.labels if data.reader.manifest.phases else None,
        samples=samples,
        clip=clip,
        pictures={frame: jpeg_bytes(Image.fromarray(pixels)) for frame, pixels in stills.items()},
    )


def _summarize(
    data: SplitEmbeddings,
    runs: Sequence[SplitEmbeddings],
    moments: Moments,
    features: CachedFeatures,
    results: Results | Unavailable,
) -> content.Summary:
    """Summarize the errors in seconds and the columns in which the runs are behind baselines."""
    names = [each.reader.name for each in runs]
    worse = worse_sentences(results, names) if results else ()
    clock = TimeOnly(data.reader.manifest)

    def mean_error(embeddings: Sequence[NDArray[np.floating]]) -> float:
        return float(np.mean(moments.errors(embeddings)))

    count = len(moments.errors(data.by_video))
    if not count:
        return content.Summary(
            "Errors in seconds are unknown: they need videos that share labeled phases in a fixed "
            "order. Does the pair below show the same moments?",
            worse=worse,
        )
    frozen = attempt(
        lambda _: mean_error([features.rows(segment) for segment in data.segments]), data
    )
    views = {segment.video.view for segment in data.segments}
    errors = MomentErrors(
        {each.reader.run.name: mean_error(each.by_video) for each in runs},
        mean_error([clock.rows(segment) for segment in data.segments]),
        None if isinstance(frozen, Unavailable) else frozen,
        across_views=len(views) > 1,
    )
    basis = (
        f"Mean over {count:,} searches. Given the frame in which a phase starts, the frame of the "
        "other video with the nearest embedding is compared with the annotated start of that phase."
    )
    return content.Summary(summary_sentence(errors), basis, compared_sentences(errors), worse)


def _predict(
    data: SplitEmbeddings, runs: Sequence[SplitEmbeddings]
) -> tuple[content.PredictedProgress | None, ...]:
    """Predict the progress of the shown videos, unless they are the training videos or show their
    phases in any order.
    """
    if data.split == "train" or not data.reader.manifest.ordered:
        return ()
    clock = TimeOnly(data.reader.manifest)
    return predict_progress(
        [(each.reader, each.frames) for each in runs],
        (clock, clock.frames_of(data.segments, data.split)),
    )


def page_budget(
    lengths: NDArray[np.int64], bytes_per_frame: int, stills: int, page_bytes: int
) -> Budget:
    """Divide the size of a page between embeddings, clips and stills.

    Args:
        lengths: Number of frames of each video.
        bytes_per_frame: Size of the embeddings of a frame.
        stills: Number of stills.
        page_bytes: Maximum size of the page.
    """
    available = max(int((page_bytes - OTHER_BYTES) / BASE64_OVERHEAD), 1)
    fitting = available // 3 // (len(lengths) * bytes_per_frame)
    samples = min(max(fitting, MIN_SAMPLES), MAX_SAMPLES)
    rest = max(available - int(lengths.clip(max=samples).sum()) * bytes_per_frame, 1)
    smallest = MIN_AREA * (CLIP_BYTES_PER_PIXEL * lengths.sum() + STILL_BYTES_PER_PIXEL * stills)
    stride = max(1, math.ceil(smallest / rest))
    frames = int(np.ceil(lengths / stride).sum())
    bytes_per_pixel = CLIP_BYTES_PER_PIXEL * frames + STILL_BYTES_PER_PIXEL * stills
    area = int(min(max(rest / bytes_per_pixel, 1), MAX_AREA))
    for_clips = rest - area * STILL_BYTES_PER_PIXEL * stills
    frame_bytes = min(max(int(for_clips / frames), 1), MAX_FRAME_BYTES)
    return Budget(samples, stride, area, frame_bytes)


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
