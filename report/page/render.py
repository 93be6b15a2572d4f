"""Render a report as a self-contained HTML file with inline styles, script, data and pictures."""

import csv
import io
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise, product
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist

from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.evaluate.table import PUBLISHED
from byov.records import UNLABELED
from byov.report import figures
from byov.report.content import Content, FrameRef, Projection, RunVectors, ShownVideo
from byov.report.examples import TAU_STRIDE
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
OPENING_VIDEOS = 8  # videos per view that are searched for the opening frame
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


def render_page(content: Content) -> str:
    """Render the page. The output is deterministic."""
    environment = Environment(
        loader=PackageLoader("byov.report.page", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    style, script = (
        files("byov.report.page").joinpath(name).read_text("utf-8")
        for name in ("page.css", "page.js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_csp_hash(style)}'; script-src "
        f"'{_csp_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    with paper_style():
        charts = {name: _chart(figure) for name, figure in figures.draw_charts(content)}
    return (
        environment.get_template("page.html.j2")
        .render(
            content=content,
            videos=content.videos,
            published=PUBLISHED,
            missing_paths=sum(not row["path"] for row in content.manifest_rows),
            charts=charts,
            policy=policy,
            style=style,
            script=script,
            data=_page_data(content),
            points=_points(content),
            some_unlabeled=any(
                UNLABELED in (video.labels or (UNLABELED,)) for video in content.videos
            ),
            colors=len(PHASES),
            map_size=MAP_PX,
            meanings=MEANINGS,
            tau_stride=TAU_STRIDE,
            token_picture=_token_picture,
        )
        .lstrip()
    )  # the macros leave blank lines at the top


def _printable(value: Any) -> Any:
    """Escape control characters in all text that the template inserts."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _csp_hash(text: str) -> str:
    return f"sha256-{_base64(sha256(text.encode('utf-8')).digest())}"


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{_base64(content)}"


def _chart(figure: Figure) -> dict[str, Any]:
    """Return a figure as SVG, with text as outlines so that no font is needed."""
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "byov", "svg.fonttype": "path"}):
        figure.savefig(
            written, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    width, height = (round(float(inches) * CSS_PX_PER_INCH) for inches in figure.get_size_inches())
    return {"uri": _data_uri("image/svg+xml", written.getvalue()), "width": width, "height": height}


def _token_picture(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((TOKEN_PX, TOKEN_PX))
    return {
        "uri": _data_uri("image/jpeg", jpeg_bytes(image, TOKEN_QUALITY)),
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

    def sample(ref: FrameRef) -> list[int]:
        return [ref.video, content.videos[ref.video].samples.index(ref.frame)]

    projection = content.projection or Projection((), ())
    failures = content.failures
    shades = matplotlib.colormaps["viridis_r"](np.arange(256), bytes=True)
    numbers = [quantize(np.concatenate(run.embeddings)) for run in content.vectors or ()]
    return {
        "dataset": printable(content.dataset),
        "phases": [printable(name) for name in content.phases],
        "videos": [_video_data(video) for video in content.videos],
        "runs": [
            _run_data(run, *each) for run, each in zip(content.vectors or (), numbers, strict=True)
        ],
        "start": opening_frame(content.videos, numbers[0][0] if numbers else None),
        "points": [sample(ref) for ref in projection.frames],
        "strips": [list(map(sample, strip)) for strip in content.strips or ()],
        "failures": [
            [tuple(map(sample, pair)) for pair in worst.pairs]
            for worst in (failures.worst if failures else ())
        ],
        "reference": sample(failures.reference)
        if failures and failures.similarity is not None
        else None,
        "maps": [
            fit_points(points, MAP_PX, MAP_MARGIN_PX).round(1).tolist()
            for _, points in projection.maps
        ],
        "shades": _base64(shades.tobytes()),
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


def opening_frame(
    videos: tuple[ShownVideo, ...], numbers: NDArray[np.int8] | None
) -> dict[str, int]:
    """Return the sample that the page shows first, and the video it is compared with.

    Choose a sample whose nearest sample has the right phase while the sample at the same relative
    time has a wrong one, from the ego-exo pair with the most such samples. If there are none,
    choose the first sample of the first ego video.
    """
    ego, exo = (
        [index for index, video in enumerate(videos) if video.view == view]
        for view in ("ego", "exo")
    )
    start = {"video": (ego + exo)[0], "sample": 0, "other": (exo or ego)[0]}
    if numbers is None:
        return start
    vectors = np.split(
        numbers.astype(np.float64), np.cumsum([len(video.samples) for video in videos])[:-1]
    )
    most = 0
    for index, other in product(ego[:OPENING_VIDEOS], exo[:OPENING_VIDEOS]):
        video = videos[index]
        partner = videos[other]
        times = np.array(video.samples) / max(video.frames - 1, 1) * (partner.frames - 1)
        nearest = cdist(vectors[index], vectors[other]).argmin(axis=1)
        clock = np.abs(np.array(partner.samples) - times[:, None]).argmin(axis=1)
        phases, theirs = (
            [each.phase(frame) for frame in each.samples] for each in (video, partner)
        )
        right = [
            at
            for at, phase in enumerate(phases)
            if phase is not None
            and theirs[nearest[at]] == phase
            and theirs[clock[at]] not in (None, phase)
        ]
        if len(right) > most:
            most = len(right)
            start = {"video": index, "sample": right[len(right) // 2], "other": other}
    return start


def _video_data(video: ShownVideo) -> dict[str, Any]:
    phases = [video.phase(frame) for frame in video.samples]
    return {
        "name": printable(video.name),
        "view": printable(video.view),
        "count": video.frames,
        "pictures": [_base64(jpeg) for jpeg in video.pictures or ()],
        "frames": video.samples,
        "seconds": video.pts_seconds[list(video.samples)].round(4).tolist(),
        "phases": phases,
        "boundaries": [
            at
            for at, pair in enumerate(pairwise(phases), start=1)
            if None not in pair and pair[0] != pair[1]
        ],
    }


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
        "numbers": _base64(numbers.tobytes()),
        "taus": [
            [None if np.isnan(tau) else round(tau, 3) for tau in row] for row in run.taus.tolist()
        ],
    }
