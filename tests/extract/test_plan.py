"""Tests of which files a repeated extraction reads, and of the manifest that it writes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.factories import moving_images, read_files, write_noise_video, write_video

from byov.cache.features import video_header
from byov.cache.hdf5 import read_array
from byov.cache.manifest import load_index, load_manifest
from byov.data.own_videos import read_own_videos
from byov.extract import cached_files
from byov.extract.cached_files import update_manifest
from byov.extract.encoder_names import parse_encoder
from byov.extract.plan import ExtractionOptions, make_plan
from byov.report.pictures import SourceVideos
from byov.report.provenance import manifest_rows

TINY = ("--encoder", "random/tiny")


@pytest.fixture
def read(monkeypatch):
    """List of the files that a plan reads, in order, as (file name, function that reads it)."""
    files = []

    def watch(name):
        function = getattr(cached_files, name)

        def note(*arguments):
            files.append((Path(arguments[-1]).name, name))
            return function(*arguments)

        monkeypatch.setattr(cached_files, name, note)

    for name in ("fingerprint", "file_sha256", "cached_header"):
        watch(name)
    return files


@pytest.fixture
def table(byov_extract, make_dataset):
    """CSV of two cached videos with 3 and 4 frames."""
    table = make_dataset([3, 4])
    assert byov_extract("--manifest", table, *TINY).code == 0
    return table


@pytest.fixture
def again(byov_extract, table, read):
    """Return a function that extracts the two cached videos again."""
    read.clear()
    return lambda *options: byov_extract("--manifest", table, *TINY, *options)


@pytest.fixture
def source(tmp_path):
    return tmp_path / "videos" / "v1.mp4"


@pytest.fixture
def feature_file(tmp_path):
    return tmp_path / "features" / "mine" / "random--tiny" / "exo" / "v1.h5"


def opened(read):
    return [f"{name}.h5" for name, what in read if what == "cached_header"]


def test_nothing_to_do_opens_and_writes_no_file(again, read, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert "2 already cached" in again().out
    assert opened(read) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_touched_feature_file_is_opened_by_one_extraction(again, read, feature_file, tmp_path):
    os.utime(feature_file)
    written = read_files(tmp_path / "features")
    for expected in ({"v1.h5"}, set()):
        assert "2 already cached" in again().out
        assert set(opened(read)) == expected
        read.clear()
    assert read_files(tmp_path / "features") == written


def test_damaged_feature_file_is_extracted_again(again, feature_file, tmp_path):
    written = read_files(tmp_path / "features")
    feature_file.write_bytes(feature_file.read_bytes()[:-5000])
    assert again("--json").json["extracted_videos"] == 1
    assert read_files(tmp_path / "features") == written


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(b"{", b"", {"v0.h5", "v1.h5"}), (b'"frames": 4', b'"frames": 5', {"v1.h5"})],
)
def test_files_without_a_usable_index_are_opened_once(again, read, tmp_path, old, new, expected):
    index = tmp_path / "features" / "mine" / "index.json"
    good = index.read_bytes()
    assert old in good
    index.write_bytes(good.replace(old, new))
    assert "2 already cached" in again().out
    assert set(opened(read)) == expected
    assert index.read_bytes() == good


def test_touched_source_is_read_completely_and_once(again, read, source):
    os.utime(source)
    for expected in ({("v1.mp4", "file_sha256")}, set()):
        assert "2 already cached" in again().out
        assert {file for file in read if file[0].endswith(".mp4")} == expected
        read.clear()


def change_byte(path):
    """Change a byte in place and restore the modification time."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(times.st_size // 2)
        byte = file.read(1)[0]
        file.seek(times.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_changed_copy(path):
    other = path.with_name("other")
    shutil.copy2(path, other)
    change_byte(other)
    other.replace(path)


@pytest.mark.parametrize("change", [change_byte, replace_by_changed_copy])
def test_changed_source_is_noticed_despite_equal_size_and_modification_time(again, source, change):
    before = source.stat()
    change(source)
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (
        before.st_size,
        before.st_mtime_ns,
    )
    for _ in range(2):
        ran = again()
        assert ran.code == 2
        assert f"{source} has changed to" in ran.err


# --- the manifest after an extraction


@pytest.fixture
def features(tmp_path):
    return tmp_path / "features"


@pytest.fixture
def plan(table, features):
    videos = read_own_videos("mine", table)
    encoder = parse_encoder("random/tiny")
    plan = make_plan(videos, features, encoder, ExtractionOptions((0.3,)))
    assert plan.count() == {"cached": 2}
    return plan


def frames(features):
    return [video.frames for video in load_manifest(features / "mine" / "manifest.json").videos]


@pytest.mark.parametrize("change", ["swapped", "deleted"])
def test_file_that_cannot_be_used_keeps_its_entry(plan, features, change):
    plan.jobs[0].path.unlink()
    if change == "swapped":
        shutil.copyfile(plan.jobs[1].path, plan.jobs[0].path)
    update_manifest(plan.folder, plan.dataset, set(), {})
    assert frames(features) == [3, 4]
    assert list(load_index(features / "mine").files["random--tiny"]) == ["v1"]


# --- segments


def test_segments_of_one_file(byov_extract, tmp_path):
    write_noise_video(tmp_path / "videos/long.mp4", 60, seed=3)
    table = tmp_path / "videos/mine.csv"
    head = "path,view,split,id,start,end,events\n"
    rows = [
        "long.mp4,ego,train,a,,20f,3f",
        "long.mp4,exo,train,b,20f,40f,3f",
        "long.mp4,exo,val,c,2,4,0.2",
    ]
    table.write_text(head + "\n".join(rows))
    assert byov_extract("--manifest", table, *TINY).code == 0
    manifest = load_manifest(tmp_path / "features/mine/manifest.json")
    assert [(video.id, video.frames) for video in manifest.videos] == [
        ("a", 20),
        ("b", 20),
        ("c", 30),
    ]
    assert manifest.videos[1].labels == manifest.videos[2].labels[:20] == (0,) * 3 + (1,) * 17
    headers = [
        video_header(tmp_path / "features/mine/random--tiny", video) for video in manifest.videos
    ]
    assert [header.provenance.source_name for header in headers] == [
        "long.mp4#f=0,20",
        "long.mp4#f=20,40",
        "long.mp4#t=2,4",
    ]
    assert len({header.provenance.source_sha256 for header in headers}) == 3
    assert load_index(tmp_path / "features/mine").segments == {
        "a": "#f=0,20",
        "b": "#f=20,40",
        "c": "#t=2,4",
    }
    sources = SourceVideos(tmp_path / "features/mine")
    assert sources.find("b", headers[1].provenance) == tmp_path / "videos/long.mp4"
    listed = manifest_rows(manifest, tmp_path / "features/mine")
    assert [(row["start"], row["end"]) for row in listed[1:]] == [("20f", "40f"), ("2", "4")]
    for options in ((), ("--verify-sources",), ("--check",)):
        again = byov_extract("--manifest", table, *TINY, *options, "--json")
        assert (again.code, again.json.get("extracted_videos", 0)) == (0, 0), again
    table.write_text(head + "\n".join([rows[0], "long.mp4,exo,train,b,21f,40f,3f", rows[2]]))
    again = byov_extract("--manifest", table, *TINY, "--json")
    assert (again.code, again.json["extracted_videos"]) == (0, 1)
    assert "its start or end has changed" in again.err
    table.write_text(
        head
        + "\n".join([rows[0], "long.mp4,exo,train,b,21f,40f,30f", "long.mp4,exo,val,c,2,9,0.2"])
    )
    problems = [
        video["problem"]
        for video in byov_extract("--manifest", table, *TINY, "--check", "--json").json["videos"]
    ]
    assert problems[0] == ""
    assert "long.mp4#f=21,40: events at 30 f are after its last frame (18 f)" in problems[1]
    assert "but the segment ends at 9 s" in problems[2]


def test_features_of_a_segment_are_those_of_its_frames_alone(byov_extract, tmp_path):
    images = moving_images(30)
    lossless = {"codec": "qtrle", "pix_fmt": "rgb24"}
    write_video(tmp_path / "long.mov", images, **lossless)
    write_video(tmp_path / "short.mov", images[12:25], **lossless)
    (tmp_path / "mine.csv").write_text(
        "path,view,split,start,end\nlong.mov,ego,train,12f,25f\nshort.mov,exo,train,,\n"
    )
    assert byov_extract("--manifest", tmp_path / "mine.csv", *TINY).code == 0
    folder = tmp_path / "features/mine/random--tiny"
    for column in ("merged/0.3", "cls", "order", "pts_seconds"):
        np.testing.assert_array_equal(
            read_array(folder / "ego/long.h5", column), read_array(folder / "exo/short.h5", column)
        )
