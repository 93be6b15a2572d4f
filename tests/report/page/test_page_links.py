"""Every picture of the page leads to the frames behind it: click here, and the player is there."""

import csv
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from byov.apply.align import dtw_path, tau
from byov.data.own_videos import read_own_videos
from byov.records import UNLABELED
from byov.report.content import Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture
def tab(open_page, content):
    return open_page(content)


def state(tab):
    """(video, frame, other) as the player shows them."""
    video, other = (tab.value(f"Number(document.getElementById('choose-{name}').value)") for name in ("video", "other"))
    return video, int(tab.text("#query-time").rpartition(" ")[2]), other


def shown(tab, side):
    return int(tab.text(f"#{side}-time").rpartition(" ")[2])


def nearest(content, video, frame, other, run=0):
    """The frame of the other video that is nearest, from the exact embeddings."""
    vectors, moments = content.vectors[run].of_video, content.videos[other].moments
    query = vectors[video][content.videos[video].moments.index(frame)]
    return moments[int(np.linalg.norm(vectors[other] - query, axis=1).argmin())]


def by_clock(content, video, frame, other):
    share = frame / (content.videos[video].frames - 1)
    return min(content.videos[other].moments, key=lambda each: abs(each - share * (content.videos[other].frames - 1)))


def close(content, video, found, expected):
    """8 bits may take a neighbor."""
    moments = content.videos[video].moments
    return abs(moments.index(found) - moments.index(expected)) <= 1


def assert_at(tab, content, video, frame, other):
    assert state(tab) == (video, frame, other)
    assert close(content, other, shown(tab, "run-0"), nearest(content, video, frame, other))
    assert shown(tab, "clock") == by_clock(content, video, frame, other)


def test_the_player_shows_a_frame_its_nearest_and_what_a_clock_gives(tab, content, tile_color):
    assert_at(tab, content, 0, 0, 2)
    tab.value("document.getElementById('scrub').focus()")
    for key in ("ArrowRight", "End", "ArrowLeft"):
        tab.press(key)
    assert_at(tab, content, 0, 54, 2)
    for side, video in (("query", 0), ("run-0", 2), ("clock", 2)):
        expected = tile_color(content.videos[video], shown(tab, side))
        assert tab.color(f"#{side}-tile") == pytest.approx(expected, abs=8)
    assert tab.text("#query-phase") == content.phases[content.videos[0].labels[54]]
    assert tab.text("#clock-verdict") == "✓ same phase"


def test_the_nearest_of_all_moments_of_all_pairs_are_those_of_the_exact_embeddings(tab, content):
    found = tab.value(
        "(runs => data.videos.map((a, i) => data.videos.map((b, j) => "
        "a.frames.map((_, at) => runs[0].nearest(i, at, j).moment))))(data.runs.map(run => new Vectors(run)))"
    )
    exact = content.vectors[0].of_video
    apart = [
        np.abs(np.array(found[i][j]) - cdist(exact[i], exact[j]).argmin(axis=1)) for i in range(4) for j in range(4)
    ]
    assert np.concatenate(apart).max() <= 1
    assert (np.concatenate(apart) == 0).mean() > 0.9


def test_the_warp_path_and_tau_are_those_of_byov_align(tab):
    random = np.random.default_rng(0)
    a, b = random.normal(size=(23, 4)).astype(np.float32), random.normal(size=(17, 4)).astype(np.float32)
    distances = cdist(a, b).ravel().tolist()
    assert tab.value(f"warpPath({distances}, 23, 17)") == dtw_path(a, b).tolist()
    moments = random.integers(0, 9, 30)
    assert tab.value(f"kendallsTau({moments.tolist()})") == pytest.approx(tau(moments))
    assert tab.value("kendallsTau([3, 3, 3])") is None


def test_arrow_keys_step_and_space_plays(tab, content):
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert_at(tab, content, 0, 6, 2)
    tab.press("ArrowLeft")
    assert_at(tab, content, 0, 3, 2)
    tab.value(
        "window.next = new Promise(done => new MutationObserver(() => done(document.getElementById('scrub').value))"
        ".observe(document.getElementById('query-time'), {childList: true})), 0"
    )
    tab.press(" ")
    assert tab.text("#play") == "Pause"
    assert tab.value("window.next") == "2"
    tab.press(" ")
    assert tab.text("#play") == "Play"


