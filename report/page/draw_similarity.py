"""The distances between all frames of the player's two videos, with the alignment over them; matrix.js draws it."""

from byov.report.content import Content, RunVectors, Similarity, Unavailable
from byov.report.page.charts import still_chart
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import legend, swatch
from byov.report.paper.plots import draw_similarity

CAPTION = (
    "Each pixel is the distance between a frame of the player's video (down) and one of the video that it is compared "
    "with (across). If both follow the same steps, a bright valley runs from the top left to the bottom right. The "
    "line is the cheapest way through without running backwards (dynamic time warping); the dots are the nearest "
    "frames, free to jump; the dashed line is what a clock would match. Kendall's tau of the dots is 1 if they always "
    "move forwards, 0 if their order is random. Where the valley leaves the dashed line, the embedding says something "
    "that a clock cannot. Point at a cell to see its two frames; a click moves the player to that row."
)


def alignment_html(content: Content, runs: tuple[RunVectors, ...]) -> Html:
    return joined(
        element("noscript", _static(content)),
        element(
            "div",
            element("div", *(_matrix(run, index) for index, run in enumerate(runs)), class_="pair"),
            _legend(content),
            id="matrices",
            hidden=True,
        ),
        element("p", CAPTION, class_="caption"),
    )


def _static(content: Content) -> Html | None:
    """For readers without scripts: the first video of each view."""
    similarity = content.similarity
    if isinstance(similarity, Unavailable):
        return None
    return still_chart(draw_similarity(content, similarity), _label(content, similarity))


def _label(content: Content, similarity: Similarity) -> str:
    rows, columns = (content.videos[index].name for index in (similarity.rows, similarity.columns))
    return f"Distances between the frames of {rows} (down) and {columns} (across)"


def _matrix(run: RunVectors, index: int) -> Html:
    return element(
        "figure",
        element("h3", run.name, element("span", id=f"matrix-{index}-tau", class_="beside")),
        element("p", class_="across"),
        element(
            "div",
            element("p", class_="down"),
            element(
                "div",
                element("canvas", role="img"),
                element("svg", preserveAspectRatio="none", aria_hidden="true"),
                class_="cells",
            ),
            class_="matrix-row",
        ),
        class_="matrix",
        id=f"matrix-{index}",
    )


def _legend(content: Content) -> Html:
    ramp = element("i", class_="viridis", aria_hidden="true")
    keys = [
        swatch("line path", "warp path"),
        swatch("dot", "nearest frame"),
        swatch("line ghost", "by a clock"),
        element("span", "near", ramp, "far", class_="key"),
    ]
    return legend(*keys, swatch("line boundary", "a phase begins") if content.phases else None)
