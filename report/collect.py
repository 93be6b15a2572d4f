"""Collect the contents of a report from a run and the feature cache."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from byov.apply.align import nearest
from byov.cache.features import Header, video_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import VIEWS
from byov.cache.manifest import Manifest, VideoEntry, load_index, read_sources
from byov.cache.runs import METRICS_NAME, RunRecord, read_metrics
from byov.data.dataset import parse_source
from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, RunEmbeddings
from byov.evaluate.evaluation import compare, frozen_columns, readers_to_compare, scope_of_all, scope_of_runs, tasks_of
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import tau_of_each_pair
from byov.evaluate.protocols import ScoredSplit, Segment, segments
from byov.evaluate.table import Table
from byov.evaluate.tasks import EvaluationOptions
from byov.progress import NO_PROGRESS, Progress
from byov.records import UNLABELED
from byov.report import analysis, content, provenance
from byov.report.analysis import centers, evenly_spaced
from byov.report.content import FrameRef, Unavailable
from byov.report.pictures import SourceVideos, TileRequest, Tiles, make_sheets, read_tiles

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

SPLITS = ("test", "val", "train")  # in order of preference
MAX_VIDEOS = 60  # per view
MAX_SAMPLES, MIN_SAMPLES = 100, 8  # sampled frames per video
MIN_TILE_BYTES = 2500  # about 180 x 135 pixels
OTHER_BYTES = 1_200_000  # page size without pictures and embeddings
BASE64_OVERHEAD = 4 / 3
TSNE_POINTS, MIN_TSNE_POINTS = 600, 5
QUERIES, RETRIEVED = 3, 5  # queries per direction, frames per query
TOKEN_RATIOS, TOKEN_FRAMES = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0), 5
WORST_VIDEOS, WORST_FRAMES = 3, 5
TAU_STRIDE = EvaluationOptions().tau_stride
VALIDATION = ("retrieval", "trimmed", "both", "tau")  # metrics in metrics.jsonl
NO_CURVE = ("epoch", "step", "lr")  # columns that are not plotted


@dataclass(frozen=True, eq=False)
class SplitEmbeddings:
    """A run's embeddings of the shown videos of a split. Videos are referred to by index."""

    runs_dir: Path
    features_dir: Path
    reader: RunEmbeddings
    split: str
    segments: tuple[Segment, ...]
    frames: Frames

    @property
    def feature_folder(self) -> Path:
        return self.features_dir / self.reader.run.dataset / self.reader.run.encoder_folder

    def of_view(self, view: str) -> list[int]:
        return [index for index, segment in enumerate(self.segments) if segment.video.view == view]

    def embeddings(self, video: int) -> NDArray[np.float32]:
        """Return (T, D) embeddings."""
        first = self.frames.starts[video]
        return self.frames.embeddings[first : first + self.frames.lengths[video]]

    def by_run(self, run: str) -> "SplitEmbeddings":
        """Return another run's embeddings of the same videos."""
        reader = RunEmbeddings(self.runs_dir, self.features_dir, run)
        return replace(self, reader=reader, frames=reader.frames_of(self.segments, self.split))

    def feature_header(self, video: int) -> Header:
        """Return the header of a video's features."""
        return video_header(self.feature_folder, self.segments[video].video.view, self.segments[video].video.id)


def attempt(make: Callable[..., T], data: SplitEmbeddings, *args: Any) -> T | Unavailable:
    """Call `make`, and return its error as `Unavailable`, without local paths, since reports are shared."""
    try:
        return make(data, *args)
    except (CacheError, EvaluationError) as error:
        text = str(error)
        for folder, name in ((data.features_dir, "features"), (data.runs_dir, "runs")):
            if folder != Path():
                text = text.replace(f"{folder}{os.sep}", f"{name}{os.sep}")
        return Unavailable(text)


