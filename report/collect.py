"""Collect the contents of a report from a run and the feature cache."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from math import isqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from byov.apply.align import nearest
from byov.cache.embeddings import read_source
from byov.cache.features import Header, read_header
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import VIEWS, video_path
from byov.cache.manifest import Manifest, VideoEntry, read_sources
from byov.cache.runs import METRICS_NAME, RunRecord, check_file, read_metrics
from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, RunEmbeddings
from byov.evaluate.evaluation import compare, frozen_columns, readers_to_compare, scope_of_all, scope_of_runs, tasks_of
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import tau_of_each_pair
from byov.evaluate.protocols import ScoredSplit, Segment, segments
from byov.evaluate.table import Table
from byov.evaluate.tasks import NEED_TRAINING, EvaluationOptions
from byov.progress import NO_PROGRESS, Progress
from byov.records import UNLABELED
from byov.report import analysis, provenance
from byov.report.analysis import centers, evenly_spaced
from byov.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    ManifestRow,
    PointMap,
    Projection,
    RunVectors,
    Sheet,
    ShownVideo,
    Similarity,
    Strip,
    TokenSelection,
    Unavailable,
    WorstVideo,
)
from byov.report.pictures import SourceVideos, TileRequest, Tiles, make_sheets, read_tiles

LOGGER = logging.getLogger(__name__)

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
NEED_LABELS = ("retrieval", "trimmed", "both")
NO_CURVE = ("epoch", "step", "lr")  # columns that are not plotted


@dataclass(frozen=True)
class Request:
    """Run and options of a report.

    Args:
        compared: Other runs to show in the tables; the first one is also shown in the figures.
        split: Default: the first of test, val and train that has videos.
        videos: Folder to search for the videos. Default: their location at extraction.
        seed: Random seed of t-SNE.
        max_mb: Size limit of the page in megabytes.
    """

    runs_dir: Path
    features_dir: Path
    run: RunRecord
    compared: tuple[RunRecord, ...] = ()
    split: str | None = None
    videos: Path | None = None
    seed: int = 0
    max_mb: float = 15.0  # small enough to send by email


@dataclass(frozen=True, eq=False)
class SplitEmbeddings:
    """Embeddings of the videos of a split that the report shows. Videos are referred to by index."""

    runs_dir: Path
    features_dir: Path
    reader: RunEmbeddings
    split: str
    segments: tuple[Segment, ...]
    frames: Frames

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def feature_folder(self) -> Path:
        return self.features_dir / self.reader.run.dataset / self.reader.run.encoder_folder

    def length(self, video: int) -> int:
        return len(self.segments[video])

    def of_view(self, view: str) -> list[int]:
        return [index for index, segment in enumerate(self.segments) if segment.video.view == view]

    def embeddings(self, video: int) -> NDArray[np.float32]:
        """Return (T, D) embeddings."""
        first = self.frames.starts[video]
        return self.frames.embeddings[first : first + self.frames.lengths[video]]

    def labels(self, video: int) -> tuple[int, ...] | None:
        """Return the phase of each frame, or None if the labels do not match the frames or the phases."""
        labels, phases = self.segments[video].labels, len(self.reader.manifest.phases)
        if not labels or len(labels) != self.length(video) or min(labels) < UNLABELED or max(labels) >= phases:
            return None
        return labels

    def by_run(self, run: str) -> "SplitEmbeddings":
        """Return another run's embeddings of the same videos."""
        reader = RunEmbeddings(self.runs_dir, self.features_dir, run)
        return replace(self, reader=reader, frames=reader.frames_of(self.segments, self.split))

    def feature_header(self, video: int) -> Header:
        """Return the header of a video's features.

        Raises:
            CacheError: If the features have changed since the run embedded them.
        """
        segment, run = self.segments[video], self.reader.run
        path = video_path(self.feature_folder, segment.video.view, segment.video.id)
        header, embedded = read_header(path), read_source(self.reader.path(segment))
        origin = header.provenance
        same = (origin.encoder, origin.encoder_sha256, origin.preprocessing) == (
            embedded.encoder,
            embedded.encoder_sha256,
            embedded.preprocessing,
        )
        if not same or read_digest(path, run.column) != embedded.column_sha256 or header.frames != len(segment):
            raise CacheError(f"{path}: these are not the features that {run.name} embedded; {self.reader.remedy}")
        return header

    def hide_paths(self, error: Exception) -> str:
        """Return an error message without local paths, since reports are shared."""
        text = str(error)
        for folder, name in ((self.features_dir, "features"), (self.runs_dir, "runs")):
            if folder != Path():
                text = text.replace(f"{folder}{os.sep}", f"{name}{os.sep}")
        return text


