"""The page as text."""

import re
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from byov.evaluate.table import Row, Score, Table
from byov.records import UNLABELED
from byov.report.content import Curve, Curves, FrameRef, PointMap, Projection, RunVectors, Unavailable
from byov.report.frame_text import phase_of, tile_index
from byov.report.page.data import fitted, quantized
from byov.report.page.html import element, escaped
from byov.report.page.html_page import render
from byov.report.page.phases import phase_legend, phase_runs

VOID = ("meta", "img", "input", "source")


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
    anchors = {link.removeprefix("#") for link in outline.values("href") if link.startswith("#")}
    assert {anchor for anchor in anchors if "=" not in anchor} <= set(ids)


def test_headings_are_in_order(page):
    levels = [int(name[1]) for name, _ in Outline(page).elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_same_content_gives_the_same_page(content, page):
    assert render(content) == page


def test_each_sheet_is_there_once_and_little_else(content, page):
    sheets = [b64encode(row).decode() for video in content.videos for row in video.sheet.rows]
    assert [page.count(sheet) for sheet in sheets] == [1] * len(sheets)
    assert len(page) - sum(map(len, sheets)) < 700_000


def test_the_policy_allows_only_what_came_with_the_page(page):
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    styles = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert (len(styles), len(scripts)) == (1 + 1 + 4, 1)  # the page's, where tiles are, and one for each video
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for name, texts in (("style-src", styles), ("script-src", scripts)):
        hashes = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts]
        assert rules[name].split() == hashes


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
    assert '<th scope="col">Regular<sup>a</sup></th>' in page
    assert "<td><b>60.25</b><small>[50.00, 70.00]</small></td>" in page
    assert "<td>n/a<sup>b</sup></td>" in page
    assert page.index("published in the paper, not measured here") < page.index('<th scope="row">BYOV</th>')


def test_the_best_measured_value_is_bold_and_the_run_s_row_marked(content):
    (first, *_) = content.tables
    values = {"this run": Score(0.6), "other": Score(0.7, deviation=0.01), "third": Score(None), "fourth": Score(0.7)}
    rows = [Row(name, "run", {column.score: score for column in first.columns}) for name, score in values.items()]
    page = render(replace(content, tables=(Table(first.title, first.columns, tuple(rows)),)))
    table = page[page.index('id="scores"') : page.index('id="projection"')]
    body = re.findall(r"<tr[^>]*>.*?</tr>", table[table.index("<tbody>") :])[:4]
    assert [("<b>" in row, 'class="own"' in row) for row in body] == [
        (False, True),
        (True, False),
        (False, False),
        (True, False),
    ]


def test_only_the_main_table_is_open(page):
    assert "<h3>made-up, test split, standard protocol: Phase tasks</h3>" in page
    assert "<summary>made-up, test split, standard protocol: Frame retrieval</summary>" in page


def test_strips_say_whether_the_phase_is_the_same(page):
    strips = page[page.index('id="retrieval"') : page.index('id="alignment"')]
    assert re.findall("[✓✗]", strips) == ["✓", "✗", "✓", "✓"]
    assert re.findall('"still ([a-z]+)"', strips) == ["query", "right", "wrong", "query", "right", "right"]


def test_without_phases_nothing_is_right_or_wrong(content):
    bare = replace(content, phases=(), videos=tuple(replace(video, labels=None) for video in content.videos))
    page = render(bare)
    strips = page[page.index('id="retrieval"') : page.index('id="alignment"')]
    assert re.findall('"still ([a-z]+)"', strips) == ["query", "plain", "plain", "query", "plain", "plain"]
    assert "same phase" not in strips
    assert '<option value="phase">' not in page


def test_frames_without_a_label_have_no_phase(content):
    labels = (UNLABELED,) * 3 + content.videos[0].labels[3:-2] + (UNLABELED,) * 2
    videos = (replace(content.videos[0], labels=labels), *content.videos[1:])
    runs = phase_runs(videos[0])
    assert [phase for _, _, phase in runs] == [0, 1, 2]
    assert (runs[0][0], runs[-1][1]) == (3, content.videos[0].frames - 2)
    assert [phase_of(videos[0], frame) for frame in (0, 2, 3)] == [None, None, 0]
    assert "no phase known" in str(phase_legend(replace(content, videos=videos)))
    assert "no phase known" not in str(phase_legend(content))


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


@pytest.mark.parametrize("points", [np.zeros((2, 2)), np.full((2, 2), np.nan)])
def test_points_that_are_alike_lie_in_the_middle(content, points):
    assert fitted(points).tolist() == [[200, 200]] * 2
    same = Projection((FrameRef(0, 0), FrameRef(2, 0)), (PointMap("cls", points),), 2)
    assert '"maps":[[[200.0,200.0],[200.0,200.0]]]' in render(replace(content, projection=same))


def test_points_keep_their_proportions_and_y_goes_up():
    placed = fitted(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(placed, [[14, 293], [386, 293], [14, 107]])


def test_embeddings_travel_as_bytes_and_keep_their_distances():
    random = np.random.default_rng(0)
    rows = [random.normal(3, 1, (count, 40)).astype(np.float32) for count in (7, 5)]
    sent = quantized(RunVectors("run", tuple(rows)))
    numbers = np.frombuffer(b64decode(sent["numbers"]), np.int8).reshape(12, 40).astype(float)
    assert np.abs(numbers).max() == 127
    exact = np.linalg.norm(rows[0][:, None] - rows[1], axis=2)
    found = sent["step"] * np.linalg.norm(numbers[:7, None] - numbers[None, 7:], axis=2)
    np.testing.assert_allclose(found, exact, rtol=0.02)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_embeddings_that_are_all_one_or_no_numbers_are_zeros(value):
    sent = quantized(RunVectors("run", (np.full((3, 2), value, np.float32),)))
    assert b64decode(sent["numbers"]) == bytes(6)


def test_the_number_of_points_is_said(content):
    assert f"one of {len(content.projection.frames)} frames, evenly spread over the 222 of the test split" in render(
        content
    )


def test_failures_link_each_frame_to_its_match(page):
    failures = page[page.index('<section id="failures"') : page.index('<section id="videos"')]
    links = re.findall('href="(#video[^"]*)"', failures)
    assert links[:4] == [f"#video=ego/001&amp;frame={frame}&amp;with=exo/000" for frame in (0, 0, 12, 12)]
    shown = re.findall('aria-label="(e[gx]o/00[0-9], frame [0-9]+)"', failures)
    assert shown[:4] == ["ego/001, frame 0", "exo/000, frame 3", "ego/001, frame 12", "exo/000, frame 9"]
    assert "Below: the nearest frames of exo/000, tau 0.1100" in failures
    assert failures.count("Reference: ") == 1


def test_curves_and_softmax_are_charts_in_light_and_dark(page):
    training = page[page.index('<section id="training"') : page.index('<section id="tokens"')]
    (dark,) = re.findall(r'srcset="data:image/svg\+xml;base64,([^"]*)"', training)
    (light,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', training)
    light, dark = b64decode(light).decode(), b64decode(dark).decode()
    assert light.count("#222222") > 10
    assert dark.count("#222222") == 0
    assert dark.count("#e3e6e9") == light.count("#222222")
    assert 'alt="loss, cycle, retrieval by epoch"' in training
