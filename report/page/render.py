"""Render a report as a self-contained HTML file with inline styles, script, data and pictures."""

import csv
import io
import re
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.evaluate.table import PUBLISHED
from byov.records import UNLABELED, VIEWS
from byov.report import figures
from byov.report.content import Content, Projection, RunVectors, ShownVideo, VideoClip
from byov.report.examples import TAU_STRIDE, evenly_spaced
from byov.report.moments import OPENING_VIDEOS
from byov.report.page.template import base64_text, data_uri, render_template
from byov.report.pictures import jpeg_bytes
from byov.report.style import PHASES, paper_style, time_colors
from byov.text import printable

CSS_PX_PER_INCH = 125  # scales the 8 pt text in charts to 14 px, as on the page
MAP_PX = 400
MAP_MARGIN_PX = 14  # size and margin of a t-SNE map
# twice the displayed width, for high-resolution screens
TOKEN_PX = 176
TOKEN_QUALITY = 82
INT8_MAX = 127
CURVES = 8  # curves of predicted progress shown at first, half of them per view
CURVE_POINTS = 100
CURVE_HEIGHT = 40  # of the drawing, whose width is 100
# Followed by the events column.
CSV_COLUMNS = ("path", "view", "split", "id", "pair", "start", "end")
MEANINGS = {
    "loss": "training objective: the weighted sum of the other losses, if there are any",
    "self": "masked self-view modeling: masked frames are reconstructed from the rest of their "
    "video",
    "cross": "masked cross-view modeling: masked frames are also reconstructed from a video of "
    "the other view",
    "cycle": "cycle consistency: mapping a frame to the other video and back should return to it",
    "each": "contrastive loss that matches frames with the same progress label in two videos",
    "all": "the same over the frames of all videos in the batch",
    "intra": "contrastive loss that matches the frames of two parts of the same video",
    "retrieval": "map@10 across views on whole videos, averaged over both directions",
    "trimmed": "the same on sub-clips",
    "both": "mean of retrieval and trimmed",
    "tau": "Kendall's tau over all pairs of videos",
}
GLOSSARY = {
    "a clock": "picks the frame at the same fraction of the other video, without looking at it",
    "frozen features": "features of the vision model that the run was trained on, as they are",
    "F1": "how well a classifier recognizes the phases of single frames, averaged over the phases "
    "(weighted F1 score, in percent)",
    "map@10": "whether the ten nearest frames in other videos show the phase of the query (mean "
    "average precision, in percent)",
    "Time only": "the clock as a row of a table: a frame is its relative position in the video",
    "Untrained": "the model before training, with random weights",
    "standardized": "features scaled to zero mean and unit deviation in each video",
    "Regular": "both cameras are mixed",
    "Ego2Exo": "from first-person (ego) to third-person (exo) videos; Exo2Ego is the reverse",
    "standard protocol": "whole test videos",
    "trimmed protocol": "random sub-clips of the test videos, in which time alone says little",
    "online protocol": "each frame is embedded from the frames up to it, as in live use",
    "Progress error": "distance between predicted and true progress, in percent of the action",
    "Kendall's tau": "whether nearest frames keep their order in time; a clock gets 1, so it does "
    "not show that the action was understood",
}
# Tooltips of all terms in the glossary and of their variants.
TOOLTIPS = GLOSSARY | {
    "Exo2Ego": "from third-person (exo) to first-person (ego) videos",
    "sub-clips": GLOSSARY["trimmed protocol"],
    "online": GLOSSARY["online protocol"],
}
TERMS = re.compile(rf"\b({'|'.join(map(re.escape, TOOLTIPS))})\b")


