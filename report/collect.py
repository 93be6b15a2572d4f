"""Collect the contents of a report from a run and the feature cache."""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, groupby
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from byov.apply.align import nearest
from byov.cache.features import Header, video_header
from byov.cache.hdf5 import read_array
from byov.cache.manifest import Manifest, load_index, read_sources
from byov.cache.runs import DIAGNOSTICS_PREFIX, METRICS_NAME, RunRecord, read_metrics
from byov.data.dataset import parse_source
from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.device import usable_cores
from byov.errors import CacheError, EvaluationError, TrainError
from byov.evaluate.compare import Results, compare, compared_readers
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import tau_of_each_pair
from byov.evaluate.protocols import Segment, segments
from byov.evaluate.readers import CachedFeatures, EmbeddingReader, RunEmbeddings
from byov.evaluate.scope import available_tasks, choose_scope
from byov.evaluate.table import verdict
from byov.evaluate.tasks import EvaluationOptions
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import UNLABELED, VIEWS, Split
from byov.report import analysis, content, provenance
from byov.report.analysis import centers, evenly_spaced
from byov.report.content import FrameRef, Unavailable
from byov.report.pictures import Pixels, SourceVideos, encode_pictures, thumbnail_area
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.progress import aligned_progress

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

SPLITS: tuple[Split, ...] = ("test", "val", "train")  # in order of preference
MAX_VIDEOS = 60  # maximum number of videos per view
# limits on the number of sampled frames per video
MAX_SAMPLES = 100
MIN_SAMPLES = 8
MIN_PICTURE_BYTES = 2500  # about 180 x 135 pixels as JPEG
OTHER_BYTES = 1_200_000  # page size without pictures and embeddings
BASE64_OVERHEAD = 4 / 3
TSNE_POINTS = 600
MIN_TSNE_POINTS = 5
# queries per direction, retrieved frames per query
QUERIES = 3
RETRIEVED = 5
TOKEN_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
TOKEN_FRAMES = 5
WORST_VIDEOS = 3
WORST_FRAMES = 5
PROGRESS_FRAMES = 8
PROGRESS_PICTURE_PX = 160 * 120
PRELOADED_BYTES = 1 << 30
TAU_STRIDE = EvaluationOptions().tau_stride
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


@dataclass(frozen=True, eq=False)
class SplitEmbeddings:
    """Embeddings of a run for the videos shown in a report. Methods take the index of a video."""

    runs_dir: Path
    features_dir: Path
    reader: RunEmbeddings
    split: Split
    segments: tuple[Segment, ...]
    frames: Frames

    @property
    def feature_folder(self) -> Path:
        return self.features_dir / self.reader.run.dataset / self.reader.run.encoder_folder

    @cached_property
    def taus(self) -> NDArray[np.float64]:
        """Kendall's tau for each query and candidate video, shape (V, V); NaN if undefined."""
        return tau_of_each_pair(self.frames.every(TAU_STRIDE))

    @cached_property
    def mean_taus(self) -> NDArray[np.float64]:
        """Mean tau of each video over its pairs, as query and as candidate, shape (V,);

        NaN if undefined.
        """
        if "tau" not in available_tasks(self.reader.manifest):
            return np.full(len(self.segments), np.nan)
        known = np.ma.masked_invalid(np.concatenate([self.taus, self.taus.T], axis=1))
        means: NDArray[np.float64] = known.mean(axis=1).filled(np.nan)
        return means

    def of_view(self, view: str) -> list[int]:
        return [index for index, segment in enumerate(self.segments) if segment.video.view == view]

    def embeddings(self, video: int) -> NDArray[np.float32]:
        """Return the (T, D) embeddings of a video."""
        first = self.frames.starts[video]
        return self.frames.embeddings[first : first + self.frames.lengths[video]]

    def feature_header(self, video: int) -> Header:
        return video_header(
            self.feature_folder, self.segments[video].video.view, self.segments[video].video.id
        )


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
            for video in data.of_view(view)[:1]
        }
        bytes_per_frame = sum(one.frames.embeddings.shape[1] for one in runs)
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
        read = partial(attempt, _decode, data, sources, area)
        with ThreadPoolExecutor(usable_cores()) as pool:
            done = pool.map(read, range(len(samples)), samples)
            pixels = list(
                track(done, progress, "frames", unit="video", total=len(samples), brief=True)
            )
        pictures = encode_pictures(pixels, picture_bytes)
        steps.advance()
    if strips:  # drop strips whose query has no picture
        shown_strips = tuple(strip for strip in strips if pictures[strip[0].video])
        strips = shown_strips or next(each for each in pictures if isinstance(each, Unavailable))
    tokens = [
        attempt(token_selection, data, video, frames, samples[video], pixels[video])
        for video, frames in token_frames.items()
    ]
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
        tokens=tuple(one for one in tokens if one)
        or next(one for one in tokens if isinstance(one, Unavailable)),
        failures=failures,
        progress=attempt(progress_labels, data, sources),
        vectors=attempt(_vectors, data, runs, samples),
        manifest_rows=manifest_rows(data.reader.manifest, data.feature_folder.parent),
        provenance=provenance.provenance(data.reader),
    )


