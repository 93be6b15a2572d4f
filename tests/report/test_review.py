"""Tests of the review page in a real browser, with keyboard and mouse input."""

import csv
import json
import re
from dataclasses import replace
from operator import itemgetter
from urllib.parse import unquote

import numpy as np
import pytest
from tests.factories import write_video
from tests.report.conftest import gray_of, make_frames
from tests.report.made_up import HOSTILE, HOSTILE_ESCAPED

import byov
from byov.apply.annotate import Annotation, Event
from byov.apply.annotated_videos import AnnotatedVideo
from byov.cli.annotate import main as annotate_main
from byov.cli.extract import main as extract_main
from byov.data.dataset import WHOLE_FILE, FileSegment, Video
from byov.data.own_videos import read_labels
from byov.data.video import FrameReader
from byov.report.review import render_review, video_entries

pytestmark = pytest.mark.slow

FPS = 10
PHASES = ("start", "pour", "put down")
PHONE = (390, 844)
PIXEL = """(source => {
    const canvas = Object.assign(document.createElement('canvas'), {width: 8, height: 8});
    canvas.getContext('2d').drawImage(source, 0, 0, 8, 8);
    return canvas.getContext('2d').getImageData(1, 1, 1, 1).data[0];
})(each)"""


def annotated(
    folder, name, frames, *, start=0, events=(), problems=(), segment=WHOLE_FILE, phases=PHASES
):
    """Write a video whose left half has a gray level per frame, and annotate its frames from
    `start` on; `events` are pairs of frame and confidence.
    """
    total = frames if segment == WHOLE_FILE else int(segment.end - segment.start)
    count = total - start
    path = folder / f"{name}.mp4"
    write_video(path, make_frames(frames), options={"crf": "8", "preset": "ultrafast"}, fps=FPS)
    times = np.arange(total) / FPS
    annotation = Annotation(
        start,
        times[start:],
        np.linspace(0, 1, count) ** 2,
        np.zeros(count, np.int64),
        np.full(count, 0.8),
        phases,
        tuple(
            Event(phase, frame, frame / FPS, confidence)
            for phase, (frame, confidence) in zip(phases[1:], events, strict=False)
        ),
        tuple(problems),
    )
    video = Video(name, "ego", "train", path, segment=segment)
    return AnnotatedVideo(video, times, FPS, (annotation,), is_labeled=False)


def render(folder, videos, *, phases=PHASES, label_next=None, **changes):
    entries = [entry for video in videos for entry in video_entries(video, folder)]
    summary = {
        "run": "made-up",
        "model_sha256": str(folder),  # pages of other tests do not share marks
        "phases": phases,
        "label_next": label_next,
        "videos": [{"video": video.video.id, "occurrences": video.annotations} for video in videos],
    }
    return render_review(entries, summary | changes, len(videos))


@pytest.fixture
def open_review(open_file, tmp_path):
    def opened(videos, **options):
        page = tmp_path / "review.html"
        page.write_text(render(tmp_path, videos, **options), encoding="utf-8")
        return open_file(page)

    return opened


@pytest.fixture
def tab(open_review, tmp_path):
    """Page with a whole video and a segment."""
    return open_review(
        [
            annotated(tmp_path, "cup", 30, events=[(8, 0.3), (20, 0.6)]),
            annotated(
                tmp_path,
                'a, "b"',
                34,
                events=[(5, 0.7), (15, 0.9)],
                segment=FileSegment(4, 34, "f"),
            ),
        ],
        label_next="cup",
    )


def events(tab, video=0):
    return tab.value(f"marks[{video}].events")


def settle(tab):
    tab.settle()
    tab.value("painting.then(() => 0)")


def shown_frame(tab):
    """Return the number of the frame in the large picture."""
    settle(tab)
    (gray,) = tab.each("#tile", PIXEL)
    return round((gray - gray_of(0)) / 6)


def saved(tab):
    (address,) = tab.each("#save", "each.getAttribute('href')")
    return address and unquote(address.partition(",")[2])