def test_where_little_motion_is_wanted_play_is_a_step(open_page, content):
    tab = open_page(content, motion="reduce")
    assert tab.text("#play") == "Step"
    for frame in (3, 6):
        tab.click("#play")
        assert_at(tab, content, 0, frame, 2)
    assert tab.text("#play") == "Step"


def test_any_pair_can_be_chosen(tab, content):
    tab.value("document.getElementById('choose-other').focus()")
    tab.press("Home")
    assert_at(tab, content, 0, 0, 2)  # not with itself
    tab.press("ArrowDown")
    offered = tab.value("[...document.getElementById('choose-other').options].map(option => option.textContent)")
    assert offered == [video.name for video in content.videos]
    tab.reload("#video=ego/000&frame=30&with=ego/001")
    assert_at(tab, content, 0, 30, 1)


def test_along_the_warp_path_both_go_forwards_and_every_pair_is_played(tab, content):
    tab.reload("#video=ego/000&frame=0&with=exo/001&play=path")
    vectors = content.vectors[0].of_video
    path = dtw_path(vectors[0], vectors[3])
    assert tab.value("Number(document.getElementById('scrub').max)") == pytest.approx(len(path) - 1, abs=3)
    pairs = []
    tab.value("document.getElementById('scrub').focus()")
    for _ in range(int(tab.value("document.getElementById('scrub').max"))):
        pairs.append((shown(tab, "query"), shown(tab, "run-0")))
        tab.press("ArrowRight")
    pairs.append((shown(tab, "query"), shown(tab, "run-0")))
    assert (pairs[0], pairs[-1]) == ((0, 0), (57, 63))
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(pairs))
    assert len(set(pairs)) == len(pairs)
    assert tab.text("#run-0-title") == "Aligned by made-up-0"


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
@pytest.mark.parametrize("index", [0, 19, 73])
def test_a_click_on_a_point_is_what_was_hovered_and_moves_the_player(open_page, content, size, index):
    tab = open_page(content, size=size)
    reference = content.projection.frames[index]
    video = content.videos[reference.video]
    lines = [video.name, f"frame {reference.frame}, {reference.frame / 10:.2f} s"]
    x, y = tab.center(f"#clouds figure:nth-child(2) .points > :nth-child({index + 1})")
    tab.mouse("mouseMoved", x, y)
    assert tab.text("#card-text").split("\n")[:2] == lines
    inside = (
        "(box => box.width && box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)"
        "(document.getElementById('card').getBoundingClientRect())"
    )
    assert tab.value(inside)
    for kind in ("mousePressed", "mouseReleased"):
        tab.mouse(kind, x, y)
    assert tab.text("#card-text").split("\n")[:2] == lines
    assert state(tab)[:2] == (reference.video, reference.frame)
    rings = tab.value(
        "[...document.querySelectorAll('circle.ring')].map(ring => [ring.cx.baseVal.value, ring.cy.baseVal.value])"
    )
    places = tab.value(f"data.maps.map(places => places[{index}])")
    np.testing.assert_allclose(rings, places, atol=0.01)
    tab.mouse("mouseMoved", 1, 1)
    assert tab.value("document.getElementById('card').hidden") is True


def test_a_tap_on_a_point_shows_and_chooses_it(open_page, content):
    tab = open_page(content, size=(390, 844))
    tab.send("Emulation.setTouchEmulationEnabled", enabled=True)
    x, y = tab.center("#clouds .points > :nth-child(40)")
    tab.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    tab.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    tab.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    reference = content.projection.frames[39]
    assert state(tab)[:2] == (reference.video, reference.frame)


