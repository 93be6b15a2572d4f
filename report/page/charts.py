"""Charts that matplotlib draws, as pictures in the page: the same figures as for print, in light and in dark."""

import io

from matplotlib.figure import Figure

from byov.report.page.html import Html, data_uri, element
from byov.report.paper.style import FAINT, INK, RULE

IN_THE_DARK = {INK: "#e3e6e9", FAINT: "#a1a9b2", RULE: "#343a41"}  # --ink, --muted and --hair of the dark style sheet
CSS_PX_PER_INCH = 125  # as large as the page's own text: 8 points → 14 px


def chart(figure: Figure, alt: str) -> Html:
    """Text is drawn as outlines: the reader need not have the font."""
    width, height = (round(float(inches) * CSS_PX_PER_INCH) for inches in figure.get_size_inches())
    light = _svg(figure)
    return element(
        "picture",
        element("source", media="(prefers-color-scheme: dark)", srcset=_uri(_darkened(light))),
        element("img", src=_uri(light), alt=alt, width=width, height=height, class_="chart"),
    )


def still_chart(figure: Figure, alt: str) -> Html:
    """The same as one small PNG, for readers without scripts: hundreds of points as SVG would be a megabyte."""
    width, height = (round(float(inches) * CSS_PX_PER_INCH) for inches in figure.get_size_inches())
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=CSS_PX_PER_INCH, facecolor="white", metadata={"Software": None})
    uri = data_uri("image/png", written.getvalue())
    return element("img", src=uri, alt=alt, width=width, height=height, class_="chart")


def _svg(figure: Figure) -> str:
    """Without a background, and with no time of its making; ids depend on the drawing alone."""
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "byov", "svg.fonttype": "path"}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _darkened(svg: str) -> str:
    """Ink becomes light, grid lines dark; what has a color keeps it."""
    for light, dark in IN_THE_DARK.items():
        svg = svg.replace(light, dark)
    return svg


def _uri(svg: str) -> str:
    return data_uri("image/svg+xml", svg.encode("utf-8"))
