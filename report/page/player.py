"""The player: a frame of one video, and beside it the nearest of a video of the other view. page.js makes it move."""

from byov.report.content import Content, PlayerMatch, Unavailable
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import legend, phase_legend

NEEDS_SCRIPT = "The player needs scripts, which are switched off here; all other parts can be read without."
NO_PICTURES = "Not shown: there are no pictures of videos of both views."


def player_html(content: Content, matches: tuple[PlayerMatch, ...]) -> Html:
    if not any(match.frames for match in matches):
        return joined(element("p", NO_PICTURES, class_="unavailable"), *_reasons(content))
    caption = (
        "Move the slider (arrow keys work too): on the left a frame of the chosen video, on the right the frame of "
        "the other video whose embedding is nearest. Look whether both show the same moment of the action. The bars "
        "are the videos from start to end, with a mark where the shown frame is. The first videos of each view are "
        "here, and of long ones not all frames; the nearest is found among all, and the closest in time that can be "
        "shown stands for it."
    )
    return joined(
        element("noscript", element("p", NEEDS_SCRIPT, class_="unavailable")),
        element(
            "div",
            element("div", _side("query", "Video"), _side("candidate", "Nearest frame in"), class_="pair"),
            _controls(),
            id="stage",
            hidden=True,
        ),
        legend(phase_legend(content)) if content.phases else None,
        element("p", caption, class_="caption"),
        *_reasons(content),
    )


def _side(name: str, label: str) -> Html:
    return element(
        "div",
        element("label", element("span", label), element("select", id=f"{name}-video")),
        element("span", class_="tile", id=f"{name}-tile", role="img"),
        _timeline(name),
        element("p", element("b", id=f"{name}-time"), element("span", id=f"{name}-phase"), class_="reading"),
        class_="side",
    )


def _timeline(name: str) -> Html:
    return element(
        "svg",
        id=f"{name}-line",
        class_="timeline",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _controls() -> Html:
    return element(
        "div",
        element("button", "Play", type="button", id="play"),
        element("input", type="range", id="scrub", min=0, max=0, value=0, step=1, aria_label="Frame"),
        class_="controls",
    )


def _reasons(content: Content) -> list[Html]:
    """Why some videos have no pictures."""
    return [
        element("p", f"No pictures of {video.name}: {video.sheet.reason}", class_="unavailable")
        for video in content.videos
        if isinstance(video.sheet, Unavailable)
    ]
