"""Tests of the page in a real browser, with keyboard and mouse input."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from tests.report.made_up import (
    HOSTILE_ESCAPED,
    make_hostile,
    make_vectors,
    tile_color,
    unlabeled,
    without_parts,
)

from byov.apply.align import dtw_path
from byov.data.own_videos import read_own_videos
from byov.records import UNLABELED
from byov.report.content import Opening, Unavailable

pytestmark = pytest.mark.slow

PHONE = (390, 844)
START = "#video=ego/000&frame=0&with=exo/000&play=nearest"
VISIBLE = (
    "(box => each.checkVisibility() && box.top > -1 && box.bottom <= innerHeight + 1)"
    "(each.getBoundingClientRect())"
)


@pytest.fixture(scope="module")
def without_pictures(content):
    gone = Unavailable("the video is gone")
    videos = tuple(replace(video, clip=gone, pictures={}) for video in content.videos)
    return replace(content, videos=videos)


def state(tab):
    """Return (video, frame, other) as shown in the player."""
    video, other = tab.each("#choose-video, #choose-other", "Number(each.value)")
    return video, shown(tab, "query"), other


def shown(tab, side):
    """Return the frame number shown on a side of the player."""
    return int(tab.text(f"#{side}-time").rpartition(" ")[2])


def sample(content, video, frame):
    """Return the index of the sample nearest to a frame."""
    return int(np.abs(np.array(content.videos[video].samples) - frame).argmin())


def nearest(content, video, frame, other, run=0):
    vectors = content.vectors[run].embeddings
    query = vectors[video][sample(content, video, frame)]
    found = int(np.linalg.norm(vectors[other] - query, axis=1).argmin())
    return content.videos[other].samples[found]


def by_clock(content, video, frame, other):
    progress = frame / (content.videos[video].frames - 1)
    return int(progress * (content.videos[other].frames - 1) + 0.5)


def is_close(content, video, found, expected):
    """Return whether samples are equal or neighbors, since quantization may select a neighbor."""
    samples = content.videos[video].samples
    return abs(samples.index(found) - samples.index(expected)) <= 1


def assert_at(tab, content, video, frame, other):
    assert state(tab) == (video, frame, other)
    assert is_close(content, other, shown(tab, "run-0"), nearest(content, video, frame, other))
    assert shown(tab, "clock") == by_clock(content, video, frame, other)


def assert_fits_a_phone(tab):
    tab.emulate(PHONE)
    tab.each("details", "each.open = true")
    assert tab.value("document.documentElement.scrollWidth") <= PHONE[0]


def choose(tab, select, value):
    """Choose an option with the mouse, which leaves the focus on the menu."""
    tab.each(
        f"#{select}",
        f"(each.focus(), each.value = '{value}', each.dispatchEvent(new Event('change')))",
    )


def go_back(tab, direction="back"):
    tab.value(
        "new Promise(done => { addEventListener('popstate', () => setTimeout(done), {once: true});"
        f"history.{direction}(); }})"
    )


# Loading, layout and safety


def test_the_page_loads_without_messages_or_requests(tab, content):
    tab.settle()
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert len(tab.each(".cloud .points > *", "0")) == 2 * len(content.projection.frames)
    assert len(tab.each("#failures .still", "0")) == 2 * 12
    assert tab.text(".headline") == content.summary.sentence
    assert tab.text(".worse li") == content.summary.worse[0]
    assert tab.each(".unavailable:not([hidden])", "each.textContent") == []
    assert all(tab.each("img", "each.complete && each.naturalWidth > 0"))
    assert tab.each("#stage video", "[each.videoWidth, each.videoHeight]") == [
        [64, 48],
        [48, 64],
        [48, 64],
    ]
    blocked = tab.value(
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => "
        "done(e.violatedDirective));"
        "document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'})); })"
    )
    assert blocked == "img-src"
    assert_fits_a_phone(tab)


def test_the_clips_can_be_sought_to_every_frame(tab, content):
    for video in range(4):
        for frame in range(0, content.videos[video].frames, 5):
            tab.value(f"(setState({{video: {video}, frame: {frame}}}), 0)")
            tab.settle()
            pixel = tab.value(
                "(tile => { const canvas = document.createElement('canvas');"
                "const drawing = canvas.getContext('2d', {willReadFrequently: true});"
                "drawing.drawImage(tile, 0, 0);"
                "return [...drawing.getImageData(20, 20, 1, 1).data]; })"
                "(document.getElementById('query-tile'))"
            )
            assert pixel[:3] == pytest.approx(tile_color(video, frame), abs=6)


@pytest.mark.parametrize("number", [1, 2])
def test_strips_show_the_right_frames(tab, content, number):
    strip = content.strips[number - 1]
    for place, ref in enumerate(strip, start=1):
        drawn = tab.color(
            f"#retrieval .strip:nth-of-type({number}) .still:nth-child({place}) .tile"
        )
        assert drawn == pytest.approx(tile_color(ref.video, ref.frame), abs=8)
    kinds = ["query", "right", "wrong", "query", "right", "right"]
    assert tab.each("#retrieval .still", "each.className") == [f"still {kind}" for kind in kinds]
    assert tab.each("#retrieval .still", "/[✓✗]/.exec(each.innerText)?.[0]") == [
        None,
        "✓",
        "✗",
        None,
        "✓",
        "✓",
    ]


@pytest.mark.parametrize("size", [(1400, 900), (1280, 800)])
def test_the_top_of_the_page_with_the_player_fits_on_one_screen(tab, size):
    tab.emulate(size)
    tab.reload()
    tab.settle()
    parts = "h1, .headline, .worse, #choose-video, #stage .tile, .reading, #scrub, #play"
    assert all(tab.each(parts, VISIBLE))


@pytest.mark.parametrize("size", [PHONE, (390, 600)])
def test_slider_and_frames_fit_on_one_screen_of_a_phone(tab, size):
    tab.emulate(size)
    tab.settle()
    tab.value("document.querySelector('.sides').scrollIntoView()")
    assert all(tab.each("#stage .tile, #scrub", VISIBLE))


def test_dark_mode_and_colors_of_the_points(tab):
    tab.emulate(scheme="dark")
    assert tab.each("html", "getComputedStyle(each).backgroundColor") == ["rgb(21, 24, 28)"]
    assert len(set(tab.each(".points > *", "getComputedStyle(each).fill"))) == 3
    tab.click("#by-time")
    assert len(set(tab.each(".points > *", "getComputedStyle(each).fill"))) > 30


def test_hostile_texts_stay_texts(open_page, content):
    tab = open_page(make_hostile(content))
    selected = "document.getElementById('choose-video').selectedOptions[0].text"
    tab.click("#mark")
    tab.mouse("mouseMoved", *tab.center(".cloud .points > :nth-child(5)"))
    assert tab.text("#card-text").startswith(f"ego/000{HOSTILE_ESCAPED}\n")
    assert tab.text("#choose-video option") == f"ego/000{HOSTILE_ESCAPED}"
    assert tab.text("#run-0-title") == f"Aligned by made-up-0{HOSTILE_ESCAPED}"
    assert tab.text("h1") == f"made-up-0{HOSTILE_ESCAPED} on made-up{HOSTILE_ESCAPED}"
    tab.click("#failures .still a")
    assert tab.value(selected) == f"ego/001{HOSTILE_ESCAPED}"
    tab.reload(tab.value("location.hash"))
    assert tab.value(selected) == f"ego/001{HOSTILE_ESCAPED}"
    assert tab.messages() == []
    assert tab.events("Page.javascriptDialogOpening") == []
    assert tab.value("document.scripts.length") == 2
    assert tab.each("[onerror], img[src=x]", "0") == []
    assert_fits_a_phone(tab)


def test_every_missing_part_states_its_reason(open_page, without_pictures):
    tab = open_page(unlabeled(without_parts(without_pictures)))
    parts = (
        "vectors",
        "predictions",
        "tables",
        "projection",
        "strips",
        "vectors",
        "failures",
        "progress",
        "curves",
        "tokens",
    )
    expected = [f"Not shown: no {part} because of <{part}>" for part in parts]
    assert tab.each("main .unavailable", "each.innerText") == expected
    assert tab.messages() == []
    assert_fits_a_phone(tab)


# Player


def test_the_page_opens_on_the_chosen_pair(tab, content):
    opening = content.opening
    assert state(tab) == (opening.video, opening.frame, opening.other)
    assert tab.text("#run-0-title") == "Aligned by made-up-0"
    assert tab.text("#play") == "Play", "the reader prefers reduced motion"


def test_the_opening_pair_plays_in_a_loop_until_it_is_out_of_view(tab, content):
    tab.emulate(motion=True)
    tab.reload()
    last = content.videos[content.opening.video].frames - 1
    frames = tab.value(
        "new Promise(done => { const frames = []; watch(() => { frames.push(now.frame);"
        "if (frames.at(-1) < frames.at(-2)) done(frames); }); })"
    )
    assert frames == [*range(frames[0], last + 1), 0]
    assert tab.text("#play") == "Pause"
    tab.value(
        "new Promise(done => { new MutationObserver(done).observe(byId('play'), {childList: true});"
        "byId('provenance').scrollIntoView(); }).then(() => 0)"
    )
    assert tab.text("#play") == "Play"


def test_a_shared_frame_does_not_play(tab):
    tab.emulate(motion=True)
    tab.reload(START)
    assert tab.text("#play") == "Play"


def test_the_player_shows_a_frame_its_nearest_and_the_clock(tab, content):
    tab.reload(START)
    tab.value("document.getElementById('scrub').focus()")
    for key in ("ArrowRight", "End", "ArrowLeft"):
        tab.press(key)
    assert_at(tab, content, 0, 58, 2)
    for side, video in (("query", 0), ("run-0", 2), ("clock", 2)):
        assert tab.color(f"#{side}-tile") == pytest.approx(
            tile_color(video, shown(tab, side)), abs=8
        )
    assert tab.text("#query-phase") == content.phases[content.videos[0].labels[58]]
    assert tab.text("#clock-verdict") == "✓ same phase"


def test_nearest_samples_and_warp_paths_are_those_of_byov_align(tab, content):
    found = tab.value(
        "(run => data.videos.map((_, i) => data.videos.map((_, j) => run.compare(i, j).nearest)))"
        "(new Run(data.runs[0]))"
    )
    exact = content.vectors[0].embeddings
    gaps = [
        np.abs(np.array(found[i][j]) - cdist(exact[i], exact[j]).argmin(axis=1))
        for i in range(4)
        for j in range(4)
    ]
    assert np.concatenate(gaps).max() <= 1
    assert (np.concatenate(gaps) == 0).mean() > 0.9
    random = np.random.default_rng(0)
    a = random.normal(size=(23, 4)).astype(np.float32)
    b = random.normal(size=(17, 4)).astype(np.float32)
    assert tab.value(f"warpPath({cdist(a, b).tolist()})") == dtw_path(a, b).tolist()


def test_arrow_keys_step_and_space_plays(tab, content):
    tab.reload(START)
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert_at(tab, content, 0, 2, 2)
    tab.press("ArrowLeft")
    assert_at(tab, content, 0, 1, 2)
    tab.value(
        "window.next = new Promise(done => new MutationObserver(() => "
        "done(document.getElementById('scrub').value))"
        ".observe(document.getElementById('query-time'), {childList: true})), 0"
    )
    tab.press(" ")
    assert tab.text("#play") == "Pause"
    assert tab.value("window.next") == "2"
    tab.press(" ")
    assert tab.text("#play") == "Play"


@pytest.mark.parametrize("menu", ["choose-video", "choose-other", "choose-mode"])
def test_arrow_keys_step_after_a_choice(tab, menu):
    tab.reload(START)
    choose(tab, menu, {"choose-video": 1, "choose-other": 3, "choose-mode": "path"}[menu])
    chosen = state(tab)
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert state(tab) == (chosen[0], chosen[1] + 2, chosen[2])
    assert tab.value("document.activeElement.id") == menu, "up and down still choose"


def test_any_pair_can_be_compared(tab, content):
    tab.reload(START)
    choose(tab, "choose-other", 0)
    assert_at(tab, content, 0, 0, 2)  # a video is not compared with itself
    assert tab.each("#choose-other option", "each.textContent") == [
        video.name for video in content.videos
    ]
    choose(tab, "choose-other", 1)
    assert_at(tab, content, 0, 0, 1)
    tab.reload("#video=ego/000&frame=30&with=ego/001&play=nearest")
    assert_at(tab, content, 0, 30, 1)


def test_matching_along_the_warp_path(tab, content):
    tab.reload("#video=ego/000&frame=0&with=exo/001")
    assert tab.text("#run-0-title") == "Aligned by made-up-0"
    vectors = content.vectors[0].embeddings
    path = dtw_path(vectors[0], vectors[3])
    samples = content.videos[3].samples
    for frame in range(60):
        row = sample(content, 0, frame)
        aligned = [samples[column] for each, column in path if each == row]
        # Quantization may select a neighbor.
        assert aligned[0] - 3 <= shown(tab, "run-0") <= aligned[-1] + 3
        tab.press("ArrowRight")
    assert (shown(tab, "query"), shown(tab, "run-0")) == (59, 63)


def test_two_runs_side_by_side(open_page, content):
    compared = replace(
        content, vectors=(*content.vectors, make_vectors(content.videos, "other-run", -0.2))
    )
    tab = open_page(compared)
    tab.reload("#video=ego/001&frame=24&with=exo/001&play=nearest")
    for run in (0, 1):
        assert is_close(compared, 3, shown(tab, f"run-{run}"), nearest(compared, 1, 24, 3, run))
        assert tab.text(f"#run-{run}-title") == f"Nearest in {compared.vectors[run].name}"
    assert shown(tab, "run-0") != shown(tab, "run-1")
    assert len(tab.each(".matrix", "0")) == 2
    choose(tab, "choose-mode", "path")
    assert tab.text("#run-1-title") == "Aligned by other-run"
    assert tab.messages() == []
    assert_fits_a_phone(tab)


# Links to the player


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("#failures .above:nth-child(2) .still:nth-child(2) a", (1, 12, 2)),
        ("#retrieval .still:nth-child(3) a", (0, 30, 3)),
        ("#video-table tbody tr:nth-child(4) th > a:last-child", (3, 0, 0)),
        ("#video-table tbody tr:nth-child(4) .tile", (3, 33, 0)),
        ("#video-table tbody tr:nth-child(4) .timeline", (3, 33, 0)),
        ("#predictions figure:nth-child(4) .curve", (3, 33, 0)),
        ("#query-line", (0, 30, 2)),
        ("#run-0-line", (2, 25, 0)),
    ],
)
def test_clicks_move_the_player_and_bring_it_into_view(tab, selector, expected):
    tab.reload(START)
    tab.click(selector)
    video, frame, other = state(tab)
    assert (video, other) == (expected[0], expected[2])
    assert abs(frame - expected[1]) <= 1, "a frame is less than two pixels wide"
    assert all(tab.each("#stage .tile, #scrub", VISIBLE))
    marked = tab.each("#video-table tbody tr", "each.classList.contains('own')")
    assert marked == [index == expected[0] for index in range(4)]


def test_the_curve_of_the_player_s_video_marks_its_frame(tab):
    tab.reload("#video=ego/001&frame=22")
    markers = tab.each(".curve .marker", "each.checkVisibility() && each.x1.baseVal.value")
    assert markers == [False, 50, False, False]


def test_the_address_can_be_shared_and_the_back_button_works(tab, content):
    opening = state(tab)
    tab.click("#video-table tbody tr:nth-child(4) th > a:last-child")
    tab.click("#failures .above:nth-child(2) a")
    address = tab.value("location.hash")
    assert address == "#video=ego/001&frame=12&with=exo/000"
    go_back(tab)
    assert state(tab)[:2] == (3, 0)
    go_back(tab, "forward")
    assert state(tab) == (1, 12, 2)
    go_back(tab)
    go_back(tab)
    assert state(tab) == opening, "the first entry has no frame in its address"
    tab.reload(f"{address}&play=nearest")
    assert_at(tab, content, 1, 12, 2)


def test_back_restores_the_matching_and_leaves_links_to_sections(tab):
    tab.reload(START)
    choose(tab, "choose-mode", "path")
    tab.click("nav a[href='#alignment']")
    choose(tab, "choose-video", 3)
    go_back(tab)
    assert state(tab) == (0, 0, 2)
    assert tab.value("location.hash") == "#alignment"
    go_back(tab)
    assert tab.text("#run-0-title") == "Aligned by made-up-0"
    go_back(tab)
    assert tab.text("#run-0-title") == "Nearest in made-up-0"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("#video=ego/000&frame=31", (0, 31, 2)),
        ("#video=ego/000&frame=30.4", (0, 30, 2)),
        ("#video=ego/000&frame=100000", (0, 59, 2)),
        ("#video=ego/000&frame=x&with=nowhere", (0, 0, 2)),
        ("#video=%E0%A4%A", None),
        ("#video=__proto__&frame=constructor", None),
        ("#scores", None),
    ],
)
def test_invalid_addresses(tab, address, expected):
    opening = state(tab)
    tab.reload(address)
    assert state(tab)[:2] == (expected or opening)[:2]
    assert tab.messages() == []


# Maps and matrices


@pytest.mark.parametrize(("size", "index"), [((1280, 900), 73), (PHONE, 0)])
def test_a_click_on_a_point_selects_the_hovered_frame(tab, content, size, index):
    tab.emulate(size)
    ref = content.projection.frames[index]
    lines = [content.videos[ref.video].name, f"{ref.frame / 10:.2f} s, frame {ref.frame}"]
    x, y = tab.center(f"#clouds figure:nth-child(2) .points > :nth-child({index + 1})")
    tab.mouse("mouseMoved", x, y)
    assert tab.text("#card-text").split("\n")[:2] == lines
    (card,) = tab.boxes("#card")
    assert 0 <= card["left"] < card["right"] <= size[0]
    assert 0 <= card["top"] < card["bottom"] <= size[1]
    assert tab.color("#card-tile") == pytest.approx(tile_color(*ref), abs=8)
    x, y = tab.center(f"#clouds figure:nth-child(2) .points > :nth-child({index + 1})")
    tab.click_at(x, y)
    assert tab.hidden("#card")
    assert state(tab)[:2] == (ref.video, ref.frame)
    assert all(tab.each("#stage .tile, #scrub", VISIBLE))
    rings = tab.each("circle.ring", "(at => [at.e, at.f])(each.transform.baseVal[0].matrix)")
    np.testing.assert_allclose(
        rings, tab.value(f"data.maps.map(points => points[{index}])"), atol=0.01
    )
    tab.mouse("mouseMoved", 1, 1)
    assert tab.hidden("#card")


def test_the_matrix_shows_distances_clock_and_tau_and_moves_the_player(tab, content):
    tab.reload(START)
    rows = len(content.videos[0].samples)
    columns = len(content.videos[2].samples)
    tab.center("#matrix-0 .cells")
    (box,) = tab.boxes("#matrix-0 .cells")
    position = box["left"] + 5.5 * box["width"] / columns, box["top"] + 12.5 * box["height"] / rows
    tab.mouse("mouseMoved", *position)
    lines = tab.text("#card-text").split("\n")
    assert lines[:2] == ["ego/000: 3.60 s, frame 36", "exo/000: 1.50 s, frame 15"]
    exact = content.vectors[0].embeddings
    distance = float(lines[2].removeprefix("distance "))
    assert distance == pytest.approx(np.linalg.norm(exact[0][12] - exact[2][5]), abs=0.03)
    tab.click_at(*position)
    assert_at(tab, content, 0, 36, 2)
    assert all(tab.each("#stage .tile, #scrub", VISIBLE))
    assert tab.each("#matrix-0 .here line", "each.y1.baseVal.value")[0] == 12.5
    distances = cdist(exact[0], exact[2])
    for pick, color in ((np.argmin, [253, 231, 37, 255]), (np.argmax, [68, 1, 84, 255])):
        row, column = np.unravel_index(pick(distances), distances.shape)
        pixel = f"[...each.getContext('2d').getImageData({column}, {row}, 1, 1).data]"
        assert tab.each("#matrix-0 canvas", pixel)[0] == pytest.approx(color, abs=2)
    (drawn,) = tab.each("#matrix-0 .clock", "[...each.points].map(at => [at.y - 0.5, at.x - 0.5])")
    expected = [by_clock(content, 0, frame, 2) for frame in content.videos[0].samples]
    assert drawn == [[row, sample(content, 2, frame)] for row, frame in enumerate(expected)]
    assert tab.text("#matrix-0 .tau") == "tau 0.020 (clock: 1)"


# Marks


def test_marks_become_the_csv_for_byov_extract(tab, tmp_path):
    for frame in (12, 29, 33):
        tab.reload(f"#video=ego/001&frame={frame}")
        tab.press("m")
    assert not tab.hidden("#mark-warning")  # three events in this video, two in others
    tab.click("#mark")  # deletes the mark of frame 33
    tab.reload()
    tab.value("document.getElementById('marks').open = true")
    tab.click("#mark-list a")
    assert state(tab)[:2] == (1, 12)
    assert tab.text("#mark-count") == "2"
    assert tab.hidden("#mark-warning")
    text = tab.value(
        "decodeURIComponent(document.getElementById('mark-save').href.replace(/^[^,]*,/, ''))"
    )
    # They have the same ids as ego videos.
    lines = [line for line in text.splitlines() if ",exo,test," not in line]
    for row in csv.DictReader(lines):
        (tmp_path / row["path"]).parent.mkdir(exist_ok=True)
        (tmp_path / row["path"]).touch()
    table = tmp_path / "videos.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    videos = {(video.split, video.id): video for video in read_own_videos("mine", table).videos}
    assert list(videos) == [("train", "one"), ("train", "two"), ("test", "000"), ("test", "001")]
    assert videos["test", "001"].events == (12, 29)
    assert videos["train", "one"].events == (10, 20)
    assert videos["train", "one"].path == tmp_path / 'a, "b"' / "one.mp4"
    assert videos["train", "two"].pair == "p"
    tab.value("localStorage.clear()")


# Odd datasets


@pytest.mark.parametrize("kept", [(0, 2), (0, 1), (2,)])
def test_few_videos(open_page, content, kept):
    few = replace(
        without_parts(content),
        videos=tuple(content.videos[index] for index in kept),
        opening=Opening(0, 0, len(kept) - 1),
    )
    if len(kept) > 1:
        few = replace(few, vectors=(make_vectors(few.videos),))
    tab = open_page(few)
    if len(kept) > 1:
        tab.press("ArrowRight")
        assert tab.text("#matrix-0 .tau").startswith("tau")
    assert tab.messages() == []


def test_without_labels_frames_are_colored_by_time(open_page, content):
    tab = open_page(unlabeled(content))
    assert tab.each("#by-time", "0") == []
    assert len(set(tab.each(".points > *", "getComputedStyle(each).fill"))) > 30
    tab.press("ArrowRight")
    assert [tab.text(f"#{side}-verdict") for side in ("run-0", "clock")] == ["", ""]
    assert tab.each("#retrieval .still", "each.classList[1]") == ["query", "plain", "plain"] * 2
    assert tab.each("#matrix-0 .boundary", "0") == []
    assert tab.messages() == []


def test_partly_labeled_videos(open_page, content):
    """Label only the middle phase of the first video.

    Marks for missing labels do not count as events.
    """
    labels = tuple(label if label == 1 else UNLABELED for label in content.videos[0].labels)
    cells = ("10f;20f", "0f -;5f +;10f;20f", "10f;20f -")
    rows = tuple(
        row | {"events": cell} for row, cell in zip(content.manifest_rows, cells, strict=False)
    )
    videos = (replace(content.videos[0], labels=labels), *content.videos[1:])
    tab = open_page(replace(content, videos=videos, manifest_rows=rows + content.manifest_rows[3:]))
    tab.reload("#video=ego/000&frame=0&with=ego/001")
    assert [tab.text(f"#{side}-verdict") for side in ("run-0", "clock")] == ["", ""]
    # Boundaries of the other video.
    assert tab.each("#matrix-0 .boundary", "each.hasAttribute('x1')") == [True, True]
    assert tab.hidden("#mark-warning")
