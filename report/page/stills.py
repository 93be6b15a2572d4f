"""Parts that are rows of pictures: retrieval strips and selected tokens."""

import io

import numpy as np
from numpy.typing import NDArray

from byov.report.content import Content, FrameRef, Strip, TokenClip
from byov.report.frame_text import phase_name, phase_of, seconds_text
from byov.report.page.html import Html, data_uri, element, joined
from byov.report.page.tiles import frame_address, linked_tile, picture_row

JPEG_QUALITY = 82
TOKEN_PX = 176  # twice as wide as they are shown, for fine screens


def strips_html(content: Content, strips: tuple[Strip, ...]) -> Html:
    return joined(
        element("div", id="live-strips", hidden=True),
        element("h3", "Examples"),
        *(_strip(content, strip) for strip in strips),
        element("p", _strips_caption(content), class_="caption"),
    )


def tokens_html(content: Content, clips: tuple[TokenClip, ...]) -> Html:
    caption = (
        "What selective token merging keeps of each frame: patches that change most from frame to frame stay bright, "
        "the others are dark and do not enter the frame's feature. Look whether hands and objects in use survive at "
        "small ratios, and whether a moving camera (ego) keeps more of the background than a fixed one (exo)."
    )
    drawn = element("div", *(_clip(content, clip) for clip in clips), class_="pair")
    return joined(drawn, element("p", caption, class_="caption"))


def verdict(query_phase: int | None, phase: int | None) -> Html | None:
    """Whether a match is of the query's phase, where both are known."""
    if query_phase is None or phase is None:
        return None
    same = phase == query_phase
    return element("span", "✓ same phase" if same else "✗ other phase", class_="same" if same else "other")


def _strip(content: Content, strip: Strip) -> Html:
    video = content.videos[strip.query.video]
    stills = [_still(content, strip, strip.query, "Query")]
    stills += [
        _still(content, strip, reference, f"Nearest {rank}") for rank, reference in enumerate(strip.retrieved, start=1)
    ]
    return picture_row(stills, f"Retrieved for frame {strip.query.frame} of {video.name}")


def _still(content: Content, strip: Strip, shown: FrameRef, title: str) -> Html:
    """A picture framed by whether it is of the query's phase; a click shows it beside the query in the player."""
    video, query = content.videos[shown.video], content.videos[strip.query.video]
    is_query = shown == strip.query
    phase, query_phase = phase_of(video, shown.frame), phase_of(query, strip.query.frame)
    beside = None if is_query else shown.video
    address = frame_address(content.videos, strip.query.video, strip.query.frame, beside)
    kind = "query" if is_query else "plain" if phase is None or query_phase is None else None
    return element(
        "figure",
        linked_tile(content.videos, shown.video, shown.frame, address),
        element(
            "figcaption",
            element("b", title),
            element("span", video.name),
            element("span", f"{seconds_text(video, shown.frame)}, frame {shown.frame}"),
            None if phase is None else element("span", phase_name(content.phases, phase), class_="phase"),
            None if is_query else verdict(query_phase, phase),
        ),
        class_=f"still {kind or ('right' if phase == query_phase else 'wrong')}",
    )


def _strips_caption(content: Content) -> str:
    judged = (
        "framed green where they are of the query's phase and red where they are not"
        if content.phases
        else "as they come"
    )
    return (
        f"A query frame (framed blue) and its nearest frames of the other view, {judged}: the nearest of each video, "
        "nearest video first. Look whether they show the same moment of the action from the other camera. The first "
        "rows follow the player; a click shows query and match there."
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

    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((TOKEN_PX, TOKEN_PX))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    uri = data_uri("image/jpeg", buffer.getvalue())
    return element("img", src=uri, alt=alt, width=image.width, height=image.height)
