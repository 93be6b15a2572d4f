"""Tests of the HTML source of the page."""

import io
import re
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from tests.report.made_up import HOSTILE_ESCAPED, make_hostile

from byov.evaluate.table import PUBLISHED
from byov.report.content import Summary, TokenSelection
from byov.report.page.render import GLOSSARY, fit_points, render_page, split_terms

VOID = ("meta", "img", "input", "source")


class Tree(HTMLParser):
    """Parser that builds a tree of elements and checks that they are properly nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._builder = ElementTree.TreeBuilder()
        self._open = []
        self.feed(page)
        self.close()
        assert self._open == []
        self.root = self._builder.close()

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"duplicate attribute: {tag} {attrs}"
        self._builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self._builder.end(tag)
        else:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._builder.end(tag)

    def handle_data(self, data):
        self._builder.data(data)

    def values(self, attribute):
        return [element.get(attribute) for element in self.root.iter() if element.get(attribute)]


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


def section(page, name):
    return Tree(page).root.find(f".//section[@id='{name}']")


def text(element):
    return " ".join("".join(element.itertext()).split())


def classes(element, prefix):
    return [
        each.get("class") for each in element.iter() if (each.get("class") or "").startswith(prefix)
    ]


def test_ids_anchors_and_headings(tree):
    ids = tree.values("id")
    assert len(ids) == len(set(ids))
    anchors = {link.removeprefix("#") for link in tree.values("href") if "=" not in link}
    assert anchors <= set(ids)
    levels = [
        int(element.tag[1]) for element in tree.root.iter() if re.fullmatch("h[1-6]", element.tag)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_each_clip_is_embedded_once(content, page):
    assert render_page(content) == page, "it should be deterministic"
    clips = [b64encode(video.clip.mp4).decode() for video in content.videos]
    assert [page.count(clip) for clip in clips] == [1] * len(clips)
    assert len(page) - sum(map(len, clips)) < 700_000


def test_the_policy_allows_only_the_page_s_own_style_and_script(page):
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["media-src"] == "blob:"
    for tag in ("style", "script"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert (
            rules[f"{tag}-src"] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        )


def test_nothing_points_outside(page, tree):
    addresses = tree.values("src") + tree.values("href") + re.findall(r"url\(([^)]*)\)", page)
    assert len(addresses) > 20
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|@import", page)


def test_hostile_texts_add_no_element(content, tree):
    page = render_page(make_hostile(content))
    hostile = Tree(page)
    kinds = [Counter(element.tag for element in each.root.iter()) for each in (hostile, tree)]
    assert kinds[0] - kinds[1] == Counter()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028]", page)
    assert sum(HOSTILE_ESCAPED in (element.text or "") for element in hostile.root.iter()) > 40


def test_sections_depend_on_the_method_and_its_embeddings(content, page):
    assert "Progress labels of ego/one and exo/two" in page
    other = replace(content, progress=(), failures=replace(content.failures, similarity=None))
    changed = render_page(other)
    assert section(changed, "progress") is None
    assert '"#progress"' not in changed
    stills = len(list(section(page, "failures").iter("img"))) - 1
    assert len(list(section(changed, "failures").iter("img"))) == stills, (
        "the softmax of unit vectors is flat"
    )
    assert "unit length" in text(section(changed, "failures"))


def test_terms_have_tooltips_where_they_stand(page):
    terms = [text(each) for each in section(page, "scores").iter("abbr")]
    assert {"F1", "map@10", "Ego2Exo"} <= {*terms}
    parts = [("<b> ", ""), ("F1", GLOSSARY["F1"]), (" in F10, ", ""), ("F1", ""), ("", "")]
    assert split_terms("<b> F1 in F10, F1") == parts


def test_the_top_states_the_numbers_and_where_the_run_is_worse(content, page):
    header = Tree(page).root.find(".//header")
    for sentence in (content.summary.sentence, *content.summary.compared, *content.summary.worse):
        assert sentence in text(header)
    unknown = replace(content, summary=Summary("Errors in seconds are unknown."))
    header = Tree(render_page(unknown)).root.find(".//header")
    assert [each.get("class") for each in header.iter("ul")] == []


def test_curves_are_drawn_over_the_frames_of_each_video(content):
    curves = section(render_page(content), "predictions").findall(".//svg")
    assert [curve.get("data-video") for curve in curves] == ["0", "1", "2", "3"]
    truth, clock, run, marker = curves[1]
    points = np.array([point.split(",") for point in truth.get("points").split()], float)
    assert len(points) == 45
    np.testing.assert_allclose(points[:, 0], 100 * (np.arange(45) + 0.5) / 45, atol=0.06)
    np.testing.assert_allclose(points[[0, -1], 1], [38, 2])
    assert [each.get("class") for each in (clock, run, marker)] == ["by-clock", "run-0", "marker"]
    few = replace(content, predictions=(None, *content.predictions[1:]))
    shown = section(render_page(few), "predictions").findall(".//svg")
    assert [curve.get("data-video") for curve in shown] == ["1", "2", "3"]
    assert section(render_page(replace(content, predictions=())), "predictions") is None


def test_tokens_are_in_the_row_of_their_ratio_and_the_column_of_their_frame(content):
    ratios = (0.1, 0.3, 1.0)
    frames = (0, 15, 33)
    colors = np.array(
        [[(40 + 80 * row, 60 + 70 * column, 90) for column in range(3)] for row in range(3)],
        np.uint8,
    )
    pictures = np.broadcast_to(colors[:, :, None, None], (3, 3, 16, 16, 3))
    found = section(
        render_page(replace(content, tokens=(TokenSelection(0, frames, ratios, pictures),))),
        "tokens",
    )
    assert [text(cell) for cell in found.findall(".//thead//th")] == [
        "Ratio",
        "0.00 s",
        "1.50 s",
        "3.30 s",
    ]
    rows = found.findall(".//tbody/tr")
    assert [text(row.find("th")) for row in rows] == ["0.1", "0.3", "1"]
    images = [row.findall("td/img") for row in rows]
    drawn = [[_mean_color(image.get("src")) for image in row] for row in images]
    np.testing.assert_allclose(drawn, colors, atol=4)
    assert images[1][2].get("alt") == "ego/000, frame 33, ratio 0.3"


def _mean_color(uri):
    with Image.open(io.BytesIO(b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB")).mean(axis=(0, 1))


def test_score_tables_shade_the_own_row_and_set_published_rows_apart(page, content):
    first, second = section(page, "scores").iter("table")
    for table, shown in zip((first, second), content.tables, strict=True):
        assert [text(row[0]) for row in table.iterfind(".//tr[@class='own']")] == [
            "this run (this run)"
        ]
        heading, row = table.iterfind("tbody[@class='published']/tr")
        assert (text(heading), text(row[0])) == (PUBLISHED, "BYOV")
        assert len(row) == 1 + len(shown.columns)
        assert [text(cell) for cell in table.iterfind(".//td/b")] == ["60.25"] * len(shown.columns)
        assert [text(cell) for cell in table.iterfind(".//td/small")] == ["[50.00, 70.00]"] * len(
            shown.columns
        )


def test_points_keep_their_aspect_and_y_points_up():
    placed = fit_points(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]), 400, 14)
    np.testing.assert_allclose(placed, [[14, 293], [386, 293], [14, 107]])
    assert fit_points(np.zeros((2, 2)), 400, 14).tolist() == [[200, 200]] * 2