def drag(tab, frames):
    """Press the mouse on a frame of the chart, move it to the others and release it."""
    tab.center("#chart")
    (box,) = tab.boxes("#chart")
    count = tab.value("videos[now.video].count")
    y = box["top"] + box["height"] / 2
    xs = [box["left"] + (frame + 0.5) * box["width"] / count for frame in frames]
    tab.mouse("mousePressed", xs[0], y)
    for x in xs[1:]:
        tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
    tab.mouse("mouseReleased", xs[-1], y)


def test_keys_move_the_selected_event_by_one_frame(tab):
    assert shown_frame(tab) == 8
    for key, frame in (("ArrowRight", 9), ("ArrowRight", 10), ("ArrowLeft", 9)):
        tab.press(key)
        assert events(tab) == [frame, 20]
        assert shown_frame(tab) == frame
    tab.press("ArrowDown")
    tab.press("ArrowLeft")
    assert events(tab) == [9, 19]
    assert shown_frame(tab) == 19
    assert tab.text("#time") == "1.90 s, frame 19"
    for _ in range(12):  # events keep their order
        tab.press("ArrowLeft")
    assert events(tab) == [9, 9]
    tab.click("#reset")
    assert events(tab) == [8, 20]
    assert saved(tab) is None
    assert tab.messages() == []


def test_clicks_move_the_selected_event_to_a_frame(tab):
    settle(tab)
    numbers = tab.each("#film .shot", "Number(each.textContent)")
    assert numbers == [5, 6, 7, 8, 9, 10, 11]
    grays = tab.each("#film canvas", PIXEL)
    assert [round((gray - gray_of(0)) / 6) for gray in grays] == numbers
    tab.click("#film .shot:nth-child(5)")
    assert events(tab) == [9, 20]
    assert shown_frame(tab) == 9
    drag(tab, [13])
    assert events(tab) == [13, 20]
    drag(tab, [20, 21, 24])  # grabs the second event
    assert events(tab) == [13, 24]
    assert shown_frame(tab) == 24
    settle(tab)
    grays = tab.each("#list li:first-child canvas", PIXEL)
    assert [round((gray - gray_of(0)) / 6) for gray in grays] == [13, 24]


def test_playing_does_not_move_the_event(tab):
    drag(tab, [20, 27])
    tab.value(
        "window.stopped = new Promise(done => new MutationObserver(() => "
        "byId('play').textContent === 'Play' && done(0)).observe(byId('play'), {childList: true})),"
        " 0"
    )
    tab.press(" ")
    tab.value("window.stopped")  # at the last frame
    assert events(tab) == [8, 27]
    assert shown_frame(tab) == 29
    tab.press("s")
    assert events(tab) == [8, 29]


def test_saved_labels_are_read_by_byov(tab, tmp_path):
    assert saved(tab) is None
    tab.press("ArrowRight")  # moved videos count as checked
    assert tab.text("#checked-count") == "1"
    tab.press("Enter")
    assert tab.text("#name") == 'a, "b"'
    tab.press("Enter")
    table = tmp_path / "labels.csv"
    table.write_text(saved(tab), encoding="utf-8")
    labels = read_labels(table, tmp_path)
    assert labels.phase_names == PHASES
    assert [video.id for video in labels.videos] == ["cup", 'a, "b"']
    assert [video.events for video in labels.videos] == [(9, 20), (5, 15)]
    assert {video.interval_unit for video in labels.videos} == {"f"}
    assert labels.videos[1].segment == FileSegment(4, 34, "f")
    # The phases of the second video, whose frames are counted from the start of its segment.
    phases = labels.videos[1].phases(np.arange(30) / FPS)
    assert phases == (0,) * 5 + (1,) * 10 + (2,) * 15


