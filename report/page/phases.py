"""The colors of the phases, or of time where there are no phases."""

from itertools import groupby

from byov.records import UNLABELED
from byov.report.content import Content, ShownVideo
from byov.report.page.html import Html, element, joined

COLOURS = 8  # of the style sheet, --phase-0 to --phase-7; more phases begin again


def phase_class(phase: int) -> str:
    return f"p{phase % COLOURS}"


def phase_runs(video: ShownVideo) -> list[tuple[int, int, int]]:
    """(first frame, frame after the last, phase) of each stretch of one phase; [] without labels."""
    runs, first = [], 0
    for phase, stretch in groupby(video.labels or ()):
        after = first + len(list(stretch))
        if phase != UNLABELED:
            runs.append((first, after, phase))
        first = after
    return runs


def phase_legend(content: Content) -> Html:
    if content.phases:
        keys = [swatch(f"square {phase_class(index)}", name) for index, name in enumerate(content.phases)]
        some_without = any(UNLABELED in (video.labels or (UNLABELED,)) for video in content.videos)
        return joined(*keys, swatch("square unlabeled", "no phase known") if some_without else None)
    return element("span", "start", element("i", class_="ramp", aria_hidden="true"), "end of the video", class_="key")


def swatch(kind: str, text: str) -> Html:
    return element("span", element("i", class_=f"swatch {kind}", aria_hidden="true"), text, class_="key")


def legend(*keys: Html | None) -> Html:
    return element("p", *keys, class_="legend")
