"""A run and the cache → what a report shows of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from byov.cache.runs import RunRecord
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.table import Table
from byov.progress import NO_PROGRESS, Progress
from byov.report import failures, nearest_frames, projection, provenance, room, scored_tables, similarity, tokens
from byov.report.content import Content, Sheet, ShownVideo, Unavailable
from byov.report.curves import read_curves
from byov.report.gallery import Gallery
from byov.report.listing import list_videos
from byov.report.material import Material, choose_split, read_material
from byov.report.sheets import make_sheets, read_tiles
from byov.report.vectors import compared_material, run_vectors
from byov.report.video_files import VideoFiles

STEPS = 4  # embeddings, tables, t-SNE, frames; a bar says which is under way
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Request:
    """What to report on."""

    runs_dir: Path
    features_dir: Path
    run: RunRecord
    compared: tuple[RunRecord, ...] = ()  # in the tables beside it; the first of them everywhere else too
    split: str | None = None  # None: the first of test, val and train that has videos
    videos: Path | None = None  # a folder to look for the videos in
    seed: int = 0
    max_mb: float = 15.0  # of the page: what can still be sent as a mail


def collect(request: Request, progress: Progress = NO_PROGRESS) -> Content:
    with progress.bar("report", unit="step", total=STEPS, brief=True) as steps:
        reader = RunEmbeddings(request.runs_dir, request.features_dir, request.run.name)
        split = choose_split(reader.manifest, request.split)
        material = read_material(reader, request.runs_dir, request.features_dir, split)
        materials = _materials(request, material)
        steps.advance(latest="tables")
        scored = _tables(request, material, progress)
        space = _room(request, materials)
        gallery, one_view = Gallery(len(material)), nearest_frames.one_view_only(material)
        evenly_spread = [room.moments(material.length(video), space) for video in range(len(material))]
        for video, frames in enumerate(evenly_spread):
            gallery.show(video, frames)
        strips = nearest_frames.choose_strips(material, gallery)
        merged = tokens.choose_token_videos(material, gallery)
        compared = one_view or similarity.compare(material)
        taus = failures.pair_taus(material)
        worst = failures.find_failures(material, gallery, taus)
        steps.advance(latest="t-SNE")
        chosen = projection.choose_frames(evenly_spread)
        projected = projection.project(materials, chosen, request.seed)
        steps.advance(latest="frames")
        files = VideoFiles(material.feature_folder.parent, request.videos)
        tiles = read_tiles(material, gallery, files, space.picture_bytes, progress)
        pictures = make_sheets(tiles, space.picture_bytes)
        steps.advance()
    videos = _shown_videos(material, gallery, pictures, taus)
    return Content(
        run=request.run.name,
        dataset=request.run.dataset,
        facts=provenance.facts(material),
        split=split,
        phases=reader.manifest.phases if any(video.labels for video in videos) else (),
        videos=videos,
        tables=scored,
        own_rows=(reader.name,),
        curves=read_curves(request.run),
        projection=projected,
        strips=one_view or nearest_frames.strips_with_pictures(strips, pictures),
        tokens=tokens.token_clips(material, merged, tiles),
        similarity=compared,
        failures=worst,
        vectors=run_vectors(materials, [video.moments for video in videos]),
        listing=list_videos(reader.manifest, material.feature_folder.parent),
        provenance=provenance.provenance(material, chosen, pictures, request.seed),
    )


def _materials(request: Request, material: Material) -> list[Material]:
    """Of the run, and of the first that it is compared with."""
    others = [compared_material(material, run.name) for run in request.compared[:1]]
    return [material, *(other for other in others if other is not None)]


def _room(request: Request, materials: Sequence[Material]) -> room.Room:
    """Embeddings of two runs may differ in width."""
    lengths = [materials[0].length(video) for video in range(len(materials[0]))]
    width = max(material.frames.embeddings.shape[1] for material in materials)
    return room.divide(lengths, width, len(materials), int(request.max_mb * MEGABYTE))


def _tables(request: Request, material: Material, progress: Progress) -> tuple[Table, ...] | Unavailable:
    """They need more than the figures: training videos, and the other runs."""
    try:
        runs = (request.run, *request.compared)
        return scored_tables.score(
            request.runs_dir, request.features_dir, material.reader.manifest, runs, material.split, progress
        )
    except (CacheError, EvaluationError) as error:
        return Unavailable(material.without_places(error))


def _shown_videos(
    material: Material,
    gallery: Gallery,
    pictures: Sequence[Sheet | Unavailable],
    taus: failures.Taus | Unavailable,
) -> tuple[ShownVideo, ...]:
    means = np.full(len(material), np.nan) if isinstance(taus, Unavailable) else failures.mean_taus(taus)
    return tuple(
        ShownVideo(
            name=segment.name,
            view=segment.video.view,
            frames=material.length(video),
            pts_seconds=material.pts_seconds(video),
            labels=material.labels(video),
            moments=gallery.frames(video),
            tau=None if np.isnan(means[video]) else float(means[video]),
            sheet=pictures[video],
        )
        for video, segment in enumerate(material.segments)
    )