def render_page(content: Content) -> str:
    """Render the page. The output is deterministic."""
    with paper_style():
        charts = {name: _chart(figure) for name, figure in figures.draw_charts(content)}
    return render_template(
        "page.html.j2",
        styles=("base.css", "page.css"),
        scripts=("clips.js", "page.js"),
        content=content,
        videos=content.videos,
        published=PUBLISHED,
        missing_paths=sum(not row["path"] for row in content.manifest_rows),
        charts=charts,
        data=_page_data(content),
        points=_points(content),
        curves=_curves(content),
        stride=max((video.clip.stride for video in content.videos if video.clip), default=1),
        some_unlabeled=any(UNLABELED in (video.labels or (UNLABELED,)) for video in content.videos),
        colors=len(PHASES),
        map_size=MAP_PX,
        curve_height=CURVE_HEIGHT,
        meanings=MEANINGS,
        opening_videos=OPENING_VIDEOS,
        glossary=GLOSSARY,
        split_terms=split_terms,
        address=_address,
        jpeg_uri=partial(data_uri, "image/jpeg"),
        tau_stride=TAU_STRIDE,
        token_picture=_token_picture,
    )


def split_terms(text: str) -> list[tuple[str, str]]:
    """Split text at the terms of the glossary, and return its parts. Terms have their meaning where
    they first stand; all other parts have "".

    >>> [(part, bool(meaning)) for part, meaning in split_terms("Retrieval (map@10)")]
    [('Retrieval (', False), ('map@10', True), (')', False)]
    """
    meanings = dict(TOOLTIPS)
    return [(part, meanings.pop(part, "")) for part in TERMS.split(text)]


