"""The page as text."""

import re
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from byov.report.content import Curve, Curves, FrameRef, Projection, Unavailable
from byov.report.frame_text import tile_index
from byov.report.page.html import element, escaped
from byov.report.page.html_page import render
from byov.report.page.svg import Scale

VOID = ("meta", "img", "input")


class Outline(HTMLParser):
    """Checks that elements nest, and keeps what there is."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {tag} {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attributes.get(attribute)]

    def classes(self, tag: str) -> list[str]:
        return [attributes.get("class") or "" for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="session")
def page(content):
    return render(content)


def test_elements_nest_and_ids_are_unique(page):
    outline = Outline(page)
    assert outline.open == []
    ids = outline.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in outline.values("href") if link.startswith("#")} <= set(ids)


def test_headings_are_in_order(page):
    levels = [int(name[1]) for name, _ in Outline(page).elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_same_content_gives_the_same_page(content, page):
    assert render(content) == page


def test_each_sheet_is_there_once_and_little_else(content, page):
    sheets = [b64encode(video.sheet.jpeg).decode() for video in content.videos]
    assert [page.count(sheet) for sheet in sheets] == [1] * len(sheets)
    assert len(page) - sum(map(len, sheets)) < 200_000


def test_the_policy_allows_only_what_came_with_the_page(page):
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for name, text in (("style-src", style), ("script-src", script)):
        assert rules[name] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def test_nothing_points_outside(page):
    addresses = Outline(page).values("src") + Outline(page).values("href") + re.findall(r"url\(([^)]*)\)", page)
    assert len(addresses) > 20
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|@import", page)


def test_texts_are_escaped_and_control_characters_spelt_out():
    assert (
        escaped("<a href=\"x\" title='y'>&\x1b\x00")
        == "&lt;a href=&quot;x&quot; title=&#x27;y&#x27;&gt;&amp;\\x1b\\x00"
    )
    made = element("p", "a < b", element("b", "c & d"), None, class_='"x"', hidden=True, id=None)
    assert made == '<p class="&quot;x&quot;" hidden>a &lt; b<b>c &amp; d</b></p>'


def test_hostile_texts_add_no_element(page, hostile, hostile_text):
    outline = Outline(render(hostile))
    kinds = [Counter(name for name, _ in each.elements) for each in (outline, Outline(page))]
    assert kinds[0] - kinds[1] == Counter()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028]", render(hostile))
    spelt = hostile_text.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u2028", "\\u2028")
    assert sum(spelt in text for text in outline.texts) > 50


def test_tables_show_groups_marks_and_published_rows_apart(page):
    assert '<th colspan="3" scope="colgroup"><span>Classification (F1)</span></th>' in page
    assert '<th scope="col">Regular<sup>b</sup></th>' in page
    assert "<td>60.25<small>[50.00, 70.00]</small></td>" in page
    assert "<td>n/a<sup>a</sup></td>" in page
    assert page.index("published in the paper, not measured here") < page.index('<th scope="row">BYOV</th>')


def test_only_the_main_table_is_open(page):
    assert "<h3>made-up, test split, standard protocol: Phase tasks</h3>" in page
    assert "<summary>made-up, test split, standard protocol: Frame retrieval</summary>" in page


def test_ego_is_round_exo_is_square_and_colour_is_the_phase(content, page):
    cloud = page[page.index('class="cloud before"') : page.index('class="found"')]
    video, frame = content.videos[2], 30
    assert cloud.count("<circle") == sum(len(video.sheet.frames) for video in content.videos[:2])
    assert cloud.count("<rect") == sum(len(video.sheet.frames) for video in content.videos[2:])
    index = content.projection.frames.index(FrameRef(2, frame))
    assert re.findall('class="(p[0-9])"', cloud)[index] == f"p{video.labels[frame]}"


def test_without_phases_points_are_coloured_by_time(content):
    bare = replace(content, phases=(), videos=tuple(replace(video, labels=None) for video in content.videos))
    page = render(bare)
    cloud = page[page.index('class="cloud before"') : page.index('class="found"')]
    colours = re.findall('class="(t[0-9]+)"', cloud)
    assert len(colours) == len(content.projection.frames)
    assert (colours[0], colours[19]) == ("t0", "t10")  # first and (nearly) last frame of the first video
    assert "same phase" not in page


def test_a_video_without_labels_among_others_has_no_phase(content):
    videos = (replace(content.videos[0], labels=None), *content.videos[1:])
    page = render(replace(content, videos=videos))
    assert page.count('class="unlabelled"') == 2 * len(content.videos[0].sheet.frames)
    assert "no phase known" in page


def test_strips_say_whether_the_phase_is_the_same(page):
    strips = page[page.index('id="retrieval"') : page.index('id="alignment"')]
    assert re.findall("[✓✗]", strips) == ["✓", "✗", "✓", "✓"]


def test_values_that_cannot_be_drawn_break_the_curve(content):
    values = (1.0, float("nan"), float("inf"), 1e300, 2.0, 3.0)
    curves = Curves((Curve("loss", (1, 2, 3, 4, 5, 10**400), values),), (), None)
    page = render(replace(content, curves=curves))
    training = page[page.index('id="training"') : page.index('id="tokens"')]
    assert training.count("<polyline") == 2
    assert not re.search("nan|inf", "".join(re.findall('points="([^"]*)"', training)))
    assert "There was no validation split" in training


def test_curves_without_a_finite_value_say_so(content):
    page = render(replace(content, curves=Curves((Curve("loss", (1,), (float("nan"),)),), (), None)))
    assert "the run has recorded no finite values" in page


def test_a_frame_that_is_not_on_the_sheet_has_no_picture(content):
    page = render(replace(content, strips=(replace(content.strips[0], query=FrameRef(0, 31)),)))
    assert 'aria-label="ego/000, frame 31: no picture"' in page


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e300])
def test_times_that_are_none_are_unknown(content, wrong):
    video = content.videos[0]
    pts_seconds = np.where(np.arange(video.frames) == 30, wrong, video.pts_seconds)
    page = render(replace(content, videos=(replace(video, pts_seconds=pts_seconds), *content.videos[1:])))
    assert "<span>time unknown, frame 30</span>" in page
    assert not re.search("[^a-z](nan|inf)[^a-z]", re.sub("<style>.*</style>", "", page, flags=re.DOTALL), re.IGNORECASE)


def test_tiles_are_found_by_their_frame(content):
    sheet = content.videos[0].sheet
    assert [tile_index(sheet, frame) for frame in (0, 1, 3, 57, 60)] == [0, None, 1, 19, None]
    assert tile_index(Unavailable("gone"), 0) is None


def test_points_that_are_alike_are_drawn(content):
    same = Projection((FrameRef(0, 0), FrameRef(2, 0)), np.zeros((2, 2)), np.full((2, 2), np.nan), "cls")
    page = render(replace(content, projection=same))
    cloud = page[page.index('class="cloud before"') : page.index('class="cloud after"')]
    assert 'cx="200" cy="200"' in cloud
    assert "nan" not in cloud


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 10, 0, 100), [0, 2, 4, 6, 8, 10]),
        (Scale(0.39, 0.71, 0, 100), [0.4, 0.5, 0.6, 0.7]),
        (Scale(0.02, 5, 0, 100, log=True), [0.03, 0.1, 0.3, 1, 3]),
        (Scale(3, 3, 0, 100), [3]),
    ],
)
def test_ticks_are_round(scale, ticks):
    assert scale.ticks() == pytest.approx(ticks)


def test_scales():
    assert Scale(0, 10, 50, 250)(2.5) == 100
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)
    assert Scale(3, 3, 0, 100)(3) == 50
