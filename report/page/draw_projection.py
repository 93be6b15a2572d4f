"""t-SNE of the same frames by frozen features, before and after training, side by side; clouds.js draws the points."""

from byov.report.content import Content, Projection
from byov.report.page.charts import still_chart
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import COLOURS, legend, phase_legend, swatch
from byov.report.paper.plots import draw_projection

NOT_LEARNED = (
    "A trail along time need not be learned: most models see each frame's place in its video, and the row Time only "
    "says what that gives."
)


def projection_html(content: Content, projection: Projection) -> Html:
    label = f"t-SNE of {len(projection.frames)} frames"
    clouds = [
        element(
            "figure",
            element("h3", one.title),
            element("svg", class_="cloud", viewBox="0 0 400 400", role="group", aria_label=f"{label}: {one.title}"),
        )
        for one in projection.maps
    ]
    drawn = draw_projection(content, projection)
    return joined(
        element("noscript", still_chart(drawn, label) if drawn else None),
        element("div", _choices(content), id="cloud-choices", hidden=True, class_="choices"),
        element(
            "div",
            element("div", *clouds, class_="clouds"),
            legend(element("span", phase_legend(content), id="phase-key"), *_shapes()),
            id="clouds",
            hidden=True,
        ),
        element("p", *_caption(content, projection), class_="caption"),
    )


def card_html() -> Html:
    """Of the frame pointed at; placed and filled by card.js."""
    return element(
        "div",
        element("div", *(element("span", class_="tile", id=f"card-{name}", role="img") for name in ("tile", "other"))),
        element("p", id="card-text"),
        id="card",
        hidden=True,
        role="status",
    )


def _choices(content: Content) -> Html:
    colors = [*(["phase"] if content.phases else []), "time", "video", "view"]
    options = [element("option", name, value=name) for name in colors]
    return joined(
        element("label", element("span", "Color by"), element("select", *options, id="color-by")),
        element("label", element("input", type="checkbox", id="trail"), element("span", "trail of the player's video")),
    )


def _shapes() -> list[Html]:
    return [swatch("ring", "ego"), swatch("ring square", "exo")]


def _caption(content: Content, projection: Projection) -> list[str]:
    by = "phase of the action" if content.phases else "time within the video"
    shown, all_frames = len(projection.frames), projection.frames_of_split
    some = (
        f"one of {shown} frames"
        if shown == all_frames
        else f"one of {shown} frames, evenly spread over the {all_frames:,}"
    )
    texts = [
        f"Each point is {some} of the {content.split} split; its color is the {by}, or what is chosen above. Look for "
        "two things: whether colors come apart, and whether circles (ego) and squares (exo) of one color lie "
        "together. Point at a frame, tap it, or move over the plot with Tab and the arrow keys to see it; a click, or "
        "Enter, moves the player there. The ring is the player's frame, the same in all plots. t-SNE keeps neighbors "
        f"together; distances between far groups mean little. {NOT_LEARNED}"
    ]
    if len(content.phases) > COLOURS:
        texts.append(f" There are more phases than colors: after {COLOURS} phases the colors begin again.")
    return texts