def collect(request: Request, progress: Progress = NO_PROGRESS) -> Content:
    """Collect the parts of a report. Parts that cannot be shown are `Unavailable`.

    Raises:
        EvaluationError: If the run has no current embeddings of the split.
    """
    with progress.bar("report", unit="step", total=4, brief=True) as steps:
        data = read_split(request)
        runs = [data, *compared_runs(data, request.compared[:1])]
        steps.advance(latest="tables")
        scored = _tables(request, data, progress)
        taus = None if len(data) == 1 else [tau_of_each_pair(run.frames.every(TAU_STRIDE)) for run in runs]
        strips = choose_strips(data)
        failures = find_failures(data, taus[0] if taus else None)
        token_frames = {
            video: centers(data.length(video), TOKEN_FRAMES) for view in VIEWS for video in data.of_view(view)[:1]
        }
        width = max(run.frames.embeddings.shape[1] for run in runs)
        lengths = [len(segment) for segment in data.segments]
        max_samples, picture_bytes = page_budget(lengths, width * len(runs), int(request.max_mb * 1e6))
        sampled = [evenly_spaced(length, max_samples) for length in lengths]
        steps.advance(latest="t-SNE")
        points = choose_points(sampled)
        projection = project(runs, points, request.seed)
        steps.advance(latest="frames")
        samples = _add_referenced_frames(sampled, strips, failures, token_frames)
        sources = SourceVideos(data.feature_folder.parent, request.videos)
        wanted = [_tile_request(data, sources, video, frames) for video, frames in enumerate(samples)]
        tiles = read_tiles(wanted, picture_bytes, progress)
        sheets = make_sheets(tiles, picture_bytes)
        steps.advance()
    videos = _shown_videos(data, samples, sheets, taus[0] if taus else None)
    one_view = next((view for view in VIEWS if len(data.of_view(view)) == len(data)), None)
    unmatched = Unavailable(f"the {data.split} split has only {one_view} videos")
    return Content(
        run=request.run.name,
        dataset=request.run.dataset,
        facts=provenance.facts(data.reader.run, data.split, data.frames),
        split=data.split,
        phases=data.reader.manifest.phases if any(video.labels for video in videos) else (),
        videos=videos,
        tables=scored,
        own_rows=(data.reader.name,),
        curves=read_curves(request.run),
        projection=projection,
        strips=unmatched if one_view else _strips_with_pictures(strips, sheets),
        tokens=token_selections(data, token_frames, tiles),
        similarity=unmatched if one_view else _similarity(data),
        failures=failures,
        vectors=_vectors(runs, samples, taus),
        manifest_rows=manifest_rows(data.reader.manifest, data.feature_folder.parent),
        provenance=provenance.provenance(data.reader, data.split, len(points), sheets, request.seed),
    )