def test_keys_move_from_point_to_point_and_enter_chooses(tab, content):
    tab.value("document.querySelector('.cloud [tabindex]').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    frame = content.projection.frames[2].frame
    assert tab.text("#card-text").split("\n")[1].startswith(f"frame {frame},")
    assert tab.value("document.activeElement.getAttribute('aria-label')").startswith(f"ego/000, frame {frame}")
    assert state(tab) == (0, 0, 2)
    tab.press("Enter")
    assert state(tab) == (0, frame, 2)
    tab.press("Escape")
    assert tab.value("document.getElementById('card').hidden") is True


def test_the_trail_joins_the_points_of_the_player_s_video(tab, content):
    assert tab.value("document.querySelector('.trail').points.length") == 0
    tab.click("#trail")
    assert tab.value("document.querySelector('.trail').points.length") == len(content.videos[0].moments)
    tab.click("#video-table tbody tr:nth-child(2) a")
    assert tab.value("document.querySelector('.trail').points.length") == len(content.videos[1].moments)


def cell_place(tab, row, column, rows, columns):
    tab.center("#matrix-0 .cells")
    box = "document.querySelector('#matrix-0 .cells').getBoundingClientRect()"
    left, top, width, height = tab.value(f"(box => [box.left, box.top, box.width, box.height])({box})")
    return left + (column + 0.5) * width / columns, top + (row + 0.5) * height / rows


def test_a_cell_of_the_alignment_shows_its_two_frames_and_a_click_moves_the_player(tab, content):
    rows, columns = len(content.videos[0].moments), len(content.videos[2].moments)
    place = cell_place(tab, 12, 5, rows, columns)
    tab.mouse("mouseMoved", *place)
    exact = content.vectors[0].of_video
    lines = tab.text("#card-text").split("\n")
    assert lines[:2] == ["ego/000: 3.60 s, frame 36", "exo/000: 1.50 s, frame 15"]
    distance = float(lines[2].removeprefix("distance "))
    assert distance == pytest.approx(np.linalg.norm(exact[0][12] - exact[2][5]), abs=0.03)
    tab.click_at(*place)
    assert_at(tab, content, 0, 36, 2)
    cross = tab.value("document.querySelector('#matrix-0 .here line').y1.baseVal.value")
    assert cross == 12.5


def test_the_matrix_is_bright_where_frames_are_near_and_the_clock_is_dashed(tab, content):
    pixel = (
        "(([row, column]) => [...document.querySelector('#matrix-0 canvas').getContext('2d')"
        ".getImageData(column, row, 1, 1).data])"
    )
    exact = content.vectors[0].of_video
    distances = cdist(exact[0], exact[2])
    near, far = (list(map(int, np.unravel_index(pick(distances), distances.shape))) for pick in (np.argmin, np.argmax))
    assert tab.value(f"{pixel}({near})") == pytest.approx([253, 231, 37, 255], abs=2)
    assert tab.value(f"{pixel}({far})") == pytest.approx([68, 1, 84, 255], abs=2)
    drawn = tab.value(
        "[...document.querySelector('#matrix-0 polyline.ghost').points].map(point => [point.y - 0.5, point.x - 0.5])"
    )
    moments = content.videos[2].moments
    expected = [
        [row, moments.index(by_clock(content, 0, frame, 2))] for row, frame in enumerate(content.videos[0].moments)
    ]
    assert drawn == expected
    dashes = tab.value(
        "getComputedStyle(document.querySelector('#matrix-0 polyline.ghost:not(.casing)')).strokeDasharray"
    )
    assert dashes != "none"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("#failures .above:nth-child(2) .still:nth-child(1) a", (1, 12, 2)),
        ("#failures .above:nth-child(2) .still:nth-child(2) a", (1, 12, 2)),
        ("#retrieval > .strip .still:nth-child(1) a", (0, 30, 2)),
        ("#retrieval > .strip .still:nth-child(3) a", (0, 30, 3)),
        ("#live-strips .still:nth-child(3) a", (0, 0, None)),
        ("#video-table tbody tr:nth-child(4) th > a:last-child", (3, 0, 0)),
        ("#video-table tbody tr:nth-child(4) .tile", (3, 33, 0)),
        ("#video-table tbody tr:nth-child(4) .timeline", (3, 33, 0)),
        ("#query-line", (0, 30, 2)),
        ("#run-0-line", (2, 24, 0)),
    ],
)
def test_thumbnails_bars_and_rows_move_the_player(tab, content, selector, expected):
    tab.click(selector)
    video, frame, other = state(tab)
    assert video == expected[0]
    assert abs(content.videos[video].moments.index(frame) - content.videos[video].moments.index(expected[1])) <= 1
    assert expected[2] in (other, None)
    assert_at(tab, content, video, frame, other)


def test_the_row_of_the_player_s_video_is_marked(tab):
    tab.click("#video-table tbody tr:nth-child(3) a")
    assert tab.value(
        "[...document.querySelectorAll('#video-table tbody tr')].map(row => row.classList.contains('own'))"
    ) == [
        False,
        False,
        True,
        False,
    ]


def test_retrieval_follows_the_player(tab, content):
    tab.reload("#video=exo/001&frame=33")
    stills = tab.value(
        "[...document.querySelectorAll('#live-strips figcaption')].map(each => each.innerText.split('\\n'))"
    )
    assert [still[0] for still in stills] == ["Query", "Nearest 1", "Nearest 2"]
    assert stills[0][1:3] == ["exo/001", "3.30 s, frame 33"]
    exact = content.vectors[0].of_video
    distances = [np.linalg.norm(exact[other] - exact[3][11], axis=1).min() for other in (0, 1)]
    assert [still[1] for still in stills[1:]] == [f"ego/00{index}" for index in np.argsort(distances)]


