"""Find the moment of a frame in other videos."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.apply.annotate import TOLERANCE, Annotator
from byov.apply.annotated_videos import AnnotatedVideos
from byov.apply.annotation_files import to_csv
from byov.apply.side_by_side import draw_captions, read_panels
from byov.cache.atomic import replacing_file, write_text
from byov.cache.layout import MOMENTS_NAME, SHEET_NAME
from byov.data.dataset import Video
from byov.data.video import STRICT, DecodingPolicy
from byov.errors import ApplyError
from byov.evaluate.transfer import BANDWIDTH, square_distances
from byov.progress import NO_PROGRESS, Progress, track

SHEET_COLUMNS = 5
PANEL_HEIGHT = 180  # pixels
MAX_PANELS = 100  # number of frames in a contact sheet
MOMENT_COLUMNS = ("video", "frame", "seconds", "confidence")


@dataclass(frozen=True)
class Moment:
    """Frame of a video that shows the same moment as a query frame."""

    video: Video
    frame: int
    seconds: float
    confidence: float  # estimated probability that the moment is within TOLERANCE of this frame


def find_moment(
    videos: AnnotatedVideos, query: Video, moment: str, progress: Progress = NO_PROGRESS
) -> list[Moment]:
    """Find the frame of each video that is nearest to a frame of the query video.

    Args:
        videos: Videos to search, including the query video.
        query: Query video.
        moment: Time or index of the query frame, such as "3.2s" or "48f".
        progress: Progress reporter, updated after each video.

    Returns:
        Query frame, followed by the moments in the other videos, most confident first.

    >>> videos = byov.list_videos([Path("datasets/demo/test")])
    >>> annotated = byov.AnnotatedVideos(byov.load_run("demo-byov"), videos, Path("cache"))
    >>> [moment.video.id for moment in find_moment(annotated, videos[0], "1.5s")][:2]
    ['test_ego_00', 'test_exo_00']
    """
    if query not in videos.videos:
        raise ApplyError(videos.failures[query.source])
    annotator = videos.annotator
    features, query_seconds = videos.read(query)
    frame = (
        int(moment[:-1])
        if moment.endswith("f")
        else int(np.argmin(np.abs(query_seconds - float(moment.rstrip("s")))))
    )
    if frame >= len(query_seconds):
        raise ApplyError(
            f"{query.source} has {len(query_seconds)} frames, so there is no frame {frame}."
        )
    embedding = annotator.run.embed(features)[frame]
    moments = []
    for video in track(videos.videos, progress, "searching", unit="video"):
        if video == query:
            continue
        features, times = videos.read(video)
        distances = square_distances(embedding[None], annotator.run.embed(features))[0]
        nearest = int(distances.argmin())
        confidence = _confidence(distances, annotator)
        moments.append(Moment(video, nearest, float(times[nearest]), confidence))
    moments.sort(key=lambda moment: -moment.confidence)
    return [Moment(query, frame, float(query_seconds[frame]), 1.0), *moments]


def _confidence(square_distances: NDArray[np.float64], annotator: Annotator) -> float:
    """Return the probability of the frames around the nearest one; it is lower if even that frame
    is far away.
    """
    logits = -square_distances / (2 * BANDWIDTH * annotator.variance or 1.0)
    weights = np.exp(logits - logits.max())
    apart = np.abs(np.arange(len(square_distances)) - square_distances.argmin())
    near = weights[apart <= max(1, TOLERANCE * len(square_distances))].sum() / weights.sum()
    nearest = max(float(np.sqrt(square_distances.min())), 1e-9)
    return float(near * min(1.0, annotator.training.usual_distance / nearest))


def write_moments(moments: Sequence[Moment], folder: Path, policy: DecodingPolicy = STRICT) -> None:
    """Write a table of moments, and a contact sheet with the frames of the first ones."""
    rows = [
        (each.video.id, str(each.frame), f"{each.seconds:.3f}", f"{each.confidence:.4f}")
        for each in moments
    ]
    write_text(folder / MOMENTS_NAME, to_csv([MOMENT_COLUMNS, *rows]))
    panels = [_panel(moment, policy) for moment in moments[:MAX_PANELS]]
    width = max(panel.width for panel in panels)
    columns = min(SHEET_COLUMNS, len(panels))
    height = -(-len(panels) // columns) * PANEL_HEIGHT
    sheet = Image.new("RGB", (columns * width, height))
    for index, panel in enumerate(panels):
        sheet.paste(panel, (index % columns * width, index // columns * PANEL_HEIGHT))
    with replacing_file(folder / SHEET_NAME) as file:
        sheet.save(file, "JPEG", quality=85)


def _panel(moment: Moment, policy: DecodingPolicy) -> Image.Image:
    video = moment.video
    panels = read_panels(video.path, None, PANEL_HEIGHT, policy, video.segment)
    panel = next(islice(panels, moment.frame, None), None)
    if panel is None:
        raise ApplyError(f"{video.source} has changed: it no longer has frame {moment.frame}.")
    text = f"{video.id}   {moment.seconds:.2f} s   {moment.confidence:.0%}"
    draw_captions(panel, [(0, text)])
    return panel