def test_frames_of_an_occurrence_count_from_its_start(open_review, tmp_path):
    tab = open_review([annotated(tmp_path, "long", 40, start=10, events=[(18, 0.3), (30, 0.6)])])
    assert events(tab) == [8, 20]
    assert shown_frame(tab) == 18
    tab.press("ArrowRight")
    table = tmp_path / "labels.csv"
    table.write_text(saved(tab), encoding="utf-8")
    (video,) = read_labels(table, tmp_path).videos
    assert video.events == (9, 20)
    reader = FrameReader(video.path, segment=video.segment)
    grays = [image[30, 10, 0] for image, _ in reader.images()]
    assert grays == pytest.approx([gray_of(frame) for frame in range(10, 40)], abs=2)


def test_only_checked_videos_are_saved_unless_all_are_included(tab):
    tab.click("#list li:nth-child(2) input")
    rows = list(csv.DictReader(saved(tab).splitlines()))
    assert [row["events"] for row in rows] == ["5f;15f"]
    tab.click("#include")
    rows = list(csv.DictReader(saved(tab).splitlines()))
    assert [row["events"] for row in rows] == ["8f;20f", "5f;15f"]
    assert tab.text("#save") == "Save CSV (2 videos)"
    assert tab.text("#checked-count") == "1"


def test_marks_survive_closing_the_page(tab):
    tab.press("ArrowRight")
    tab.reload()
    assert events(tab) == [9, 20]
    assert tab.text("#checked-count") == "1"
    tab.value("localStorage.clear()")
    tab.reload()
    assert events(tab) == [8, 20]


def test_labels_are_created_from_nothing(open_review, tmp_path):
    videos = [annotated(tmp_path, name, 30, phases=()) for name in ("one", "two")]
    tab = open_review(videos, phases=(), label_next="two")
    assert tab.text("#advice p") == "Label two\nfirst: it looks most like the training videos."
    tab.press("ArrowRight")  # shows another frame
    assert shown_frame(tab) == 1
    assert tab.each("#confirm", "each.disabled") == [True]

    def name_phases(text):
        tab.value(f"byId('phases').value = {json.dumps(text)}, byId('phases').focus()")
        tab.value("byId('phases').dispatchEvent(new Event('change')), byId('phases').blur()")

    name_phases("reach")
    assert "two phases" in tab.text("#naming-problem")
    name_phases("reach; lift, high; reach")
    assert "own name" in tab.text("#naming-problem")
    name_phases("reach; lift, high; put")
    assert tab.hidden("#naming-problem")
    assert tab.each("#events b", "each.textContent") == ["lift, high", "put"]
    tab.click("#next-link")
    drag(tab, [12])
    tab.press("Enter")  # selects the event that has no frame yet
    assert events(tab, 1) == [12, None]
    assert saved(tab) is None
    tab.press("ArrowRight")
    drag(tab, [22])
    assert events(tab, 1) == [12, 22]
    tab.click("#include")  # adds no videos without events
    table = tmp_path / "labels.csv"
    table.write_text(saved(tab), encoding="utf-8")
    labels = read_labels(table, tmp_path)
    assert labels.phase_names == ("reach", "lift, high", "put")
    assert [(video.id, video.events) for video in labels.videos] == [("two", (12, 22))]
    tab.reload()
    assert events(tab, 1) == [12, 22]
    assert tab.each("#phases", "each.value") == ["reach; lift, high; put"]
    tab.value("localStorage.clear()")
    assert tab.messages() == []


def test_hostile_names_stay_texts(open_review, tmp_path):
    phases = ("start", f"pour{HOSTILE}", "put")
    video = annotated(
        tmp_path, "cup", 12, events=[(3, 0.3), (6, 0.4)], problems=[HOSTILE], phases=phases
    )
    hostile = replace(video, video=replace(video.video, id=HOSTILE))
    idle = replace(hostile, annotations=())
    tab = open_review([hostile, idle], run=HOSTILE, phases=phases, label_next=HOSTILE)
    tab.press("ArrowRight")
    settle(tab)
    assert tab.text("#name") == HOSTILE
    assert tab.text("#problems") == HOSTILE
    assert tab.text("#next-link") == HOSTILE
    assert tab.text("#events b") == phases[1]
    assert tab.text("h1") == f"Annotations by {HOSTILE_ESCAPED}"
    assert HOSTILE.replace('"', '""') in saved(tab)
    assert tab.events("Page.javascriptDialogOpening") == []
    assert tab.value("document.scripts.length") == 2
    assert tab.each("[onerror], img", "0") == []
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    tab.emulate(PHONE)
    assert tab.value("document.documentElement.scrollWidth") <= PHONE[0]
    blocked = tab.value(
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => "
        "done(e.violatedDirective));"
        "document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'})); })"
    )
    assert blocked == "img-src"


