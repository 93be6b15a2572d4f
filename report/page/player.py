"""The player: a frame of one video, and beside it the nearest of another by each run, and what a clock would give."""

from byov.report.content import Content, RunVectors, Unavailable
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import legend, phase_legend

NEEDS_SCRIPT = "The player needs scripts, which are switched off here; tables and charts can be read without."
WAYS = (("nearest", "each frame beside its nearest"), ("path", "along the warp path, at one pace"))


def player_html(content: Content, runs: tuple[RunVectors, ...]) -> Html:
    return joined(
        element("noscript", element("p", NEEDS_SCRIPT, class_="unavailable")),
        element(
            "div",
            element("div", _choice("video", "Video"), _choice("other", "compared with"), _ways(), class_="choices"),
            element("div", *_sides(runs), class_="sides"),
            _controls(),
            id="stage",
            hidden=True,
        ),
        legend(phase_legend(content)) if content.phases else None,
        element("p", _caption(runs), class_="caption"),
        _marks(),
        *_reasons(content),
    )


def dock_html() -> Html:
    """The player's frames once more, small, in a corner while the player itself is out of sight."""
    return element(
        "aside",
        element("a", element("span", class_="tile", id="dock-query"), href="#player", class_="window"),
        element("a", element("span", class_="tile", id="dock-answer"), href="#player", class_="window"),
        element("p", id="dock-text"),
        element("button", "\N{MULTIPLICATION SIGN}", type="button", id="dock-close", aria_label="Close"),
        id="dock",
        hidden=True,
        aria_label="The player's frames",
    )


def _choice(name: str, label: str) -> Html:
    return element("label", element("span", label), element("select", id=f"choose-{name}"))


def _ways() -> Html:
    options = [element("option", text, value=value) for value, text in WAYS]
    return element("label", element("span", "Play"), element("select", *options, id="choose-way"))


def _sides(runs: tuple[RunVectors, ...]) -> list[Html]:
    nearest = [_side(f"run-{index}", f"Nearest by {run.name}", "answer") for index, run in enumerate(runs)]
    return [_side("query", "This frame", "query"), *nearest, _side("clock", "By a clock (Time only)", "answer ghost")]


def _side(name: str, title: str, kind: str) -> Html:
    return element(
        "figure",
        element("h3", title, id=f"{name}-title"),
        element("span", class_="tile", id=f"{name}-tile", role="img"),
        element("svg", id=f"{name}-line", class_="timeline", viewBox="0 0 100 10", preserveAspectRatio="none"),
        element(
            "figcaption",
            element("b", id=f"{name}-time"),
            element("span", id=f"{name}-phase"),
            element("span", id=f"{name}-verdict"),
            class_="reading",
        ),
        class_=f"side {kind}",
        id=name,
    )


def _controls() -> Html:
    return element(
        "div",
        element("button", "Play", type="button", id="play"),
        element("input", type="range", id="scrub", min=0, max=0, value=0, step=1, aria_label="Frame"),
        element("button", "Mark", type="button", id="mark", title="Mark an event at this moment (key M)"),
        class_="controls",
    )


def _marks() -> Html:
    """What the reader has marked, and the dataset's CSV with it."""
    about = (
        "Mark where a new phase begins, the same number of times in every video: that is how labels are made. Marks "
        "are kept in this browser. The CSV is what byov-extract --manifest reads, with all videos of the dataset; "
        "put it into the folder that holds them and extract again: no feature is computed anew."
    )
    return element(
        "details",
        element("summary", "Marked events: ", element("b", "none", id="mark-count")),
        element("p", about, class_="caption"),
        element("ul", id="mark-list"),
        element("p", id="mark-warning", class_="unavailable", hidden=True),
        element("label", element("span", "Line of this video"), element("textarea", id="mark-line", readonly=True)),
        element(
            "p",
            element("button", "Copy the line", type="button", id="mark-copy"),
            element("a", "Save the CSV", id="mark-save", download="videos.csv"),
            element("button", "Forget all marks", type="button", id="mark-forget"),
            class_="controls",
        ),
        id="marks",
    )


def _caption(runs: tuple[RunVectors, ...]) -> str:
    both = " by both runs" if len(runs) > 1 else ""
    return (
        "Left to right: a frame of the chosen video; the frame of the other video whose embedding is nearest"
        f"{both}; and the frame at the same share of the other video, which needs no embedding at all. Look where the "
        "nearest is right and the clock is wrong. Arrow keys step, Space plays, M marks; a click on a bar, a "
        "thumbnail, a point, a cell of the alignment or a row of the videos comes here, and the address can be "
        "shared. Of long videos some frames are here, evenly spread, and the nearest is sought among these."
    )


def _reasons(content: Content) -> list[Html]:
    """Why some videos have no pictures."""
    return [
        element("p", f"No pictures of {video.name}: {video.sheet.reason}", class_="unavailable")
        for video in content.videos
        if isinstance(video.sheet, Unavailable)
    ]