def collect(
    runs_dir: Path,
    features_dir: Path,
    run: RunRecord,
    compared: Sequence[RunRecord] = (),
    *,
    split: str | None = None,
    videos: Path | None = None,
    seed: int = 0,
    max_mb: float = 15.0,  # small enough to send by email
    progress: Progress = NO_PROGRESS,
) -> content.Content:
    """Collect the parts of a report. Parts that cannot be shown are `Unavailable`.

    All compared runs are in the tables, and the first one also in the figures. Video files are searched in `videos`
    first, then where they were at extraction. `seed` is the seed of t-SNE, and `max_mb` limits the size of the page.
    """
    with progress.bar("report", unit="step", total=4, brief=True) as steps:
        data = read_split(runs_dir, features_dir, run.name, split)
        runs = [data]
        for record in compared[:1]:
            other = attempt(SplitEmbeddings.by_run, data, record.name)
            if isinstance(other, Unavailable):
                LOGGER.info(f"{record.name} is in the tables only: {other.reason}")
            else:
                runs.append(other)
        steps.advance(latest="tables")
        tables = attempt(_tables, data, (run, *compared), progress)
        taus = [tau_of_each_pair(one.frames.every(TAU_STRIDE)) for one in runs]
        strips = attempt(choose_strips, data)
        failures = attempt(find_failures, data, taus[0])
        token_frames = {
            video: centers(len(data.segments[video]), TOKEN_FRAMES)
            for view in VIEWS
            for video in data.of_view(view)[:1]
        }
        bytes_per_frame = sum(one.frames.embeddings.shape[1] for one in runs)
        max_samples, picture_bytes = page_budget(data.frames.lengths, bytes_per_frame, int(max_mb * 1e6))
        sampled = [evenly_spaced(len(segment), max_samples) for segment in data.segments]
        steps.advance(latest="t-SNE")
        points = choose_points(sampled)
        projection = attempt(project, data, runs, points, seed)
        steps.advance(latest="frames")
        shown_frames = [{*frames, *token_frames.get(video, ())} for video, frames in enumerate(sampled)]
        for ref in _referenced_frames(strips, failures):
            shown_frames[ref.video].add(ref.frame)
        samples = [tuple(sorted(frames)) for frames in shown_frames]
        sources = SourceVideos(data.feature_folder.parent, videos)
        wanted = [attempt(_tile_request, data, sources, video, frames) for video, frames in enumerate(samples)]
        tiles = read_tiles(wanted, picture_bytes, progress)
        sheets = make_sheets(tiles, picture_bytes)
        steps.advance()
    if strips:  # without those whose query has no picture
        shown_strips = tuple(strip for strip in strips if sheets[strip.query.video])
        strips = shown_strips or next(sheet for sheet in sheets if isinstance(sheet, Unavailable))
    tokens = [attempt(token_selection, data, video, frames, tiles[video]) for video, frames in token_frames.items()]
    shown = _shown_videos(data, samples, sheets, taus[0])
    return content.Content(
        run=run.name,
        dataset=run.dataset,
        facts=provenance.facts(data.reader.run, data.split, data.frames),
        split=data.split,
        phases=data.reader.manifest.phases if any(video.labels for video in shown) else (),
        videos=shown,
        tables=tables,
        own_row=data.reader.name,
        curves=read_curves(run),
        projection=projection,
        strips=strips,
        tokens=tuple(one for one in tokens if one) or next(one for one in tokens if isinstance(one, Unavailable)),
        failures=failures,
        vectors=attempt(_vectors, data, runs, samples, taus),
        manifest_rows=manifest_rows(data.reader.manifest, data.feature_folder.parent),
        provenance=provenance.provenance(data.reader, data.split, len(points), sheets, seed),
    )


def read_split(runs_dir: Path, features_dir: Path, run: str, split: str | None = None) -> SplitEmbeddings:
    """Read the run's embeddings of a split, for at most MAX_VIDEOS videos per view."""
    reader = RunEmbeddings(runs_dir, features_dir, run)
    if split is None:
        available = {video.split for video in reader.manifest.videos if video.frames}
        split = next((split for split in SPLITS if split in available), SPLITS[0])
        if split != SPLITS[0]:
            LOGGER.info(f"{reader.manifest.dataset} has no test videos; the report shows the {split} split")
    everything = segments(reader.manifest, split)
    shown = limit_videos(everything)
    if len(shown) < len(everything):
        LOGGER.info(f"the figures show {len(shown)} of the {len(everything)} {split} videos")
    return SplitEmbeddings(runs_dir, features_dir, reader, split, tuple(shown), reader.frames_of(shown, split))


def limit_videos(everything: Sequence[Segment]) -> list[Segment]:
    """Select at most MAX_VIDEOS evenly spaced videos of each view, ego first."""
    views = [[segment for segment in everything if segment.video.view == view] for view in VIEWS]
    return [videos[index] for videos in views for index in evenly_spaced(len(videos), MAX_VIDEOS)]


