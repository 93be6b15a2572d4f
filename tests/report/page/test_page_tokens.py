"""Pictures of selected tokens stand where they belong."""

import io
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from byov.report.content import TokenClip
from byov.report.page.html_page import render


class Tree(HTMLParser):
    """The page as a tree of elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._builder = ElementTree.TreeBuilder()
        self.feed(page)
        self.root = self._builder.close()

    def handle_starttag(self, tag, attrs):
        self._builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in ("meta", "img", "input", "source"):
            self._builder.end(tag)

    def handle_endtag(self, tag):
        self._builder.end(tag)

    def handle_data(self, data):
        self._builder.data(data)


def section(content, name):
    return Tree(render(content)).root.find(f".//section[@id='{name}']")


def text(element):
    return "".join(element.itertext())


def decoded(uri):
    with Image.open(io.BytesIO(b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB")).astype(np.float64)


def test_pictures_of_tokens_stand_in_the_row_of_their_ratio_and_the_column_of_their_time(content):
    ratios, frames = (0.1, 0.3, 1.0), (0, 15, 33)
    colors = np.array([[(40 + 80 * row, 60 + 70 * column, 90) for column in range(3)] for row in range(3)], np.uint8)
    pictures = np.broadcast_to(colors[:, :, None, None], (3, 3, 16, 16, 3))
    found = section(replace(content, tokens=(TokenClip(0, frames, ratios, pictures),)), "tokens")
    assert [text(cell) for cell in found.findall(".//thead//th")] == ["Ratio", "0.00 s", "1.50 s", "3.30 s"]
    rows = found.findall(".//tbody/tr")
    assert [text(row.find("th")) for row in rows] == ["0.1", "0.3", "1"]
    images = [row.findall("td/img") for row in rows]
    drawn = [[decoded(image.get("src")).mean(axis=(0, 1)) for image in row] for row in images]
    np.testing.assert_allclose(drawn, colors, atol=4)
    assert [[image.get("alt") for image in row] for row in images] == [
        [f"ego/000, frame {frame}, ratio {ratio:g}" for frame in frames] for ratio in ratios
    ]
