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
from tests.report.made_up import HOSTILE_ESCAPED, make_hostile, unlabeled

from byov.evaluate.table import PUBLISHED
from byov.report.content import TokenSelection
from byov.report.page.render import fit_points, opening_frame, render_page

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


def test_each_picture_is_embedded_once(content, page):
    assert render_page(content) == page, "it should be deterministic"
    pictures = [b64encode(jpeg).decode() for video in content.videos for jpeg in video.pictures]
    assert [page.count(picture) for picture in pictures] == [1] * len(pictures)
    assert len(page) - sum(map(len, pictures)) < 700_000


def test_the_policy_allows_only_the_page_s_own_style_and_script(page):
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
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
    assert len(list(section(page, "failures").iter("img"))) == 1
    assert len(list(section(changed, "failures").iter("img"))) == 0, (
        "the softmax of unit vectors is flat"
    )
    assert "unit length" in text(section(changed, "failures"))


def test_the_opening_frame_without_labels_or_embeddings(content):
    for videos, numbers in (
        (content.videos, None),
        (unlabeled(content).videos, np.zeros((74, 2), np.int8)),
    ):
        assert opening_frame(videos, numbers) == {"video": 0, "sample": 0, "other": 2}
    assert opening_frame(content.videos[2:3], None) == {"video": 0, "sample": 0, "other": 0}


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