def read_split(
    runs_dir: Path, features_dir: Path, run: str, split: Split | None = None
) -> SplitEmbeddings:
    """Read a run's embeddings for a split, of at most MAX_VIDEOS videos per view."""
    reader = RunEmbeddings(runs_dir, features_dir, run)
    available = {video.split for video in reader.manifest.videos if video.frames}
    usual: Split = min(SPLITS, key=lambda name: name not in available)
    if split is None and usual != "test":
        LOGGER.info(
            f"{reader.manifest.dataset} has no test videos; the report shows the {usual} split"
        )
    split = split or usual
    everything = segments(reader.manifest, split)
    shown = limit_videos(everything)
    if len(shown) < len(everything):
        LOGGER.info(f"the figures show {len(shown)} of the {len(everything)} {split} videos")
    return SplitEmbeddings(
        runs_dir, features_dir, reader, split, tuple(shown), reader.frames_of(shown, split)
    )


def limit_videos(everything: Sequence[Segment]) -> list[Segment]:
    """Select at most MAX_VIDEOS evenly spaced videos per view, ego first."""
    views = [[segment for segment in everything if segment.video.view == view] for view in VIEWS]
    return [videos[index] for videos in views for index in evenly_spaced(len(videos), MAX_VIDEOS)]


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


def _require_two_videos(data: SplitEmbeddings) -> None:
    if len(data.segments) == 1:
        raise EvaluationError(f"the {data.split} split has only one video")


