"""The page's drawings, read as a reader does: off their axes, labels and legends."""

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from byov.report.content import Failures, FrameRef, Similarity, TokenClip, WorstVideo
from byov.report.page.html_page import render
from byov.report.page.svg import tick_text


class Tree(HTMLParser):
    """The page as a tree of elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._builder = ElementTree.TreeBuilder()
        self.feed(page)
        self.root = self._builder.close()

    def handle_starttag(self, tag, attrs):
        self._builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in ("meta", "img", "input"):
            self._builder.end(tag)

    def handle_endtag(self, tag):
        self._builder.end(tag)

    def handle_data(self, data):
        self._builder.data(data)


def section(content, name):
    return Tree(render(content)).root.find(f".//section[@id='{name}']")


def of_class(element, name):
    """All that have the class, in the order of the page."""
    return [each for each in element.iter() if name in each.get("class", "").split()]


def numbers(element, *names):
    return tuple(float(element.get(name)) for name in names)


def points(polyline):
    """(n, 2) pixels."""
    return np.array([pair.split(",") for pair in polyline.get("points").split()], np.float64)


def text(element):
    return "".join(element.itertext())


def decoded(uri):
    with Image.open(io.BytesIO(b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB")).astype(np.float64)


def luminance(rgb):
    return rgb @ np.array([0.2126, 0.7152, 0.0722])


def reading(svg, kind, side, log=False):
    """From pixels to what the axis says there, by its ticks of that class."""
    ticks = [tick for tick in svg.iter("text") if tick.get("class") == f"tick {kind}" and "kept" not in text(tick)]
    pixels, values = np.array([(tick.get(side), text(tick)) for tick in ticks], np.float64).T
    slope, offset = np.polyfit(pixels, np.log10(values) if log else values, 1)
    return lambda pixel: 10 ** (slope * pixel + offset) if log else slope * pixel + offset


@pytest.fixture(scope="module")
def thinned(content):
    """A matrix of some frames of each video, not evenly spread, nothing in it symmetrical."""
    rows, columns = (0, 3, 6, 9, 30, 59), (1, 20, 25, 40, 50)
    distances = np.random.default_rng(0).permutation(30).reshape(6, 5).astype(np.float32)
    path = np.array([(0, 0), (1, 0), (2, 1), (3, 3), (4, 4), (5, 4)])
    similarity = Similarity(0, rows, 2, columns, distances, path, np.array([4, 0, 2, 1, 3, 0]), 0.5)
    return replace(content, similarity=similarity)


@pytest.fixture(scope="module")
def alignment(thinned):
    return section(thinned, "alignment")


def cells(alignment, pixels):
    """(n, 2) rows and columns of the matrix, from (n, 2) pixels x and y; frame i lies from i to i + 1."""
    image = alignment.find(".//image")
    x, y, width, height = numbers(image, "x", "y", "width", "height")
    across, down = (np.reshape(pixels, (-1, 2)) - (x, y)).T
    return np.stack([6 * down / height, 5 * across / width], axis=1)


def test_the_warp_path_and_the_nearest_frames_lie_in_their_rows_and_columns(thinned, alignment):
    matrix, similarity = alignment.find(".//svg"), thinned.similarity
    paths = [points(line) for line in of_class(matrix, "path")]
    assert len(paths) == 2  # the line, and what sets it off
    for path in paths:
        np.testing.assert_allclose(cells(alignment, path), similarity.path + 0.5, atol=2e-3)
    (nearest,) = of_class(matrix, "nearest")
    dots = cells(alignment, [numbers(dot, "cx", "cy") for dot in nearest])
    np.testing.assert_allclose(dots, np.stack([np.arange(6), similarity.nearest], axis=1) + 0.5, atol=2e-3)


def test_near_is_bright_and_each_distance_in_its_place(thinned, alignment):
    brightness = luminance(decoded(alignment.find(".//image").get("href")))
    distances = thinned.similarity.distances
    assert brightness.shape == distances.shape
    assert brightness.ravel().argsort()[::-1].tolist() == distances.ravel().argsort().tolist()


def test_the_legend_of_distances_goes_from_near_and_bright_to_far_and_dark(thinned, alignment):
    assert "near (0)far (29)" in text(alignment)
    (ramp,) = re.findall(r"\.viridis \{ background: linear-gradient\(to right, ([^)]*)\)", render(thinned))
    colours = np.array([list(bytes.fromhex(colour.strip(" #"))) for colour in ramp.split(",")])
    assert (np.diff(luminance(colours)) < 0).all()


def test_phases_along_a_thinned_matrix_are_those_of_its_frames(alignment):
    """Row frames 0 3 6 9 | 30 | 59 and column frames 1 | 20 25 | 40 50, of phases 0 | 1 | 2."""
    bands = of_class(alignment.find(".//svg"), "band")
    starts = cells(alignment, [numbers(band, "x", "y") for band in bands])
    ends = cells(alignment, [np.add(numbers(b, "x", "y"), numbers(b, "width", "height")) for b in bands])
    spans = np.stack([starts, ends], axis=1)  # (6, 2, 2)
    np.testing.assert_allclose(spans[:3, :, 0], [(0, 4), (4, 5), (5, 6)], atol=2e-3)
    np.testing.assert_allclose(spans[3:, :, 1], [(0, 1), (1, 3), (3, 5)], atol=2e-3)
    assert [band.get("class").split()[1] for band in bands] == ["p0", "p1", "p2"] * 2
    lines = of_class(alignment.find(".//svg"), "boundary")
    begin = cells(alignment, [numbers(line, "x1", "y1") for line in lines])
    np.testing.assert_allclose(begin, [(4, 0), (5, 0), (0, 1), (0, 3)], atol=2e-3)
    over = cells(alignment, [numbers(line, "x2", "y2") for line in lines])
    np.testing.assert_allclose(over, [(4, 5), (5, 5), (6, 1), (6, 3)], atol=2e-3)


@pytest.mark.parametrize(
    ("kind", "axis", "expected"),
    [
        ("to-left", 0, {0: 0, 1: 4, 2: 4, 3: 4, 4: 5, 5: 5}),  # row frames at 0 0.3 0.6 0.9 3.0 5.9 s
        ("centred", 1, {1: 1, 2: 1, 3: 3, 4: 3, 5: 4}),  # column frames at 0.1 2.0 2.5 4.0 5.0 s
    ],
)
def test_seconds_along_a_thinned_matrix_stand_at_the_first_frame_not_earlier(alignment, kind, axis, expected):
    ticks = [tick for tick in of_class(alignment, "tick") if kind in tick.get("class").split()]
    places = cells(alignment, [numbers(tick, "x", "y") for tick in ticks])[:, axis]
    assert {text(tick): place for tick, place in zip(ticks, places, strict=True)} == {
        tick_text(second): pytest.approx(frame + 0.5, abs=2e-3) for second, frame in expected.items()
    }


def test_curves_and_the_kept_epoch_are_where_the_axes_say(content):
    losses, validation = section(content, "training").iter("svg")
    for svg, curves, log in ((losses, content.curves.losses, True), (validation, content.curves.validation, False)):
        epoch, value = reading(svg, "centred", "x"), reading(svg, "to-left", "y", log)
        drawn = of_class(svg, "curve")
        assert [line.get("class") for line in drawn] == [f"curve p{index}" for index in range(len(curves))]
        for line, curve in zip(drawn, curves, strict=True):
            x, y = points(line).T
            np.testing.assert_allclose(epoch(x), curve.epochs, atol=0.01)
            np.testing.assert_allclose(value(y), curve.values, rtol=1e-3)
    (kept,) = of_class(validation, "kept")
    epoch = reading(validation, "centred", "x")
    assert [epoch(x) for x in numbers(kept, "x1", "x2")] == pytest.approx([content.curves.kept_epoch] * 2, abs=0.01)
    assert f"kept: epoch {content.curves.kept_epoch}" in text(validation)
    assert of_class(losses, "kept") == []


def check_dots(svg, failures):
    """Each dot at its frame's value; the numbers of frames that have one. The reference is the last."""
    frame, value = reading(svg, "centred", "x"), reading(svg, "to-left", "y")
    dots = list(svg.iter("circle"))
    places = np.array([numbers(dot, "cx", "cy") for dot in dots])
    frames = frame(places[:, 0]).round().astype(int)
    # Pixels have two digits behind the point.
    resolution = abs(value(0) - value(0.01))
    np.testing.assert_allclose(value(places[:, 1]), failures.similarity[frames], atol=resolution)
    assert [dot.get("class") for dot in dots] == ["others"] * (len(dots) - 1) + ["reference"]
    assert frames[-1] == failures.reference.frame
    (level,) = of_class(svg, "uniform")
    uniform = [value(y) for y in numbers(level, "y1", "y2")]
    assert uniform == pytest.approx([1 / len(failures.similarity)] * 2, abs=resolution)
    return frames.tolist()


