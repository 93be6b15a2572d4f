"""The page in a real browser, by real keys and a real mouse: what it looks like, and that it is safe."""

import re
from dataclasses import replace

import pytest

from byov.report.content import Unavailable

DARK = "rgb(21, 24, 28)"


@pytest.fixture
def tab(open_page, content):
    return open_page(content)


def test_it_loads_in_silence_and_asks_for_nothing(tab):
    assert tab.messages() == []
    assert tab.requests() == [tab.url]


def test_the_policy_stops_what_would_ask_for_something(tab):
    blocked = tab.value(
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => done(e.violatedDirective));"
        "document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'})); })"
    )
    assert blocked == "img-src"


def test_all_figures_are_there(tab, content):
    assert tab.value("document.querySelectorAll('.cloud .points > *').length") == 2 * len(content.projection.frames)
    assert tab.value("document.querySelectorAll('#failures .still').length") == 2 * 12
    assert tab.value("document.querySelectorAll('.unavailable:not([hidden])').length") == 0
    widths = tab.value("[...document.images].map(image => image.complete && image.naturalWidth > 0)")
    assert widths == [True] * (24 + 2)  # tokens; curves and softmax


def test_frames_of_strips_are_the_right_ones(tab, content, tile_color):
    for number, strip in enumerate(content.strips, start=1):
        for place, reference in enumerate((strip.query, *strip.retrieved), start=1):
            drawn = tab.color(f"#retrieval > .strip:nth-of-type({number + 1}) .still:nth-child({place}) .tile")
            expected = tile_color(content.videos[reference.video], reference.frame)
            assert drawn == pytest.approx(expected, abs=8)


def portrait(content):
    """The same with tiles of phone videos."""
    sheets = [replace(video.sheet, tile_width=90, tile_height=160) for video in content.videos]
    videos = [replace(video, sheet=sheet) for video, sheet in zip(content.videos, sheets, strict=True)]
    return replace(content, videos=tuple(videos))


@pytest.fixture(scope="module")
def tall(content):
    return portrait(content)


@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (390, 600)])
@pytest.mark.parametrize("which", ["content", "tall"])
def test_slider_and_frames_are_on_one_screen(open_page, request, which, size):
    tab = open_page(request.getfixturevalue(which), size=size)
    tab.value("document.querySelector('.sides').scrollIntoView()")
    boxes = tab.value(
        "['#query-tile', '#run-0-tile', '#clock-tile', '#scrub'].map(name => "
        "(box => [box.left, box.top, box.right, box.bottom])(document.querySelector(name).getBoundingClientRect()))"
    )
    for left, top, right, bottom in boxes:
        assert -1 <= left < right <= size[0] + 1
        assert -1 <= top < bottom <= size[1]
    for _, top, _, bottom in boxes[:3]:
        assert bottom - top <= 0.6 * size[1]


def test_thumbnails_have_one_height(open_page, tall):
    tab = open_page(tall)
    heights = tab.value(
        "[...document.querySelectorAll('.still .tile')].map(tile => tile.getBoundingClientRect().height)"
    )
    assert len(set(heights)) == 1
    assert heights[0] < 150