def test_the_address_can_be_shared_and_the_back_button_works(tab, content):
    tab.click("#video-table tbody tr:nth-child(4) th > a:last-child")
    tab.click("#failures .above:nth-child(2) a")
    assert state(tab) == (1, 12, 2)
    address = tab.value("location.hash")
    assert address == "#video=ego/001&frame=12&with=exo/000"
    moved = "new Promise(done => addEventListener('popstate', () => setTimeout(done), {once: true}))"
    tab.value(f"(promise => {{ history.back(); return promise; }})({moved})")
    assert state(tab)[:2] == (3, 0)
    tab.value(f"(promise => {{ history.forward(); return promise; }})({moved})")
    assert state(tab) == (1, 12, 2)
    tab.reload(address)
    assert_at(tab, content, 1, 12, 2)
    assert tab.messages() == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("#video=ego/000&frame=31", (0, 30, 2)),  # not a moment: the nearest one
        ("#video=ego/000&frame=100000", (0, 57, 2)),
        ("#video=ego/000&frame=x&with=nowhere", (0, 0, 2)),
        ("#video=%E0%A4%A", (0, 0, 2)),
        ("#video=__proto__&frame=constructor", (0, 0, 2)),
        ("#scores", (0, 0, 2)),
    ],
)
def test_wrong_addresses_are_read_as_well_as_they_can_be(tab, address, expected):
    tab.reload(address)
    assert state(tab) == expected
    assert tab.messages() == []


def test_the_player_s_frames_stay_in_sight(tab):
    assert tab.value("document.getElementById('dock').hidden") is True
    appears = (
        "new Promise(done => new MutationObserver(() => done(!document.getElementById('dock').hidden))"
        ".observe(document.getElementById('dock'), {attributes: true}))"
    )
    scrolled = "document.getElementById('provenance').scrollIntoView()"
    assert tab.value(f"(promise => {{ {scrolled}; return promise; }})({appears})") is True
    tab.click("#dock-close")
    assert tab.value("document.getElementById('dock').hidden") is True


def test_two_runs_answer_the_same_query_side_by_side(open_page, compared):
    tab = open_page(compared)
    tab.reload("#video=ego/001&frame=24&with=exo/001")
    for run in (0, 1):
        assert close(compared, 3, shown(tab, f"run-{run}"), nearest(compared, 1, 24, 3, run))
        assert tab.text(f"#run-{run}-title") == f"Nearest by {compared.vectors[run].name}"
    assert shown(tab, "run-0") != shown(tab, "run-1")
    assert tab.value("document.querySelectorAll('.matrix').length") == 2
    headings = tab.value("[...document.querySelectorAll('#live-strips h3')].map(each => each.textContent)")
    assert headings == ["For the player's frame, by made-up-0", "For the player's frame, by other-run"]
    assert tab.messages() == []


def test_marks_become_the_csv_that_byov_extract_reads(tab, tmp_path):
    tab.value("localStorage.clear()")
    tab.reload("#video=ego/001&frame=12")
    tab.press("m")
    tab.click("#mark")  # the same moment counts once
    tab.reload("#video=ego/001&frame=30")
    tab.press("m")
    assert tab.text("#mark-count") == "2 in 1 video"
    assert tab.value("document.getElementById('mark-line').value") == "ego/001.mp4,ego,test,001,1.200;3.000,"
    assert tab.value("document.getElementById('mark-warning').hidden") is True
    text = tab.value("decodeURIComponent(document.getElementById('mark-save').href.replace(/^[^,]*,/, ''))")
    lines = [line for line in text.splitlines() if ",exo,test," not in line]  # their ids are those of the ego videos
    for row in csv.DictReader(lines):
        (tmp_path / row["path"]).parent.mkdir(exist_ok=True)
        (tmp_path / row["path"]).touch()
    table = tmp_path / "videos.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    videos = {(video.split, video.id): video for video in read_own_videos("mine", table).videos}
    assert list(videos) == [("train", "one"), ("train", "two"), ("test", "000"), ("test", "001")]
    assert videos["test", "001"].event_seconds == (1.2, 3.0)
    assert videos["train", "one"].event_seconds == (1.0, 2.0)
    assert videos["train", "one"].path == tmp_path / 'a, "b"' / "one.mp4"
    assert videos["train", "two"].pair == "p"


