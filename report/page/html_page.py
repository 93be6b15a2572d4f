"""A report as one HTML file that needs nothing else: styles, script, data and pictures are inside."""

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from typing import TypeVar

from byov.report.content import Content, Unavailable
from byov.report.page.data import page_data
from byov.report.page.draw_curves import curves_html
from byov.report.page.draw_failures import failures_html
from byov.report.page.draw_projection import card_html, projection_html
from byov.report.page.draw_similarity import alignment_html
from byov.report.page.draw_tables import tables_html
from byov.report.page.draw_videos import videos_html
from byov.report.page.html import Html, element
from byov.report.page.player import dock_html, player_html
from byov.report.page.stills import strips_html, tokens_html
from byov.report.page.tiles import sheet_styles
from byov.report.paper.style import paper_style

T = TypeVar("T")
Part = tuple[str, str, Html]  # anchor, heading, what stands below it


SCRIPTS = ("frames", "vectors", "state", "card", "player", "clouds", "matrix", "strips", "marks", "start")


def render(content: Content) -> str:
    """The whole page. The same content gives the same text."""
    style, script = Html(_resource("page.css")), Html("\n".join(_resource(f"script/{name}.js") for name in SCRIPTS))
    sheets = [Html(text) for text in sheet_styles(content.videos)]
    with paper_style():
        parts = _parts(content)
    page = element(
        "html",
        _head(content, style, sheets, script),
        element(
            "body",
            _header(content, parts),
            element("main", *(_section(*part) for part in parts)),
            _provenance(content),
            card_html(),
            dock_html(),
            *(element("style", sheet) for sheet in sheets),
            element("script", Html(page_data(content)), type="application/json", id="data"),
            element("script", script),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _resource(name: str) -> str:
    return files("byov.report.page").joinpath(name).read_text(encoding="utf-8")


def _head(content: Content, style: Html, sheets: list[Html], script: Html) -> Html:
    """The policy lets the page load nothing at all, and run and look only as it came."""
    styles = " ".join(f"'{_digest(each)}'" for each in (style, *sheets))
    policy = (
        f"default-src 'none'; img-src data:; style-src {styles}; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{content.run} on {content.dataset}: BYOV report"),
        element("style", style),
    )


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def _header(content: Content, parts: list[Part]) -> Html:
    about = (
        "BYOV learns an embedding of video frames from first-person (ego) and third-person (exo) videos that were "
        "never filmed together. Frames of the same moment of an action should lie close, whichever camera filmed "
        f"them. This page shows what the run {content.run} makes of the {content.split} split of {content.dataset}, "
        "what it gets right and what it gets wrong."
    )
    links = [element("a", title, href=f"#{name}") for name, title, _ in parts]
    return element(
        "header",
        element("p", "BYOV report", class_="kicker"),
        element("h1", f"{content.run} on {content.dataset}"),
        element("p", about, class_="about"),
        _pairs(content.facts, "facts"),
        element("nav", *links, element("a", "Provenance", href="#provenance"), aria_label="Parts of the report"),
    )


def _parts(content: Content) -> list[Part]:
    """In the order in which they are read."""
    return [
        ("player", "Player", _part(content.vectors, lambda runs: player_html(content, runs))),
        ("scores", "Scores", _part(content.tables, lambda tables: tables_html(tables, content.own_rows))),
        (
            "projection",
            "Before and after training",
            _part(content.projection, lambda projection: projection_html(content, projection)),
        ),
        ("retrieval", "Retrieval across views", _part(content.strips, lambda strips: strips_html(content, strips))),
        ("alignment", "Alignment", _part(content.vectors, lambda runs: alignment_html(content, runs))),
        ("failures", "Failures", _part(content.failures, lambda failures: failures_html(content, failures))),
        ("videos", "Videos", videos_html(content)),
        ("training", "Training", _part(content.curves, curves_html)),
        ("tokens", "Selected tokens", _part(content.tokens, lambda clips: tokens_html(content, clips))),
    ]


def _section(name: str, title: str, below: Html) -> Html:
    return element("section", element("h2", title), below, id=name, aria_label=title)


def _part(value: T | Unavailable, draw: Callable[[T], Html]) -> Html:
    """What there is to see, or why there is nothing."""
    if isinstance(value, Unavailable):
        return element("p", f"Not shown: {value.reason}", class_="unavailable")
    return draw(value)


def _provenance(content: Content) -> Html:
    return element("footer", element("h2", "Provenance"), _pairs(content.provenance, "provenance"), id="provenance")


def _pairs(pairs: tuple[tuple[str, str], ...], kind: str) -> Html:
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in pairs), class_=kind
    )
