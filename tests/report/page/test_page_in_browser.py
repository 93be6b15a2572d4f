"""The page in a real browser, by real keys and a real mouse."""

import re

import pytest

DARK = "rgb(21, 24, 28)"


@pytest.fixture
def tab(open_page, content):
    return open_page(content)


def reading(tab, side):
    return tab.text(f"#{side}-time"), tab.text(f"#{side}-phase")


def expected_reading(content, video, frame):
    shown = content.videos[video]
    return f"{frame / 10:.2f} s, frame {frame}", content.phases[shown.labels[frame]]


def match(content, query, candidate):
    return next(one for one in content.matches if (one.query, one.candidate) == (query, candidate))


def assert_shows(tab, content, tile_colour, query, candidate, tile):
    """Both frames of the player, by their texts and by what is drawn."""
    frames = content.videos[query].sheet.frames[tile], match(content, query, candidate).frames[tile]
    for side, video, frame in zip(("query", "candidate"), (query, candidate), frames, strict=True):
        assert reading(tab, side) == expected_reading(content, video, frame)
        assert tab.colour(f"#{side}-tile") == pytest.approx(tile_colour(content.videos[video], frame), abs=8)


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
    assert tab.value("document.querySelectorAll('.curve').length") == 3
    assert tab.value("document.querySelectorAll('.matrix .nearest circle').length") == content.videos[0].frames
    assert tab.value("document.querySelectorAll('circle.others').length") == content.videos[1].frames - 1
    assert tab.value("document.querySelectorAll('.still').length") == 6 + 12 + 1  # the reference frame
    assert tab.value("document.querySelectorAll('.unavailable').length") == 0
    widths = tab.value("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert widths == [32] * 24
    matrix = "document.querySelector('.matrix image').getAttribute('href')"
    decoded = f"(async () => {{ const i = new Image(); i.src = {matrix}; await i.decode(); return i.naturalWidth; }})()"
    assert tab.value(decoded) == content.videos[2].frames


def test_frames_of_strips_are_the_right_ones(tab, content, tile_colour):
    for number, strip in enumerate(content.strips, start=1):
        for place, reference in enumerate((strip.query, *strip.retrieved), start=1):
            drawn = tab.colour(f"#retrieval .strip:nth-of-type({number}) .still:nth-child({place}) .tile")
            expected = tile_colour(content.videos[reference.video], reference.frame)
            assert drawn == pytest.approx(expected, abs=8)


def test_the_slider_moves_both_frames(tab, content, tile_colour):
    assert_shows(tab, content, tile_colour, 0, 2, 0)
    tab.click("#scrub")
    middle = int(tab.value("document.getElementById('scrub').value"))
    assert 5 < middle < 15
    assert_shows(tab, content, tile_colour, 0, 2, middle)
    tab.press("ArrowRight")
    assert_shows(tab, content, tile_colour, 0, 2, middle + 1)
    tab.press("End")
    assert_shows(tab, content, tile_colour, 0, 2, 19)
    tab.press("Home")
    assert_shows(tab, content, tile_colour, 0, 2, 0)


def test_the_marks_on_the_timelines_follow(tab, content):
    tab.value("document.getElementById('scrub').focus()")
    places = []
    for key in ("Home", "End"):
        tab.press(key)
        places.append(
            tab.value("[...document.querySelectorAll('.marker')].map(mark => mark.getCTM().e / mark.getCTM().a)")
        )
    last = match(content, 0, 2).frames[-1]
    assert places[0] == pytest.approx([100 * 0.5 / 60, 100 * 0.5 / 51])
    assert places[1] == pytest.approx([100 * 57.5 / 60, 100 * (last + 0.5) / 51])
    assert tab.value("document.querySelectorAll('#query-line .p1').length") == 1


def test_other_videos_can_be_chosen(tab, content, tile_colour):
    tab.value("document.getElementById('candidate-video').focus()")
    tab.press("ArrowDown")
    assert_shows(tab, content, tile_colour, 0, 3, 0)
    tab.value("document.getElementById('query-video').focus()")
    tab.press("End")
    tab.value("document.getElementById('scrub').focus()")
    tab.press("ArrowRight")
    assert_shows(tab, content, tile_colour, 3, 0, 1)
    offered = tab.value("[...document.getElementById('candidate-video').options].map(option => option.textContent)")
    assert offered == ["ego/000", "ego/001"]


def test_play_goes_on_and_pauses(tab):
    tab.value(
        "window.next = new Promise(done => new MutationObserver(() => done(document.getElementById('scrub').value))"
        ".observe(document.getElementById('query-time'), {childList: true})), 0"
    )
    tab.click("#play")
    assert tab.text("#play") == "Pause"
    assert tab.value("window.next") == "1"
    tab.click("#play")
    assert tab.text("#play") == "Play"


def test_where_little_motion_is_wanted_play_is_a_step(open_page, content, tile_colour):
    tab = open_page(content, motion="reduce")
    assert tab.text("#play") == "Step"
    for step in (1, 2):
        tab.click("#play")
        assert_shows(tab, content, tile_colour, 0, 2, step)
    assert tab.text("#play") == "Step"


def shown_card(tab):
    """The card's lines, and whether it is wholly in the window."""
    inside = (
        "(box => box.width && box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)"
        "(document.getElementById('card').getBoundingClientRect())"
    )
    return tab.text("#card-text").split("\n"), tab.value(inside)


def rings(tab):
    return tab.value(
        "[...document.querySelectorAll('.found circle')].filter(ring => ring.getAttribute('visibility') === 'visible')"
        ".map(ring => [Number(ring.getAttribute('cx')), Number(ring.getAttribute('cy'))])"
    )


def place_of(tab, when, index):
    return tab.value(f"JSON.parse(document.getElementById('data').textContent).projection.{when}[{index}]")


def expected_lines(content, index):
    reference = content.projection.frames[index]
    video = content.videos[reference.video]
    phase = content.phases[video.labels[reference.frame]]
    return [video.name, f"frame {reference.frame}, {reference.frame / 10:.2f} s", phase]


@pytest.mark.parametrize("size", [(1280, 900), (360, 800)])
@pytest.mark.parametrize("index", [0, 19, 73])
def test_pointing_at_a_frame_shows_it_in_both_plots(open_page, content, tile_colour, size, index):
    tab = open_page(content, size=size)
    x, y = tab.centre(f".cloud.after .points > :nth-child({index + 1})")
    tab.mouse("mouseMoved", x, y)
    assert shown_card(tab) == (expected_lines(content, index), True)
    assert rings(tab) == [place_of(tab, "before", index), place_of(tab, "after", index)]
    reference = content.projection.frames[index]
    drawn = tab.colour("#card-tile")
    assert drawn == pytest.approx(tile_colour(content.videos[reference.video], reference.frame), abs=8)
    tab.mouse("mouseMoved", 1, 1)
    assert rings(tab) == []
    assert tab.value("document.getElementById('card').hidden") is True


def test_keys_move_from_point_to_point(tab, content):
    tab.value("document.querySelector('.cloud.before [tabindex]').focus()")
    assert shown_card(tab) == (expected_lines(content, 0), True)
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert shown_card(tab) == (expected_lines(content, 2), True)
    assert tab.value("document.activeElement.getAttribute('aria-label')") == ", ".join(expected_lines(content, 2))
    tab.press("ArrowLeft")
    assert shown_card(tab) == (expected_lines(content, 1), True)
    assert tab.value("document.querySelectorAll('.cloud.before [tabindex]').length") == 1
    tab.press("Escape")
    assert rings(tab) == []


@pytest.mark.parametrize("which", ["content", "without", "hostile"])
def test_on_a_phone_nothing_reaches_out_of_the_page(open_page, request, which):
    tab = open_page(request.getfixturevalue(which), size=(360, 800))
    tab.value("document.querySelectorAll('details').forEach(folded => { folded.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= 360
    assert tab.value("innerWidth") == 360


def test_on_a_phone_the_first_column_stays(open_page, content):
    tab = open_page(content, size=(360, 800))
    left = tab.value(
        "(box => { box.scrollLeft = 200; return [box.scrollLeft, "
        "box.querySelector('tbody th').getBoundingClientRect().left - box.getBoundingClientRect().left]; })"
        "(document.querySelector('#scores .scroll'))"
    )
    assert left == [200, 0]


def luminance(colour):
    """WCAG's relative luminance of rgb(...)."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
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
        "body",
        ".caption",
        "a",
        ".same",
        ".other",
        ".query b",
        ".retrieved b",
        ".published",
        "td small",
        ".notes",
        "dt",
    )
    assert {each: contrast(tab.value(style.format(each, "color")), paper) >= 4.5 for each in texts} == dict.fromkeys(
        texts, True
    )
    surface = tab.value(style.format(".cloud", "backgroundColor"))
    points = tab.value("[...document.querySelectorAll('.points > *')].map(point => getComputedStyle(point).fill)")
    assert len(set(points)) == 3
    assert min(contrast(point, surface) for point in set(points)) >= 2.4


def test_hostile_texts_stay_texts(open_page, hostile, hostile_text):
    tab = open_page(hostile)
    spelt = hostile_text.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u2028", "\\u2028")
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert tab.events("Page.javascriptDialogOpening") == []
    assert tab.value("document.scripts.length") == 2
    assert tab.value("document.querySelectorAll('[onerror], img[src=x]').length") == 0
    assert tab.text("h1") == f"made-up-0{spelt} on made-up{spelt}"
    assert tab.text("#query-video option") == f"ego/000{spelt}"
    x, y = tab.centre(".cloud.after .points > :nth-child(5)")
    tab.mouse("mouseMoved", x, y)
    assert tab.text("#card-text").startswith(f"ego/000{spelt}\n")


def test_where_nothing_can_be_shown_every_reason_is(open_page, without):
    tab = open_page(without)
    assert tab.messages() == []
    reasons = tab.value("[...document.querySelectorAll('main .unavailable')].map(each => each.innerText)")
    parts = ("matches", "tables", "projection", "strips", "similarity", "curves", "tokens", "failures")
    assert reasons == [f"Not shown: there is no {part} because of reason <{part}>" for part in parts]


def test_without_scripts_all_but_the_player_can_be_read(open_page, content):
    tab = open_page(content)
    tab.send("Emulation.setScriptExecutionDisabled", value=True)
    tab.reload()
    shown = tab.value("document.querySelector('#player .unavailable').checkVisibility()")
    assert shown is True
    assert tab.value("document.getElementById('stage').checkVisibility()") is False
    assert tab.value("document.querySelectorAll('.cloud .points > *').length") == 2 * len(content.projection.frames)