def test_a_video_that_is_gone_has_no_pictures(open_review, tmp_path):
    video = annotated(tmp_path, "cup", 12, events=[(3, 0.3), (6, 0.4)])
    video.video.path.unlink()
    tab = open_review([video])
    assert "no pictures: cup.mp4" in tab.text("#problems")
    tab.press("ArrowRight")
    assert events(tab) == [4, 6]
    assert tab.messages() == []


def test_the_page_of_byov_annotate(project, tmp_path, monkeypatch, call, open_file):
    """Correct a video on the page, and use the saved labels for annotation and extraction."""
    monkeypatch.setenv("BYOV_RUNS", str(project.runs_dir))
    monkeypatch.setenv("BYOV_FEATURES", str(project.features_dir))
    videos = project.root / "videos"
    out = tmp_path / "out"
    annotate = (annotate_main, "byov-annotate", videos, "--json", "-o")
    ran = call(*annotate, out)
    assert ran.code == 0, ran
    assert ran.json["reviewed"] == len(ran.json["videos"])
    tab = open_file(out / "review.html")
    confidences = tab.value("videos.map(video => video.confidence)")
    assert confidences == sorted(confidences)
    assert len(confidences) == len(ran.json["videos"])
    names = {video["video"]: index for index, video in enumerate(ran.json["videos"])}
    corrected = {}
    for name in ("train_ego_0", "train_exo_0"):
        index = tab.value(f"videos.findIndex(video => video.name === '{name}')")
        assert names[name] >= 0
        tab.value(f"select({index})")
        tab.press("ArrowLeft")
        corrected[name] = tuple(events(tab, index))
    table = videos / "labels.csv"
    table.write_text(saved(tab), encoding="utf-8")
    again = call(*annotate, tmp_path / "again", "--labels", table, "--no-review")
    assert again.code == 0, again
    assert not (tmp_path / "again" / "review.html").exists()
    for video in again.json["videos"]:
        if video["video"] in corrected:
            (occurrence,) = video["occurrences"]
            frames = tuple(event["frame"] for event in occurrence["events"])
            assert (video["confidence"], frames) == (1, corrected[video["video"]])
    ran = call(
        *(extract_main, "byov-extract", "--manifest", table, "--encoder", "random/tiny"),
        *("--features-dir", tmp_path / "features", "--json"),
    )
    assert (ran.code, ran.json["extracted_videos"]) == (0, 2), ran


def test_the_page_is_limited_to_the_least_confident_videos(project, tmp_path):
    run = byov.load_run("first", runs_dir=project.runs_dir, features_dir=project.features_dir)
    videos = byov.list_videos([project.root / "videos"])
    annotated = byov.AnnotatedVideos(run, videos, tmp_path / "cache")
    summary = byov.write_annotations(annotated, tmp_path / "frames.csv")
    by_confidence = sorted(summary["videos"], key=itemgetter("confidence"))
    names = [video["video"] for video in by_confidence]
    summary["label_next"] = names[-1]
    page = tmp_path / "review.html"
    assert byov.write_review(annotated, summary, page, max_videos=3) == 3
    text = page.read_text()
    assert f"3 of {len(videos)} videos" in text
    (data,) = re.findall(r'id="data"[^>]*>(.*?)</script>', text)
    shown = [entry["video"] for entry in json.loads(data)["videos"]]
    assert shown == [*names[:2], names[-1]]
    assert byov.write_review(annotated, summary, page, max_mb=0) == 1