def test_marks_survive_a_reload_lead_back_and_can_be_forgotten(tab):
    tab.value("localStorage.clear()")
    tab.reload("#video=exo/001&frame=33")
    tab.click("#mark")
    tab.reload()
    assert tab.text("#mark-count") == "1 in 1 video"
    tab.value("document.getElementById('marks').open = true")
    tab.click("#mark-list a")
    assert state(tab)[:2] == (3, 33)
    assert tab.value("document.getElementById('mark-warning').hidden") is False  # one event here, two elsewhere
    tab.click("#mark-list button")
    assert tab.text("#mark-count") == "none"
    tab.value('localStorage.setItem(\'byov marks of made-up\', \'{"ego/000": "x", "ego/001": [null]}\')')
    tab.reload()
    assert tab.text("#mark-count") == "none"
    tab.value("localStorage.clear()")
    assert tab.messages() == []


@pytest.mark.parametrize("kept", [(0, 2), (0, 1), (2,)])
def test_few_videos_one_view_and_one_video(open_page, content, kept):
    parts = ("projection", "strips", "tokens", "similarity", "failures", "vectors")
    few = replace(
        content,
        videos=tuple(content.videos[index] for index in kept),
        **dict.fromkeys(parts, Unavailable("not here")),
    )
    if len(kept) > 1:
        vectors = tuple(content.vectors[0].of_video[index] for index in kept)
        few = replace(few, vectors=(replace(content.vectors[0], of_video=vectors),))
    tab = open_page(few)
    assert tab.messages() == []
    if len(kept) > 1:
        tab.press("ArrowRight")
        assert shown(tab, "query") == 3
        assert tab.text("#matrix-0-tau").startswith("tau")


def test_without_labels_frames_are_colored_by_time_and_nothing_is_judged(open_page, content):
    videos = tuple(replace(video, labels=None) for video in content.videos)
    tab = open_page(replace(content, phases=(), videos=videos))
    assert tab.value("document.getElementById('color-by').value") == "time"
    tab.press("ArrowRight")
    assert [tab.text(f"#{side}-verdict") for side in ("run-0", "clock")] == ["", ""]
    assert tab.value("document.querySelectorAll('#live-strips .plain').length") == 2
    assert tab.value("document.querySelectorAll('#matrix-0 .boundary').length") == 0
    assert tab.messages() == []


def test_where_labels_break_off_nothing_is_judged(open_page, content):
    """Of the first video only the middle phase is labeled. In the CSV, where labels break off is no event."""
    labels = tuple(label if label == 1 else UNLABELED for label in content.videos[0].labels)
    cells = ("1.000;2.000", "0.000 -;0.500 +;1.000;2.000", "1.000;2.000 -")
    listing = tuple(replace(line, events=cell) for line, cell in zip(content.listing[:3], cells, strict=True))
    videos = (replace(content.videos[0], labels=labels), *content.videos[1:])
    tab = open_page(replace(content, videos=videos, listing=listing + content.listing[3:]))
    tab.reload(f"#video={content.videos[0].name}&frame=0&with={content.videos[1].name}")
    assert [tab.text(f"#{side}-verdict") for side in ("run-0", "clock")] == ["", ""]
    lines = tab.value("[...document.querySelectorAll('#matrix-0 .boundary')].map(each => each.getAttribute('x1'))")
    assert "0" not in lines  # lines across are of the first video
    assert len(lines) == 2
    assert tab.value("document.getElementById('mark-warning').hidden") is True
    assert tab.messages() == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_sixty_videos(open_page, content, size):
    copies = [(video, copy) for copy in range(15) for video in content.videos]
    videos = tuple(replace(video, name=f"{video.name}-{copy:02d}") for video, copy in copies)
    vectors = replace(content.vectors[0], of_video=content.vectors[0].of_video * 15)
    tab = open_page(replace(content, videos=videos, vectors=(vectors,)), size=size)
    assert tab.value("document.querySelectorAll('#video-table tbody tr').length") == 60
    assert tab.value("document.querySelectorAll('#choose-other option').length") == 60
    assert tab.value("document.querySelectorAll('#live-strips .still').length") == 1 + 5
    tab.click("#video-table tbody tr:nth-child(60) th > a:last-child")
    assert state(tab)[:2] == (59, 0)
    assert tab.value("document.documentElement.scrollWidth") == size[0]
    assert tab.messages() == []