def _chart(figure: Figure) -> dict[str, Any]:
    """Return a figure as SVG, with text as outlines so that no font is needed."""
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "byov", "svg.fonttype": "path"}):
        figure.savefig(
            written, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    width, height = (round(float(inches) * CSS_PX_PER_INCH) for inches in figure.get_size_inches())
    return {"uri": data_uri("image/svg+xml", written.getvalue()), "width": width, "height": height}


def _token_picture(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((TOKEN_PX, TOKEN_PX))
    return {
        "uri": data_uri("image/jpeg", jpeg_bytes(image, TOKEN_QUALITY)),
        "width": image.width,
        "height": image.height,
    }


def _points(content: Content) -> list[tuple[str, str, str]]:
    """Return (view, CSS class, color for the time in the video) for each point in the t-SNE
    maps.
    """
    points = []
    for ref in content.projection.frames if content.projection else ():
        video = content.videos[ref.video]
        phase = video.phase(ref.frame)
        name = "unlabeled" if phase is None else f"p{phase % len(PHASES)}"
        color = to_hex(time_colors()(ref.frame / max(video.frames - 1, 1)))
        points.append((video.view, name if content.phases else "", color))
    return points


def _page_data(content: Content) -> dict[str, Any]:
    """Return the data for page.js."""

    projection = content.projection or Projection((), ())
    shades = matplotlib.colormaps["viridis_r"](np.arange(256), bytes=True)
    numbers = [quantize(np.concatenate(run.embeddings)) for run in content.vectors or ()]
    return {
        "dataset": printable(content.dataset),
        "phases": [printable(name) for name in content.phases],
        "videos": [_video_data(video) for video in content.videos],
        "runs": [
            _run_data(run, *each) for run, each in zip(content.vectors or (), numbers, strict=True)
        ],
        "start": {
            "video": content.opening.video,
            "frame": content.opening.frame,
            "other": content.opening.other,
            "mode": "path",
        },
        "points": projection.frames,
        "maps": [
            fit_points(points, MAP_PX, MAP_MARGIN_PX).round(1).tolist()
            for _, points in projection.maps
        ],
        "shades": base64_text(shades.tobytes()),
        "header": ",".join((*CSV_COLUMNS, "events\n")),
        "rows": [_manifest_data(row) for row in content.manifest_rows],
    }


def fit_points(points: NDArray[np.float64], size: float, margin: float) -> NDArray[np.float64]:
    """Scale (n, 2) points into a square of `size` pixels, with equal aspect ratio and the y-axis
    pointing up.
    """
    low = points.min(axis=0)
    high = points.max(axis=0)
    scale = (size - 2 * margin) / max(float((high - low).max()), 1e-12)
    fitted: NDArray[np.float64] = size / 2 + (points - (low + high) / 2) * scale * np.array(
        [1.0, -1.0]
    )
    return fitted


def quantize(embeddings: NDArray[np.float32]) -> tuple[NDArray[np.int8], float]:
    """Center (n, D) embeddings and quantize them to 8 bits; return the integers and the step
    size.
    """
    centered = embeddings - embeddings.mean(axis=0, dtype=np.float64)
    step = float(np.abs(centered).max()) / INT8_MAX or 1.0
    return np.round(centered / step).astype(np.int8), step


def _address(video: str, frame: int, other: str = "") -> str:
    """Return the link that shows a frame in the player, as in page.js."""
    partner = f"&with={quote(printable(other))}" if other else ""
    return f"#video={quote(printable(video))}&frame={frame}{partner}"


def _video_data(video: ShownVideo) -> dict[str, Any]:
    phases = [video.phase(frame) for frame in video.samples]
    clip = video.clip or VideoClip(b"", 4, 3, 1)
    return {
        "name": printable(video.name),
        "view": printable(video.view),
        "count": video.frames,
        "mp4": base64_text(clip.mp4),
        "width": clip.width,
        "height": clip.height,
        "stride": clip.stride,
        "samples": video.samples,
        "seconds": video.pts_seconds.round(3).tolist(),
        "phases": video.phase_runs(),
        "boundaries": [
            at
            for at, pair in enumerate(pairwise(phases), start=1)
            if None not in pair and pair[0] != pair[1]
        ],
    }


def _curves(content: Content) -> list[dict[str, Any]]:
    """Return the curves of predicted progress as points of SVG polylines; those that the page shows
    at first come first.
    """
    predictions = content.predictions or ()
    labeled = [video for video, predicted in enumerate(predictions) if predicted is not None]
    first = set()
    for view in VIEWS:
        videos = [video for video in labeled if content.videos[video].view == view]
        first |= {videos[index] for index in evenly_spaced(len(videos), CURVES // 2)}
    curves = []
    for video in sorted(labeled, key=lambda video: video not in first):
        predicted = predictions[video]
        if predicted is None:
            continue
        clock_error, *run_errors = predicted.errors()
        named = {"truth": predicted.reference, "by-clock": predicted.clock}
        named |= {f"run-{index}": values for index, values in enumerate(predicted.runs)}
        curves.append(
            {
                "video": video,
                "lines": {name: _points_text(values) for name, values in named.items()},
                "clock_error": clock_error,
                "run_errors": run_errors,
            }
        )
    return curves


def _points_text(progress: NDArray[np.float64]) -> str:
    """Return the points of a curve over the frames of a video; the y-axis points down."""
    frames = np.array(evenly_spaced(len(progress), CURVE_POINTS))
    x = 100 * (frames + 0.5) / len(progress)
    y = CURVE_HEIGHT * (1 - 0.9 * progress[frames] - 0.05)
    return " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))


def _manifest_data(row: dict[str, str]) -> dict[str, Any]:
    """Return the data of a CSV row for page.js. "count" is None if there are no labels or they end
    early.
    """
    before = io.StringIO()
    csv.writer(before, lineterminator="").writerow(printable(row[name]) for name in CSV_COLUMNS)
    known = row["events"] and not row["events"].endswith(UNLABELED_MARK)
    return {
        "name": printable(f"{row['view']}/{row['id']}"),
        "before": before.getvalue(),
        "events": printable(row["events"]),
        "count": sum(
            not event.endswith((UNLABELED_MARK, RESUME_MARK)) for event in row["events"].split(";")
        )
        if known
        else None,
    }


def _run_data(run: RunVectors, numbers: NDArray[np.int8], step: float) -> dict[str, Any]:
    return {
        "name": printable(run.name),
        "width": numbers.shape[1],
        "step": step,
        "numbers": base64_text(numbers.tobytes()),
        "taus": [
            [None if np.isnan(tau) else round(tau, 3) for tau in row] for row in run.taus.tolist()
        ],
    }
