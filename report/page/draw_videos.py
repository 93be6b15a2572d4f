"""The videos of the split, a row each: what it is, how well it is matched, its phases."""

from byov.report.content import Content, ShownVideo
from byov.report.frame_text import known_seconds
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import phase_class, phase_runs
from byov.report.page.tiles import frame_address, linked_tile

HEADINGS = ("Video", "View", "Frames", "Seconds", "Mean tau", "Phases")
CAPTION = (
    "All videos that this page is about. Mean tau: Kendall's tau over the pairs of a video with all others, in both "
    "roles. A click on a name or a picture moves the player to the video, a click on the bar to that moment of it."
)


def videos_html(content: Content) -> Html:
    head = element("tr", *(element("th", name, scope="col") for name in HEADINGS[: 6 if content.phases else 5]))
    rows = [_row(content, index, video) for index, video in enumerate(content.videos)]
    table = element("table", element("thead", head), element("tbody", *rows), id="video-table", aria_label="Videos")
    scrolled = element("div", table, class_="scroll tall", tabindex=0, role="region", aria_label="Videos")
    return joined(scrolled, element("p", CAPTION, class_="caption"))


def _row(content: Content, index: int, video: ShownVideo) -> Html:
    first, middle = video.moments[0], video.moments[len(video.moments) // 2]
    address = frame_address(content.videos, index, first)
    cells = [
        element(
            "th",
            linked_tile(content.videos, index, middle, frame_address(content.videos, index, middle)),
            element("a", video.name, href=address),
            scope="row",
        ),
        element("td", video.view),
        element("td", str(video.frames)),
        element("td", _duration(video)),
        element("td", "-" if video.tau is None else f"{video.tau:.4f}"),
        element("td", _bar(video)) if content.phases else None,
    ]
    return element("tr", *cells)


def _duration(video: ShownVideo) -> str:
    first, last = (known_seconds(video, frame) for frame in (0, video.frames - 1))
    return "-" if first is None or last is None else f"{last - first:.1f}"


def _bar(video: ShownVideo) -> Html:
    """The stretches of the phases; player.js hears clicks."""
    share = 100 / video.frames
    bands = [
        element("rect", class_=phase_class(phase), x=first * share, y=0, width=(after - first) * share, height=10)
        for first, after, phase in phase_runs(video)
    ]
    return element("svg", *bands, class_="timeline", viewBox="0 0 100 10", preserveAspectRatio="none")
