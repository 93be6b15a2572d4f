"""Render a report as a self-contained HTML file with inline styles, script, data and pictures."""

import csv
import io
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.records import UNLABELED
from byov.report import figures
from byov.report.analysis import fit_points, quantize
from byov.report.collect import TAU_STRIDE
from byov.report.content import Content, FrameRef, ManifestRow, RunVectors, ShownVideo
from byov.report.pictures import jpeg_bytes
from byov.report.style import PHASES, paper_style
from byov.text import printable

MAP_PX, MAP_MARGIN_PX = 400, 14  # side of a t-SNE map, and its margin
TOKEN_PX, TOKEN_QUALITY = 176, 82  # twice the displayed width, for high-resolution screens
MEANINGS = {
    "self": "masked self-view modeling: masked frames are reconstructed from the rest of their video",
    "cross": "masked cross-view modeling: masked frames are reconstructed with the help of a video of the other view",
    "cycle": "cycle consistency: mapping a frame to the other video and back should return to it",
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
    style, script = (files("byov.report.page").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    sheets = _sheet_styles(content.videos)
    style_hashes = " ".join(f"'{_csp_hash(each)}'" for each in (style, *sheets))
    policy = (
        f"default-src 'none'; img-src data:; style-src {style_hashes}; script-src '{_csp_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    with paper_style():
        charts = {
            "curves": _chart(figures.draw_curves(content.curves)) if content.curves else None,
            "softmax": _chart(figures.draw_softmax(content, content.failures)) if content.failures else None,
        }
    page = environment.get_template("page.html.j2").render(
        content=content,
        videos=content.videos,
        tables=_tables(content),
        missing_paths=sum(not row.path for row in content.manifest_rows),
        charts=charts,
        policy=policy,
        style=style,
        script=script,
        sheets=sheets,
        data=_page_data(content),
        some_unlabeled=any(UNLABELED in (video.labels or (UNLABELED,)) for video in content.videos),
        map_size=MAP_PX,
        meanings=MEANINGS,
        tau_stride=TAU_STRIDE,
        token_picture=_token_picture,
    )
    return page.lstrip()  # macros leave blank lines


def _printable(value: Any) -> Any:
    """Escape control characters in all text that the template inserts."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _csp_hash(text: str) -> str:
    return f"sha256-{_base64(sha256(text.encode('utf-8')).digest())}"


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{_base64(content)}"


def _tables(content: Content) -> list[dict[str, Any]]:
    """Return the tables as HTML. Tables of several tasks are expanded, or else the first; the others are folded."""
    tables = content.tables or ()
    main = [table for table in tables if len({column.score.partition("/")[0] for column in table.columns}) > 1]
    return [
        {"title": table.title, "html": table.to_html((content.own_row,)), "is_main": table in (main or tables[:1])}
        for table in tables
    ]


def _chart(figure: Figure) -> dict[str, Any]:
    width, height = (round(float(inches) * figures.CSS_PX_PER_INCH) for inches in figure.get_size_inches())
    return {"uri": _data_uri("image/svg+xml", figures.svg_chart(figure)), "width": width, "height": height}


def _token_picture(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((TOKEN_PX, TOKEN_PX))
    uri = _data_uri("image/jpeg", jpeg_bytes(image, TOKEN_QUALITY))
    return {"uri": uri, "width": image.width, "height": image.height}


def _sheet_styles(videos: Sequence[ShownVideo]) -> list[str]:
    """Return one style sheet per video. They are at the end of the page, so that text appears before pictures."""
    sheets = {index: video.sheet for index, video in enumerate(videos) if video.sheet}
    styles = []
    for columns in sorted({sheet.columns for sheet in sheets.values()}):
        positions = [100 * column / (columns - 1) if columns > 1 else 50 for column in range(columns)]
        rules = [f".c{columns}x{column}{{background-position-x:{x:.4f}%}}" for column, x in enumerate(positions)]
        styles.append("\n".join(rules))
    for index, sheet in sheets.items():
        size = f"{_zoom(sheet.tile_width, sheet.columns)} {_zoom(sheet.tile_height, 1)}"
        ratio = sheet.tile_width / sheet.tile_height
        rules = [f".v{index}{{--ratio:{ratio:.4f};--wide:{sheet.tile_width}px;background-size:{size}}}"]
        for row, jpeg in enumerate(sheet.rows):
            rules.append(f".v{index}r{row}{{background-image:url({_data_uri('image/jpeg', jpeg)})}}")
        styles.append("\n".join(rules))
    return styles


def _zoom(tile_px: int, tiles: int) -> str:
    """Return the sheet size relative to the tile, cropped by half a pixel per side to hide neighboring tiles."""
    return f"{100 * tiles * tile_px / max(tile_px - 1, 1):.4f}%"


def _page_data(content: Content) -> dict[str, Any]:
    """Return the data for page.js."""

    def sample(ref: FrameRef) -> list[int]:
        return [ref.video, content.videos[ref.video].samples.index(ref.frame)]

    refs = content.projection.frames if content.projection else ()
    maps = content.projection.maps if content.projection else ()
    worst_videos = content.failures.worst if content.failures else ()
    shades = matplotlib.colormaps["viridis_r"](np.arange(256), bytes=True)
    return {
        "dataset": printable(content.dataset),
        "colors": len(PHASES),
        "phases": [printable(name) for name in content.phases],
        "videos": [_video_data(video) for video in content.videos],
        "runs": [_run_data(run) for run in content.vectors or ()],
        "points": [sample(ref) for ref in refs],
        "strips": [[sample(ref) for ref in (strip.query, *strip.retrieved)] for strip in content.strips or ()],
        "failures": [[tuple(map(sample, pair)) for pair in worst.pairs] for worst in worst_videos],
        "reference": sample(content.failures.reference) if content.failures else None,
        "maps": [fit_points(points, MAP_PX, MAP_MARGIN_PX).round(1).tolist() for _, points in maps],
        "shades": _base64(shades.tobytes()),
        "header": f"{','.join(ManifestRow._fields)}\n",
        "rows": [_manifest_data(row) for row in content.manifest_rows],
    }


def _video_data(video: ShownVideo) -> dict[str, Any]:
    phases = [video.phase(frame) for frame in video.samples]
    pairs = enumerate(pairwise(phases), start=1)
    return {
        "name": printable(video.name),
        "view": printable(video.view),
        "count": video.frames,
        "columns": video.sheet.columns if video.sheet else 0,
        "frames": video.samples,
        "seconds": video.pts_seconds[list(video.samples)].round(4).tolist(),
        "phases": phases,
        "boundaries": [at for at, pair in pairs if None not in pair and pair[0] != pair[1]],
    }


def _manifest_data(row: ManifestRow) -> dict[str, Any]:
    """Return a row of the CSV around its events, and their number, or None if there are no labels or they end early."""
    events = row.events.split(";")
    known = row.events and not row.events.endswith(UNLABELED_MARK)
    return {
        "name": printable(f"{row.view}/{row.id}"),
        "before": _csv_line(row.path, row.view, row.split, row.id),
        "events": printable(row.events),
        "after": _csv_line(row.pair, row.start, row.end),
        "count": sum(not event.endswith((UNLABELED_MARK, RESUME_MARK)) for event in events) if known else None,
    }


def _csv_line(*fields: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(printable, fields))
    return line.getvalue()


def _run_data(run: RunVectors) -> dict[str, Any]:
    numbers, step = quantize(np.concatenate(run.of_video))
    taus = [[None if np.isnan(tau) else round(tau, 3) for tau in row] for row in run.taus.tolist()]
    return {
        "name": printable(run.name),
        "width": numbers.shape[1],
        "step": step,
        "numbers": _base64(numbers.tobytes()),
        "taus": taus,
    }