def read_split(request: Request) -> SplitEmbeddings:
    """Read the run's embeddings of a split, for at most MAX_VIDEOS videos per view."""
    reader = RunEmbeddings(request.runs_dir, request.features_dir, request.run.name)
    split = request.split
    if split is None:
        available = {video.split for video in reader.manifest.videos if video.frames}
        split = next((split for split in SPLITS if split in available), SPLITS[0])
        if split != SPLITS[0]:
            LOGGER.info(f"{reader.manifest.dataset} has no test videos; the report shows the {split} split")
    everything = segments(reader.manifest, split)
    shown = limit_videos(everything)
    if len(shown) < len(everything):
        LOGGER.info(f"the figures show {len(shown)} of the {len(everything)} {split} videos")
    frames = reader.frames_of(shown, split)
    return SplitEmbeddings(request.runs_dir, request.features_dir, reader, split, tuple(shown), frames)


def limit_videos(everything: Sequence[Segment]) -> list[Segment]:
    """Select at most MAX_VIDEOS evenly spaced videos per view."""
    kept: set[int] = set()
    for view in VIEWS:
        of_view = [index for index, segment in enumerate(everything) if segment.video.view == view]
        kept |= {of_view[index] for index in evenly_spaced(len(of_view), MAX_VIDEOS)}
    return [everything[index] for index in sorted(kept)]


def compared_runs(data: SplitEmbeddings, runs: Sequence[RunRecord]) -> list[SplitEmbeddings]:
    """Read the embeddings of other runs; runs whose embeddings cannot be read are skipped."""
    read = []
    for run in runs:
        try:
            read.append(data.by_run(run.name))
        except (CacheError, EvaluationError) as error:
            LOGGER.info(f"{run.name} is in the tables only: {data.hide_paths(error)}")
    return read


def page_budget(lengths: Sequence[int], bytes_per_frame: int, page_bytes: int) -> tuple[int, int]:
    """Choose how many frames to show within the size limit of the page.

    Args:
        lengths: Number of frames of each video.
        bytes_per_frame: Size of a frame's embeddings.
        page_bytes: Size limit of the page.

    Returns:
        The maximum number of samples per video, and the bytes left for all pictures.
    """
    available = max(int((page_bytes - OTHER_BYTES) / BASE64_OVERHEAD), 0)
    for samples in range(MAX_SAMPLES, MIN_SAMPLES, -1):
        frames = sum(min(length, samples) for length in lengths)
        picture_bytes = available - frames * bytes_per_frame
        if picture_bytes >= frames * MIN_TILE_BYTES:
            break
    return samples, max(picture_bytes, 0)


def _tables(request: Request, data: SplitEmbeddings, progress: Progress) -> tuple[Table, ...] | Unavailable:
    """Compute the tables of byov-eval --task all."""
    manifest, runs = data.reader.manifest, (request.run, *request.compared)
    split: ScoredSplit | None = next((one for one in get_args(ScoredSplit) if one == data.split), None)
    if split is None:
        return Unavailable(f"{manifest.dataset} has no test or val videos to score")
    try:
        scope = scope_of_all(manifest, split, EvaluationOptions())
        has_training = any(video.frames for video in manifest.videos if video.split == "train")
        if NEED_TRAINING & set(scope.tasks) and not has_training:
            return Unavailable(f"{manifest.dataset} has no train videos, which {', '.join(scope.tasks)} need")
        scope = scope_of_runs(scope, request.runs_dir, request.features_dir, runs, explicit=False)
        frozen = frozen_columns(request.features_dir, manifest.dataset, [run.column for run in runs])
        readers = readers_to_compare(request.runs_dir, request.features_dir, manifest.dataset, runs, baselines=frozen)
        return tuple(compare(manifest, readers, scope, progress).tables())
    except (CacheError, EvaluationError) as error:
        return Unavailable(data.hide_paths(error))


