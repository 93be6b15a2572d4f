"""Parts that are rows of pictures: retrieval strips and selected tokens."""

import io

import numpy as np
from numpy.typing import NDArray

from byov.report.content import Content, FrameRef, Strip, TokenClip
from byov.report.frame_text import phase_name, phase_of, seconds_text
from byov.report.page.html import Html, data_uri, element, joined
from byov.report.page.tiles import picture_row, tile

JPEG_QUALITY = 82


def strips_html(content: Content, strips: tuple[Strip, ...]) -> Html:
    return joined(
        *(_strip(content, strip) for strip in strips), element("p", _strips_caption(content), class_="caption")
    )


def tokens_html(content: Content, clips: tuple[TokenClip, ...]) -> Html:
    caption = (
        "What selective token merging keeps of each frame: patches that change most from frame to frame stay bright, "
        "the others are dark and do not enter the frame's feature. Look whether hands and objects in use survive at "
        "small ratios, and whether a moving camera (ego) keeps more of the background than a fixed one (exo)."
    )
    drawn = element("div", *(_clip(content, clip) for clip in clips), class_="pair")
    return joined(drawn, element("p", caption, class_="caption"))


def _strip(content: Content, strip: Strip) -> Html:
    video = content.videos[strip.query.video]
    query = _still(content, strip.query, "query", "Query", None)
    query_phase = phase_of(video, strip.query.frame)
    retrieved = [
        _still(content, reference, "retrieved", f"Nearest {rank}", query_phase)
        for rank, reference in enumerate(strip.retrieved, start=1)
    ]
    return picture_row([query, *retrieved], f"Retrieved for frame {strip.query.frame} of {video.name}")


def _still(content: Content, reference: FrameRef, kind: str, title: str, query_phase: int | None) -> Html:
    """A framed picture, and whether it is of the query's phase."""
    video = content.videos[reference.video]
    phase = phase_of(video, reference.frame)
    lines = [
        element("b", title),
        element("span", video.name),
        element("span", f"{seconds_text(video, reference.frame)}, frame {reference.frame}"),
    ]
    if phase is not None:
        lines.append(element("span", phase_name(content.phases, phase), class_="phase"))
    if phase is not None and query_phase is not None:
        same = phase == query_phase
        lines.append(element("span", "✓ same phase" if same else "✗ other phase", class_="same" if same else "other"))
    picture = tile(content.videos, reference.video, reference.frame)
    return element("figure", picture, element("figcaption", *lines), class_=f"still {kind}")


def _strips_caption(content: Content) -> str:
    tail = " Below each it says whether the phase is the query's." if content.phases else ""
    return (
        "A query frame (blue) and its nearest frames of the other view (red): the nearest of each video, nearest "
        "video first. Look whether they show the same moment of the action from the other camera." + tail
    )


def _clip(content: Content, clip: TokenClip) -> Html:
    video = content.videos[clip.video]
    times = [element("th", seconds_text(video, frame), scope="col") for frame in clip.frames]
    head = element("thead", element("tr", element("th", "Ratio", scope="col"), *times))
    rows = [
        element(
            "tr",
            element("th", f"{ratio:g}", scope="row"),
            *(
                element("td", _picture(picture, f"{video.name}, frame {frame}, ratio {ratio:g}"))
                for frame, picture in zip(clip.frames, pictures, strict=True)
            ),
        )
        for ratio, pictures in zip(clip.ratios, clip.pictures, strict=True)
    ]
    name = f"Selected tokens of {video.name}"
    table = element("table", head, element("tbody", *rows), class_="tokens", aria_label=name)
    heading = element("h3", f"{video.name} ({video.view})")
    scrolled = element("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)
    return element("figure", heading, scrolled)


def _picture(pixels: NDArray[np.uint8], alt: str) -> Html:
    from PIL import Image

    height, width, _ = pixels.shape
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return element("img", src=data_uri("image/jpeg", buffer.getvalue()), alt=alt, width=width, height=height)