@pytest.mark.parametrize("which", ["content", "without", "hostile", "compared"])
def test_on_a_phone_nothing_reaches_out_of_the_page(open_page, request, which):
    tab = open_page(request.getfixturevalue(which), size=(390, 844))
    tab.value("document.querySelectorAll('details').forEach(folded => { folded.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.value("innerWidth") == 390


@pytest.mark.parametrize("table", ["#scores .scroll", "#videos .scroll"])
def test_on_a_phone_the_first_column_stays(open_page, content, table):
    tab = open_page(content, size=(390, 844))
    scrolled, left = tab.value(
        "(box => { box.scrollLeft = 120; return [box.scrollLeft, "
        "box.querySelector('tbody th').getBoundingClientRect().left - box.getBoundingClientRect().left]; })"
        f"(document.querySelector('{table}'))"
    )
    assert scrolled > 50
    assert left == 0


def luminance(color):
    """WCAG's relative luminance of rgb(...)."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_both_schemes(open_page, content, scheme):
    tab = open_page(content, scheme=scheme)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    paper = tab.value(style.format("html", "backgroundColor"))
    assert (paper == DARK) == (scheme == "dark")
    texts = (
        *("body", ".caption", "a", ".same", ".other", ".query b", ".right b", ".wrong b", ".reference b", ".published"),
        *("td small", ".notes", "dt", ".across", ".beside"),
    )
    assert {each: contrast(tab.value(style.format(each, "color")), paper) >= 4.5 for each in texts} == dict.fromkeys(
        texts, True
    )
    surface = tab.value(style.format(".cloud", "backgroundColor"))
    for by, kinds in (("phase", 3), ("view", 2), ("video", 4), ("time", 11)):
        tab.value(
            f"(choice => {{ choice.value = '{by}'; choice.dispatchEvent(new Event('change')); }})"
            "(document.getElementById('color-by'))"
        )
        points = tab.value("[...document.querySelectorAll('.points > *')].map(point => getComputedStyle(point).fill)")
        assert len(set(points)) == kinds
        plain = {point for point in points if point.startswith("rgb")}
        assert all(contrast(point, surface) >= 2 for point in plain)


def test_hostile_texts_stay_texts(open_page, hostile, hostile_text):
    tab = open_page(hostile)
    spelt = hostile_text.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u2028", "\\u2028")
    tab.click("#mark")
    x, y = tab.center(".cloud .points > :nth-child(5)")
    tab.mouse("mouseMoved", x, y)
    assert tab.text("#card-text").startswith(f"ego/000{spelt}\n")
    assert tab.text("#choose-video option") == f"ego/000{spelt}"
    assert tab.text("#run-0-title") == f"Nearest by made-up-0{spelt}"
    assert tab.text("h1") == f"made-up-0{spelt} on made-up{spelt}"
    tab.click("#failures .still a")
    assert tab.value("document.getElementById('choose-video').selectedOptions[0].text") == f"ego/001{spelt}"
    tab.reload(tab.value("location.hash"))
    assert tab.value("document.getElementById('choose-video').selectedOptions[0].text") == f"ego/001{spelt}"
    assert tab.messages() == []
    assert tab.events("Page.javascriptDialogOpening") == []
    assert tab.value("document.scripts.length") == 2
    assert tab.value("document.querySelectorAll('[onerror], img[src=x]').length") == 0


@pytest.mark.parametrize("name", ["ego/日本語の動画 片", "ego/فيديو", "ego/a+b%20c&d=e#f"])
def test_names_of_all_scripts_stand_as_they_are_and_in_the_address(open_page, content, name):
    videos = (replace(content.videos[0], name=name), *content.videos[1:])
    tab = open_page(replace(content, videos=videos))
    tab.click("#video-table tbody tr:nth-child(1) th > a:last-child")
    assert tab.value("document.getElementById('choose-video').selectedOptions[0].text") == name
    tab.value("history.back()")
    tab.reload(tab.value("document.querySelector('#video-table tbody a').getAttribute('href')"))
    assert tab.text("#query-time").endswith("frame 30")
    assert tab.messages() == []


def test_where_nothing_can_be_shown_every_reason_is(open_page, without):
    tab = open_page(without)
    assert tab.messages() == []
    reasons = tab.value("[...document.querySelectorAll('main .unavailable')].map(each => each.innerText)")
    parts = ("vectors", "tables", "projection", "strips", "vectors", "failures", "curves", "tokens")
    assert reasons == [f"Not shown: there is no {part} because of reason <{part}>" for part in parts]


def test_without_pictures_all_still_moves(open_page, content):
    gone = Unavailable("the video is gone")
    tab = open_page(replace(content, videos=tuple(replace(video, sheet=gone) for video in content.videos)))
    tab.press("ArrowRight")
    assert tab.text("#query-time") == "0.30 s, frame 3"
    assert tab.text("#query-tile") == "no picture"
    assert tab.messages() == []


def test_without_scripts_tables_and_charts_can_be_read(open_page, content):
    tab = open_page(content)
    tab.send("Emulation.setScriptExecutionDisabled", value=True)
    tab.reload()
    visible = "document.querySelector('{}').checkVisibility()"
    assert tab.value(visible.format("#player .unavailable")) is True
    assert tab.value(visible.format("#stage")) is False
    for chart in ("#projection noscript img", "#alignment noscript img", "#training img"):
        assert tab.value(visible.format(chart)) is True
        assert tab.value(f"document.querySelector('{chart}').naturalWidth") > 100