def choose_strips(data: SplitEmbeddings) -> tuple[Strip, ...]:
    """Retrieve across views for evenly spaced videos and frames; () if there is only one view."""
    strips = {}
    for query_view, candidate_view in (VIEWS, VIEWS[::-1]):
        queries, candidates = data.of_view(query_view), data.of_view(candidate_view)
        for part in range(QUERIES if queries and candidates else 0):
            video = queries[(2 * part + 1) * len(queries) // (2 * QUERIES)]
            frame = (2 * part + 1) * data.length(video) // (2 * QUERIES)
            others = [(other, data.embeddings(other)) for other in candidates]
            retrieved = analysis.nearest_of_each(data.embeddings(video)[frame], others, RETRIEVED)
            strips[video, frame] = Strip(FrameRef(video, frame), retrieved)
    return tuple(strips.values())


def _strips_with_pictures(
    strips: Sequence[Strip], sheets: Sequence[Sheet | Unavailable]
) -> tuple[Strip, ...] | Unavailable:
    """Keep the strips with pictures of the query and of at least one retrieved frame."""

    def has_picture(ref: FrameRef) -> bool:
        return isinstance(sheets[ref.video], Sheet)

    shown = tuple(strip for strip in strips if has_picture(strip.query) and any(map(has_picture, strip.retrieved)))
    return shown or next(sheet for sheet in sheets if isinstance(sheet, Unavailable))


def _similarity(data: SplitEmbeddings) -> Similarity:
    """Compare the first videos of both views."""
    ego, exo = (data.of_view(view)[0] for view in VIEWS)
    return analysis.compare_videos(ego, data.embeddings(ego), exo, data.embeddings(exo))


def find_failures(data: SplitEmbeddings, taus: NDArray[np.float64] | None) -> Failures | Unavailable:
    """Find the videos with the lowest mean tau, given (V, V) taus, or None if there is only one video."""
    manifest = data.reader.manifest
    if taus is None:
        return Unavailable(f"the {data.split} split has only one video")
    if "tau" not in tasks_of(manifest):
        return Unavailable(f"the videos of {manifest.dataset} show different actions, so they have no Kendall's tau")
    means = analysis.mean_taus(taus)
    ascending = np.argsort(means, kind="stable")  # NaN last
    chosen = [int(video) for video in ascending[:WORST_VIDEOS] if not np.isnan(means[video])]
    if not chosen:
        return Unavailable("no pair of videos has a Kendall's tau, since the nearest frame never changes")
    worst = []
    for video in chosen:
        frames = centers(data.length(video), WORST_FRAMES)
        others = [other for other in range(len(data)) if other != video]
        partner = min(others, key=lambda other: np.nan_to_num(taus[video, other], nan=np.inf))
        matched = nearest(data.embeddings(video)[list(frames)], data.embeddings(partner))
        tau = float(taus[video, partner])
        worst.append(WorstVideo(video, float(means[video]), frames, partner, tau, tuple(matched.tolist())))
    reference = FrameRef(chosen[0], data.length(chosen[0]) // 2)
    similarity = analysis.softmax_similarity(data.embeddings(reference.video), reference.frame)
    return Failures(tuple(worst), reference, similarity)


def choose_points(sampled: Sequence[tuple[int, ...]]) -> list[FrameRef]:
    """Choose the frames for t-SNE: at most the same number of samples from each video."""
    limit = max(TSNE_POINTS // len(sampled), 2)
    return [
        FrameRef(video, frames[index])
        for video, frames in enumerate(sampled)
        for index in evenly_spaced(len(frames), limit)
    ]


def project(runs: Sequence[SplitEmbeddings], points: Sequence[FrameRef], seed: int) -> Projection | Unavailable:
    """Compute t-SNE maps of the frozen features, the untrained model and the runs; the reported run is the first."""
    data, run = runs[0], runs[0].reader.run
    if len(points) < MIN_TSNE_POINTS:
        return Unavailable(f"t-SNE needs at least {MIN_TSNE_POINTS} frames, and there are {len(points)}")

    def read(reader: EmbeddingReader) -> NDArray[np.float32]:
        by_video = groupby(points, key=lambda ref: ref.video)
        return np.concatenate(
            [reader.rows(data.segments[video])[[ref.frame for ref in refs]] for video, refs in by_video]
        )

    try:
        features = CachedFeatures(data.features_dir, run.dataset, run.encoder_folder, run.column)
        for video in range(len(data)):
            data.feature_header(video)  # raises if the features have changed
        embeddings = {f"Frozen: {features.name}": read(features)}
    except (CacheError, EvaluationError) as error:
        return Unavailable(data.hide_paths(error))
    with suppress(CacheError, EvaluationError):  # the embeddings of the untrained model may have been deleted
        embeddings["Untrained"] = read(RunEmbeddings(data.runs_dir, data.features_dir, run.name, untrained=True))
    for one in runs:
        rows = [one.embeddings(ref.video)[ref.frame] for ref in points]
        embeddings[f"Trained: {one.reader.run.name}"] = np.stack(rows)
    maps = tuple(PointMap(title, analysis.tsne(rows, seed)) for title, rows in embeddings.items())
    return Projection(tuple(points), maps, len(data.frames.embeddings))


def _add_referenced_frames(
    sampled: Sequence[tuple[int, ...]],
    strips: Sequence[Strip],
    failures: Failures | Unavailable,
    token_frames: Mapping[int, tuple[int, ...]],
) -> list[tuple[int, ...]]:
    """Add the frames that other parts show, so that each video is decoded only once."""
    frames = [set(each) for each in sampled]
    for strip in strips:
        for ref in (strip.query, *strip.retrieved):
            frames[ref.video].add(ref.frame)
    if isinstance(failures, Failures):
        frames[failures.reference.video].add(failures.reference.frame)
        for worst in failures.worst:
            frames[worst.video].update(worst.frames)
            frames[worst.partner].update(worst.matched)
    for video, chosen in token_frames.items():
        frames[video].update(chosen)
    return [tuple(sorted(each)) for each in frames]


def _tile_request(
    data: SplitEmbeddings, sources: SourceVideos, video: int, frames: tuple[int, ...]
) -> TileRequest | Unavailable:
    try:
        header = data.feature_header(video)
    except CacheError as error:
        return Unavailable(data.hide_paths(error))
    path = sources.find(data.segments[video].video.id, header.provenance)
    return path if isinstance(path, Unavailable) else TileRequest(path, frames, header.truncated)


def token_selections(
    data: SplitEmbeddings, frames: Mapping[int, tuple[int, ...]], tiles: Sequence[Tiles | Unavailable]
) -> tuple[TokenSelection, ...] | Unavailable:
    """Return the token selection of some videos; `Unavailable` if none can be shown."""
    selections = [_token_selection(data, video, chosen, tiles[video]) for video, chosen in frames.items()]
    shown = tuple(one for one in selections if isinstance(one, TokenSelection))
    return shown or next(one for one in selections if isinstance(one, Unavailable))


def _token_selection(
    data: SplitEmbeddings, video: int, frames: tuple[int, ...], tiles: Tiles | Unavailable
) -> TokenSelection | Unavailable:
    if isinstance(tiles, Unavailable):
        return tiles
    try:
        header = data.feature_header(video)
        order = read_array(header.path, "order")
    except CacheError as error:
        return Unavailable(data.hide_paths(error))
    tokens, name = order.shape[1], data.segments[video].name
    if not tokens or isqrt(tokens) ** 2 != tokens:
        return Unavailable(f"the {tokens} tokens per frame of {name} do not form a square grid")
    if order.max() >= tokens:
        return Unavailable(f"{name} has {tokens} tokens, but refers to token {order.max()}. Run byov-extract again.")
    cropped = header.provenance.preprocessing.startswith("crop")
    pictures = [
        [
            analysis.darken_excluded(
                tiles.pixels[tiles.frames.index(frame)],
                analysis.selected_patches(order[frame], ratio),
                cropped=cropped,
            )
            for frame in frames
        ]
        for ratio in TOKEN_RATIOS
    ]
    return TokenSelection(video, frames, TOKEN_RATIOS, np.array(pictures))


def _shown_videos(
    data: SplitEmbeddings,
    samples: Sequence[tuple[int, ...]],
    sheets: Sequence[Sheet | Unavailable],
    taus: NDArray[np.float64] | None,
) -> tuple[ShownVideo, ...]:
    has_tau = taus is not None and "tau" in tasks_of(data.reader.manifest)
    means = analysis.mean_taus(taus) if taus is not None and has_tau else np.full(len(data), np.nan)
    return tuple(
        ShownVideo(
            name=segment.name,
            view=segment.video.view,
            frames=len(segment),
            pts_seconds=read_array(data.reader.path(segment), "pts_seconds", remedy=data.reader.remedy),
            labels=data.labels(video),
            samples=samples[video],
            tau=None if np.isnan(means[video]) else float(means[video]),
            sheet=sheets[video],
        )
        for video, segment in enumerate(data.segments)
    )


def _vectors(
    runs: Sequence[SplitEmbeddings],
    samples: Sequence[tuple[int, ...]],
    taus: Sequence[NDArray[np.float64]] | None,
) -> tuple[RunVectors, ...] | Unavailable:
    if taus is None:
        return Unavailable(f"the {runs[0].split} split has only one video")
    return tuple(
        RunVectors(
            run.reader.run.name,
            tuple(run.embeddings(video)[list(frames)] for video, frames in enumerate(samples)),
            of_run,
        )
        for run, of_run in zip(runs, taus, strict=True)
    )


def read_curves(run: RunRecord) -> Curves | Unavailable:
    """Read a run's losses and validation scores from metrics.jsonl."""
    path = run.folder / METRICS_NAME
    records = read_metrics(path)
    if not records:
        return Unavailable(f"the run has no {METRICS_NAME}, or it is damaged")
    try:
        check_file(path, run.training)
    except CacheError as error:
        return Unavailable(f"{METRICS_NAME} is damaged ({error})")
    names = dict.fromkeys(name for record in records for name in record)
    losses = [name for name in names if name not in (*NO_CURVE, *VALIDATION) and not name.startswith("map@")]
    return Curves(
        losses=tuple(_curve(records, name) for name in losses),
        validation=tuple(_curve(records, name) for name in VALIDATION if name in names),
        kept_epoch=_kept_epoch(records, str(run.settings.get("select"))),
    )


def _curve(records: Sequence[dict[str, Any]], name: str) -> Curve:
    present = [record for record in records if name in record]
    return Curve(name, tuple(record["epoch"] for record in present), tuple(float(record[name]) for record in present))


def _kept_epoch(records: Sequence[dict[str, Any]], metric: str) -> int | None:
    """Return the first epoch with the best value of the selection metric."""
    trained = [record for record in records if record["epoch"] > 0]
    if metric in NEED_LABELS and not any(metric in record for record in trained):
        metric = "tau"  # like byov-train without labels
    candidates = [record for record in trained if metric in VALIDATION and metric in record]
    best = max(candidates, key=lambda record: record[metric], default=None)
    return None if best is None else int(best["epoch"])


def manifest_rows(manifest: Manifest, dataset_folder: Path) -> tuple[ManifestRow, ...]:
    """Return all videos of the dataset as rows of the CSV that byov-extract --manifest reads."""
    paths = _relative_paths(dataset_folder)
    return tuple(
        ManifestRow(
            path=paths.get(video.id, ""),
            view=video.view,
            split=video.split,
            id=video.id,
            events=events_cell(video, len(manifest.phases)),
            pair=video.pair or "",
        )
        for video in manifest.videos
    )


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


def _relative_paths(dataset_folder: Path) -> Mapping[str, str]:
    """Return source paths by video id, relative to their common folder, since reports are shared."""
    try:
        sources = read_sources(dataset_folder)
        top = os.path.commonpath([path.parent for path in sources.values()])
    except (CacheError, ValueError):  # damaged, empty, or on different drives
        return {}
    return {video: path.relative_to(top).as_posix() for video, path in sources.items()}