def choose_strips(data: SplitEmbeddings) -> tuple[content.Strip, ...]:
    """Retrieve frames across views, with queries evenly spaced over videos and frames."""
    for view in VIEWS:
        if not data.of_view(view):
            raise EvaluationError(f"the {data.split} split has no {view} videos")
    strips = {}
    for query_view, candidate_view in (VIEWS, VIEWS[::-1]):
        queries = data.of_view(query_view)
        for part in range(QUERIES):
            video = queries[(2 * part + 1) * len(queries) // (2 * QUERIES)]
            frame = (2 * part + 1) * len(data.segments[video]) // (2 * QUERIES)
            query = data.embeddings(video)[frame].astype(np.float64)
            found = []
            for other in data.of_view(candidate_view):
                distances = np.linalg.norm(data.embeddings(other) - query, axis=1)
                found.append((distances.min(), FrameRef(other, int(distances.argmin()))))
            strips[video, frame] = (
                FrameRef(video, frame),
                *(ref for _, ref in sorted(found)[:RETRIEVED]),
            )
    return tuple(strips.values())


def find_failures(data: SplitEmbeddings) -> content.Failures:
    """Find the videos with the lowest mean tau, and their worst matches."""
    _require_two_videos(data)
    manifest = data.reader.manifest
    if "tau" not in available_tasks(manifest):
        raise EvaluationError(
            f"the videos of {manifest.dataset} show different actions, so Kendall's tau is "
            "undefined"
        )
    taus = data.taus
    means = data.mean_taus
    ascending = np.argsort(means, kind="stable")  # NaN values come last
    chosen = [int(video) for video in ascending[:WORST_VIDEOS] if not np.isnan(means[video])]
    if not chosen:
        raise EvaluationError("Kendall's tau is undefined because the nearest frame never changes")
    worst = []
    for video in chosen:
        frames = centers(len(data.segments[video]), WORST_FRAMES)
        others = [other for other in range(len(data.segments)) if other != video]
        partner = min(others, key=lambda other: np.nan_to_num(taus[video, other], nan=np.inf))
        matched = nearest(data.embeddings(video)[list(frames)], data.embeddings(partner)).tolist()
        pairs = [
            (FrameRef(video, at), FrameRef(partner, match))
            for at, match in zip(frames, matched, strict=True)
        ]
        tau = float(taus[video, partner])
        worst.append(content.WorstVideo(video, float(means[video]), partner, tau, tuple(pairs)))
    reference = FrameRef(chosen[0], len(data.segments[chosen[0]]) // 2)
    z = data.embeddings(reference.video).astype(np.float64)
    # The softmax of unit vectors is always flat.
    is_unit = np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-2)
    similarity = None if is_unit else softmax(z @ z[reference.frame] / np.sqrt(z.shape[1]))
    return content.Failures(tuple(worst), reference, similarity)


def project(
    data: SplitEmbeddings,
    runs: Sequence[SplitEmbeddings],
    sampled: Sequence[tuple[int, ...]],
    seed: int,
) -> content.Projection:
    """Compute t-SNE maps of the frozen features, the untrained model and the runs from some samples
    of each video.
    """
    limit = max(TSNE_POINTS // len(sampled), 2)
    chosen = [[frames[index] for index in evenly_spaced(len(frames), limit)] for frames in sampled]
    points = [FrameRef(video, frame) for video, frames in enumerate(chosen) for frame in frames]
    if len(points) < MIN_TSNE_POINTS:
        raise EvaluationError(f"t-SNE needs at least {MIN_TSNE_POINTS} frames, found {len(points)}")

    def read(reader: EmbeddingReader) -> NDArray[np.float32]:
        videos = zip(data.segments, chosen, strict=True)
        return np.concatenate([reader.rows(segment)[frames] for segment, frames in videos])

    run = data.reader.run
    features = CachedFeatures(data.features_dir, run.dataset, run.encoder_folder, run.column)
    embeddings = {f"Frozen: {features.name}": read(features)}
    # The embeddings of the untrained model may have been deleted.
    with suppress(CacheError, EvaluationError):
        embeddings["Untrained"] = read(
            RunEmbeddings(data.runs_dir, data.features_dir, run.name, untrained=True)
        )
    for one in runs:
        embeddings[f"Trained: {one.reader.run.name}"] = read(one.reader)
    maps = tuple((title, analysis.tsne(rows, seed)) for title, rows in embeddings.items())
    return content.Projection(tuple(points), maps)


def _decode(
    data: SplitEmbeddings, sources: SourceVideos, area: int, video: int, frames: Sequence[int]
) -> Pixels:
    return sources.decode(data.feature_header(video), frames, area)


def token_selection(
    data: SplitEmbeddings,
    video: int,
    frames: tuple[int, ...],
    samples: Sequence[int],
    pixels: Pixels | Unavailable,
) -> content.TokenSelection:
    """Darken the tokens excluded at each ratio in some frames of a video, given the pixels of its
    samples.
    """
    if isinstance(pixels, Unavailable):
        raise CacheError(pixels.reason)
    header = data.feature_header(video)
    order = read_array(header.path, "order")
    tokens = order.shape[1]
    if not tokens or isqrt(tokens) ** 2 != tokens or order.max() >= tokens:
        raise CacheError(f"the tokens of {data.segments[video].name} do not form a square grid")
    cropped = header.provenance.preprocessing.startswith("crop")
    shown = [(pixels[samples.index(frame)], order[frame]) for frame in frames]
    pictures = [
        [analysis.darken_excluded(*each, ratio, cropped=cropped) for each in shown]
        for ratio in TOKEN_RATIOS
    ]
    return content.TokenSelection(video, frames, TOKEN_RATIOS, np.array(pictures))


def _vectors(
    data: SplitEmbeddings, runs: Sequence[SplitEmbeddings], samples: Sequence[tuple[int, ...]]
) -> tuple[content.RunVectors, ...]:
    _require_two_videos(data)
    vectors = []
    for run in runs:
        of_video = tuple(
            run.embeddings(video)[list(frames)] for video, frames in enumerate(samples)
        )
        vectors.append(content.RunVectors(run.reader.run.name, of_video, run.taus))
    return tuple(vectors)


def progress_labels(
    data: SplitEmbeddings, sources: SourceVideos
) -> tuple[content.ProgressLabels, ...]:
    """Return, for each view, the labels of the training video in which they differ most from
    normalized time.
    """
    run = data.reader.run
    if run.settings.get("method") != "timeline" or run.settings.get("progress_labels") != "aligned":
        return ()
    training = open_training_data(data.features_dir, run.dataset, run.encoder_folder, run.ratio)
    videos = training.of("train")
    read = FeatureStore(training, videos, PRELOADED_BYTES).read
    labels = aligned_progress(videos, [video.view for video in videos], read, run.seed)
    shown = []
    for view in VIEWS:
        gaps = [
            np.abs(label.numpy() - np.linspace(0, 1, len(label))).mean()
            if video.view == view
            else 0.0
            for video, label in zip(videos, labels, strict=True)
        ]
        if not max(gaps, default=0.0):
            continue
        video = videos[int(np.argmax(gaps))]
        label = labels[int(np.argmax(gaps))].double().numpy()
        frames = centers(len(label), PROGRESS_FRAMES)
        header = video_header(training.folder, view, video.id)
        pictures = None
        with suppress(CacheError):
            pictures = sources.decode(header, frames, PROGRESS_PICTURE_PX)
        shown.append(content.ProgressLabels(f"{view}/{video.id}", label, frames, pictures))
    return tuple(shown)


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
        row = {
            "path": paths.get(video.id, ""),
            "view": video.view,
            "split": video.split,
            "id": video.id,
        }
        row["events"] = events_cell(video.labels or (), len(manifest.phases))
        row["start"], row["end"] = parse_source(fragments.get(video.id, ""))[1].cells
        rows.append(row | {"pair": video.pair or ""})
    return tuple(rows)


def events_cell(labels: Sequence[int], phases: int) -> str:
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
        first = first + len(list(stretch))
    if labels[-1] != UNLABELED:
        events += [f"{first}f" for _ in range(phase + 1, phases)]
    return ";".join(events)