def test_each_dot_of_the_softmax_is_at_its_own_value(content):
    shown = check_dots(section(content, "failures").find(".//svg"), content.failures)
    assert sorted(shown) == list(range(45))


def test_of_5000_frames_at_most_401_are_dots_the_reference_among_them(content):
    video = replace(content.videos[1], frames=5000, pts_seconds=np.arange(5000) / 10, labels=None)
    softmax = np.random.default_rng(0).uniform(1, 2, 5000)
    failures = Failures((WorstVideo(1, 0.2, (0, 36)),), FrameRef(1, 2503), softmax / softmax.sum())
    long = replace(content, videos=(content.videos[0], video, *content.videos[2:]), failures=failures)
    shown = check_dots(section(long, "failures").find(".//svg"), failures)
    assert 300 <= len(shown) <= 401
    assert max(np.diff(sorted(shown))) < 20
    assert {0, 4999} <= set(shown)


def test_the_reference_is_among_the_frames_of_its_video_and_marked_alone(content):
    """Of every worst video frames 0 12 24 36; the reference is frame 20 of ego/001."""
    found = section(content, "failures")
    rows = {row.get("aria-label"): of_class(row, "still") for row in of_class(found, "strip")}
    assert list(rows) == ["Frames of ego/001", "Frames of exo/000", "Frames of ego/000"]
    for row, stills in rows.items():
        with_reference = row == "Frames of ego/001"
        name, frames = row.removeprefix("Frames of "), [0, 12, *([20] if with_reference else []), 24, 36]
        labels = [next(iter(still)).get("aria-label").removesuffix(": no picture") for still in stills]
        assert labels == [f"{name}, frame {frame}" for frame in frames]
        captions = [text(still.find("figcaption")) for still in stills]
        assert captions == [f"{'Reference' if frame == 20 else ''}{frame / 10:.2f} s" for frame in frames]
        marked = ["retrieved" in still.get("class").split() for still in stills]
        assert marked == [frame == 20 for frame in frames]
    headings = [text(heading) for heading in found.iter("h3")]
    assert headings[:3] == ["ego/001: tau 0.2100", "exo/000: tau 0.4000", "ego/000: tau 0.5500"]