def page_budget(lengths: NDArray[np.int64], bytes_per_frame: int, page_bytes: int) -> tuple[int, int]:
    """Return the number of samples per video, and the bytes for all pictures, that fit the size limit of the page."""
    available = max(int((page_bytes - OTHER_BYTES) / BASE64_OVERHEAD), 0)
    fitting = available // (len(lengths) * (bytes_per_frame + MIN_TILE_BYTES))
    samples = min(max(fitting, MIN_SAMPLES), MAX_SAMPLES)
    return samples, max(available - int(lengths.clip(max=samples).sum()) * bytes_per_frame, 0)


def _tables(data: SplitEmbeddings, runs: Sequence[RunRecord], progress: Progress) -> tuple[Table, ...]:
    """Compute the tables of byov-eval --task all."""
    manifest, folders = data.reader.manifest, (data.runs_dir, data.features_dir)
    split: ScoredSplit | None = next((one for one in get_args(ScoredSplit) if one == data.split), None)
    if split is None:
        raise EvaluationError(f"{manifest.dataset} has no test or val videos to score")
    scope = scope_of_all(manifest, split, EvaluationOptions())
    frozen = frozen_columns(data.features_dir, manifest.dataset, [run.column for run in runs])
    readers = readers_to_compare(*folders, manifest.dataset, runs, baselines=frozen)
    scope = scope_of_runs(scope, readers, explicit=False)
    return tuple(compare(manifest, readers, scope, progress).tables())


def _require_both_views(data: SplitEmbeddings) -> None:
    for view in VIEWS:
        if not data.of_view(view):
            raise EvaluationError(f"the {data.split} split has no {view} videos")


def _require_two_videos(data: SplitEmbeddings) -> None:
    if len(data.segments) == 1:
        raise EvaluationError(f"the {data.split} split has only one video")


