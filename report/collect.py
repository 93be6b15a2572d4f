"""A run and the cache → what a report shows of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byov.cache.runs import RunRecord
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embedding_readers import RunEmbeddings
from byov.evaluate.table import Table
from byov.progress import SILENT, Progress
from byov.report import failures, nearest_frames, projection, provenance, scored_tables, similarity, tokens
from byov.report.content import Content, Sheet, ShownVideo, Unavailable
from byov.report.curves import read_curves
from byov.report.gallery import Gallery
from byov.report.material import Material, choose_split, read_material
from byov.report.sheets import read_tiles, sheet_of
from byov.report.video_files import VideoFiles

STEPS = 4  # embeddings, tables, t-SNE, frames; a bar says which is under way


@dataclass(frozen=True)
class Request:
    """What to report on."""

    runs_dir: Path
    features_dir: Path
    run: RunRecord
    compared: tuple[RunRecord, ...] = ()  # in the tables beside it
    split: str | None = None  # None: the first of test, val and train that has videos
    videos: Path | None = None  # a folder to look for the videos in
    seed: int = 0


def collect(request: Request, progress: Progress = SILENT) -> Content:
    with progress.bar("report", unit="step", total=STEPS, brief=True) as steps:
        reader = RunEmbeddings(request.runs_dir, request.features_dir, request.run.name)
        split = choose_split(reader.manifest, request.split)
        material = read_material(reader, request.runs_dir, request.features_dir, split)
        steps.advance(latest="tables")
        scored = _tables(request, material, progress)
        gallery, one_view = Gallery(), nearest_frames.one_view_only(material)
        played = nearest_frames.choose_player_videos(material, gallery)
        strips = nearest_frames.choose_strips(material, gallery)
        merged = tokens.choose_token_videos(material, gallery)
        compared = one_view or similarity.compare(material, gallery)
        worst = failures.find_failures(material, gallery)
        steps.advance(latest="t-SNE")
        projected = projection.project(material, gallery, request.seed)
        steps.advance(latest="frames")
        files = VideoFiles(material.feature_folder.parent, request.videos)
        tiles = read_tiles(material, gallery, files, progress)
        steps.advance()
    pictures = [one if isinstance(one, Unavailable) else sheet_of(one) for one in tiles.values()]
    shown = {video: index for index, video in enumerate(gallery.videos)}
    videos = _shown_videos(material, gallery, pictures)
    return Content(
        run=request.run.name,
        dataset=request.run.dataset,
        facts=provenance.facts(material),
        split=split,
        phases=reader.manifest.phases if any(video.labels for video in videos) else (),
        videos=videos,
        tables=scored,
        curves=read_curves(request.run),
        projection=projected,
        strips=one_view or nearest_frames.strips_with_pictures(strips, pictures),
        tokens=tokens.token_clips(material, merged, shown, tiles),
        similarity=compared,
        failures=worst,
        matches=one_view or nearest_frames.matches(material, played, shown, pictures),
        provenance=provenance.provenance(material, request.seed),
    )


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
    material: Material, gallery: Gallery, pictures: Sequence[Sheet | Unavailable]
) -> tuple[ShownVideo, ...]:
    return tuple(
        ShownVideo(
            name=material.segments[video].name,
            view=material.segments[video].video.view,
            frames=material.length(video),
            pts_seconds=material.pts_seconds(video),
            labels=material.labels(video),
            sheet=picture,
        )
        for video, picture in zip(gallery.videos, pictures, strict=True)
    )