def test_pictures_of_tokens_stand_in_the_row_of_their_ratio_and_the_column_of_their_time(content):
    ratios, frames = (0.1, 0.3, 1.0), (0, 15, 33)
    colours = np.array([[(40 + 80 * row, 60 + 70 * column, 90) for column in range(3)] for row in range(3)], np.uint8)
    pictures = np.broadcast_to(colours[:, :, None, None], (3, 3, 16, 16, 3))
    found = section(replace(content, tokens=(TokenClip(0, frames, ratios, pictures),)), "tokens")
    assert [text(cell) for cell in found.findall(".//thead//th")] == ["Ratio", "0.00 s", "1.50 s", "3.30 s"]
    rows = found.findall(".//tbody/tr")
    assert [text(row.find("th")) for row in rows] == ["0.1", "0.3", "1"]
    images = [row.findall("td/img") for row in rows]
    drawn = [[decoded(image.get("src")).mean(axis=(0, 1)) for image in row] for row in images]
    np.testing.assert_allclose(drawn, colours, atol=4)
    assert [[image.get("alt") for image in row] for row in images] == [
        [f"ego/000, frame {frame}, ratio {ratio:g}" for frame in frames] for ratio in ratios
    ]


def mark_centre(mark):
    if mark.tag == "circle":
        return numbers(mark, "cx", "cy")
    return tuple(np.add(numbers(mark, "x", "y"), np.array(numbers(mark, "width", "height")) / 2))


@pytest.mark.parametrize(("when", "heading"), [("before", "Before: merged/0.3"), ("after", "After: embeddings")])
def test_points_of_the_projection_are_those_of_its_heading(content, when, heading):
    page = Tree(render(content)).root
    (figure,) = [each for each in page.iter("figure") if (each.findtext("h3") or "").startswith(heading)]
    (group,) = of_class(figure, "points")
    drawn, given = np.array([mark_centre(mark) for mark in group]), getattr(content.projection, when) * (1, -1)
    drawn_spread, given_spread = drawn - drawn.mean(axis=0), given - given.mean(axis=0)
    np.testing.assert_allclose(drawn_spread, given_spread * drawn_spread.std() / given_spread.std(), atol=0.02)
    videos = [(content.videos[reference.video], reference.frame) for reference in content.projection.frames]
    assert [mark.get("class") for mark in group] == [f"p{video.labels[frame]}" for video, frame in videos]
    # page.js puts its rings where the data say.
    data = json.loads(text(page.find(".//script[@id='data']")))
    np.testing.assert_allclose(data["projection"][when], drawn, atol=0.02)