def choose_strips(data: SplitEmbeddings) -> tuple[content.Strip, ...]:
    """Retrieve across views for evenly spaced videos and frames."""
    _require_both_views(data)
    strips = {}
    for query_view, candidate_view in (VIEWS, VIEWS[::-1]):
        queries = data.of_view(query_view)
        others = [(other, data.embeddings(other)) for other in data.of_view(candidate_view)]
        for part in range(QUERIES):
            video = queries[(2 * part + 1) * len(queries) // (2 * QUERIES)]
            frame = (2 * part + 1) * len(data.segments[video]) // (2 * QUERIES)
            retrieved = analysis.nearest_of_each(data.embeddings(video)[frame], others, RETRIEVED)
            strips[video, frame] = content.Strip(FrameRef(video, frame), retrieved)
    return tuple(strips.values())


def find_failures(data: SplitEmbeddings, taus: NDArray[np.float64]) -> content.Failures:
    """Find the videos with the lowest mean tau, given (V, V) taus."""
    _require_two_videos(data)
    manifest = data.reader.manifest
    if "tau" not in tasks_of(manifest):
        raise EvaluationError(f"the videos of {manifest.dataset} show different actions, so they have no Kendall's tau")
    means = analysis.mean_taus(taus)
    ascending = np.argsort(means, kind="stable")  # NaN last
    chosen = [int(video) for video in ascending[:WORST_VIDEOS] if not np.isnan(means[video])]
    if not chosen:
        raise EvaluationError("no pair of videos has a Kendall's tau, since the nearest frame never changes")
    worst = []
    for video in chosen:
        frames = centers(len(data.segments[video]), WORST_FRAMES)
        others = [other for other in range(len(data.segments)) if other != video]
        partner = min(others, key=lambda other: np.nan_to_num(taus[video, other], nan=np.inf))
        matched = nearest(data.embeddings(video)[list(frames)], data.embeddings(partner))
        tau = float(taus[video, partner])
        worst.append(content.WorstVideo(video, float(means[video]), frames, partner, tau, tuple(matched.tolist())))
    reference = FrameRef(chosen[0], len(data.segments[chosen[0]]) // 2)
    similarity = analysis.softmax_similarity(data.embeddings(reference.video), reference.frame)
    return content.Failures(tuple(worst), reference, similarity)


def choose_points(sampled: Sequence[tuple[int, ...]]) -> list[FrameRef]:
    """Choose the frames for t-SNE: at most the same number of samples from each video."""
    limit = max(TSNE_POINTS // len(sampled), 2)
    return [
        FrameRef(video, frames[index])
        for video, frames in enumerate(sampled)
        for index in evenly_spaced(len(frames), limit)
    ]


def project(
    data: SplitEmbeddings, runs: Sequence[SplitEmbeddings], points: Sequence[FrameRef], seed: int
) -> content.Projection:
    """Compute t-SNE maps of the frozen features, the untrained model and the runs."""
    if len(points) < MIN_TSNE_POINTS:
        raise EvaluationError(f"t-SNE needs at least {MIN_TSNE_POINTS} frames, and there are {len(points)}")

    def read(reader: EmbeddingReader) -> NDArray[np.float32]:
        by_video = groupby(points, key=lambda ref: ref.video)
        return np.concatenate(
            [reader.rows(data.segments[video])[[ref.frame for ref in refs]] for video, refs in by_video]
        )

    run = data.reader.run
    features = CachedFeatures(data.features_dir, run.dataset, run.encoder_folder, run.column)
    embeddings = {f"Frozen: {features.name}": read(features)}
    with suppress(CacheError, EvaluationError):  # the embeddings of the untrained model may have been deleted
        embeddings["Untrained"] = read(RunEmbeddings(data.runs_dir, data.features_dir, run.name, untrained=True))
    for one in runs:
        rows = [one.embeddings(ref.video)[ref.frame] for ref in points]
        embeddings[f"Trained: {one.reader.run.name}"] = np.stack(rows)
    maps = tuple((title, analysis.tsne(rows, seed)) for title, rows in embeddings.items())
    return content.Projection(tuple(points), maps, len(data.frames.embeddings))


def _referenced_frames(
    strips: tuple[content.Strip, ...] | Unavailable, failures: content.Failures | Unavailable
) -> Iterator[FrameRef]:
    """Yield the frames that the examples and the failures show."""
    for strip in strips or ():
        yield from (strip.query, *strip.retrieved)
    if failures:
        yield failures.reference
        for worst in failures.worst:
            yield from chain.from_iterable(worst.pairs)


def _tile_request(data: SplitEmbeddings, sources: SourceVideos, video: int, frames: tuple[int, ...]) -> TileRequest:
    header = data.feature_header(video)
    path = sources.find(data.segments[video].video.id, header.provenance)
    return TileRequest(path, frames, header.truncated, parse_source(header.provenance.source_name)[1])


def token_selection(
    data: SplitEmbeddings, video: int, frames: tuple[int, ...], tiles: Tiles | Unavailable
) -> content.TokenSelection:
    """Draw the selected tokens of some frames of a video at each ratio."""
    if isinstance(tiles, Unavailable):
        raise CacheError(tiles.reason)
    header = data.feature_header(video)
    order = read_array(header.path, "order")
    tokens = order.shape[1]
    if not tokens or isqrt(tokens) ** 2 != tokens or order.max() >= tokens:
        raise CacheError(f"the tokens of {data.segments[video].name} do not form a square grid")
    cropped = header.provenance.preprocessing.startswith("crop")
    pixels = [tiles.pixels[tiles.frames.index(frame)] for frame in frames]
    pictures = [
        [
            analysis.darken_excluded(picture, analysis.selected_patches(order[frame], ratio), cropped=cropped)
            for frame, picture in zip(frames, pixels, strict=True)
        ]
        for ratio in TOKEN_RATIOS
    ]
    return content.TokenSelection(video, frames, TOKEN_RATIOS, np.array(pictures))


def _shown_videos(
    data: SplitEmbeddings,
    samples: Sequence[tuple[int, ...]],
    sheets: Sequence[content.Sheet | Unavailable],
    taus: NDArray[np.float64],
) -> tuple[content.ShownVideo, ...]:
    manifest, videos = data.reader.manifest, []
    means = analysis.mean_taus(taus) if "tau" in tasks_of(manifest) else np.full(len(taus), np.nan)
    for video, segment in enumerate(data.segments):
        seconds = read_array(data.reader.path(segment), "pts_seconds", remedy=data.reader.remedy)
        shown = content.ShownVideo(
            name=segment.name,
            view=segment.video.view,
            frames=len(segment),
            pts_seconds=np.nan_to_num(seconds, posinf=0, neginf=0),
            labels=segment.labels if manifest.phases else None,
            samples=samples[video],
            tau=None if np.isnan(means[video]) else float(means[video]),
            sheet=sheets[video],
        )
        videos.append(shown)
    return tuple(videos)


def _vectors(
    data: SplitEmbeddings,
    runs: Sequence[SplitEmbeddings],
    samples: Sequence[tuple[int, ...]],
    taus: Sequence[NDArray[np.float64]],
) -> tuple[content.RunVectors, ...]:
    _require_two_videos(data)
    vectors = []
    for run, of_run in zip(runs, taus, strict=True):
        of_video = tuple(run.embeddings(video)[list(frames)] for video, frames in enumerate(samples))
        vectors.append(content.RunVectors(run.reader.run.name, of_video, of_run))
    return tuple(vectors)


def read_curves(run: RunRecord) -> content.Curves | Unavailable:
    """Read a run's losses and validation scores from metrics.jsonl."""
    try:
        records = read_metrics(run)
    except CacheError as error:
        return Unavailable(f"{METRICS_NAME} is damaged ({error})")
    if not records:
        return Unavailable(f"the run has no {METRICS_NAME}, or it is damaged")
    names = dict.fromkeys(name for record in records for name in record)
    losses = [name for name in names if name not in (*NO_CURVE, *VALIDATION) and not name.startswith("map@")]
    if not losses and not names.keys() & VALIDATION:
        return Unavailable(f"{METRICS_NAME} has no losses or scores")
    return content.Curves(
        losses=tuple(_curve(records, name) for name in losses),
        validation=tuple(_curve(records, name) for name in VALIDATION if name in names),
        kept_epoch=_kept_epoch(records, str(run.settings.get("select"))),
    )


def _curve(records: Sequence[dict[str, Any]], name: str) -> content.Curve:
    points = [(record["epoch"], float(record[name])) for record in records if name in record]
    return content.Curve(name, tuple(epoch for epoch, _ in points), tuple(value for _, value in points))


def _kept_epoch(records: Sequence[dict[str, Any]], metric: str) -> int | None:
    """Return the first epoch with the best value of the selection metric."""
    trained = [record for record in records if record["epoch"] > 0]
    if metric in VALIDATION and not any(metric in record for record in trained):
        metric = "tau"  # like byov-train without labels
    candidates = [record for record in trained if metric in VALIDATION and metric in record]
    best = max(candidates, key=lambda record: record[metric], default=None)
    return None if best is None else int(best["epoch"])


def manifest_rows(manifest: Manifest, dataset_folder: Path) -> tuple[content.ManifestRow, ...]:
    """Return all videos of the dataset as rows of the CSV that byov-extract --manifest reads.

    Paths are relative to the common folder of all videos, since reports are shared.
    """
    paths: dict[str, str] = {}
    with suppress(CacheError, ValueError):  # damaged, empty, or on different drives
        sources = read_sources(dataset_folder)
        top = os.path.commonpath([path.parent for path in sources.values()])
        paths = {video: path.relative_to(top).as_posix() for video, path in sources.items()}
    fragments, rows = load_index(dataset_folder).segments, []
    for video in manifest.videos:
        start, end = parse_source(fragments.get(video.id, ""))[1].cells
        events, pair = events_cell(video, len(manifest.phases)), video.pair or ""
        path = paths.get(video.id, "")
        rows.append(content.ManifestRow(path, video.view, video.split, video.id, events, pair, start, end))
    return tuple(rows)


def events_cell(video: VideoEntry, phases: int) -> str:
    """Format the start times of the phases in seconds; "" if the labels are not consecutive phases.

    Times are half a frame before the first frame of a phase, so that rounding does not shift the phase.
    """
    known = [label for label in video.labels or () if label != UNLABELED]
    if not known or not video.fps or known != sorted(known) or known[0] < 0 or known[-1] >= phases:
        return ""
    return ";".join(
        f"{max(frame - 0.5, 0) / video.fps:.3f} {mark}".strip() for frame, mark in _events(video.labels or (), phases)
    )


def _events(labels: Sequence[int], phases: int) -> Iterator[tuple[int, str]]:
    """Yield (frame, "") where a phase starts, and (frame, mark) where labels stop and resume.

    Phases that never occur start after the last frame, unless that frame is unlabeled.
    """
    phase = first = 0
    label = UNLABELED
    for label, stretch in groupby(labels):
        if label == UNLABELED:
            yield first, UNLABELED_MARK
        elif label == phase and first:
            yield first, RESUME_MARK
        yield from ((first, "") for _ in range(phase, label))
        phase, first = max(phase, label), first + len(list(stretch))
    if label != UNLABELED:
        yield from ((first, "") for _ in range(phase + 1, phases))
