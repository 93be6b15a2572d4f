"""Where the videos were: found again after a move of the whole, and never trusted to be paths of ours."""

import os

import pytest

from byov.cache.manifest import SOURCES_NAME, read_sources, write_sources
from byov.errors import CacheError


@pytest.fixture
def project(tmp_path):
    """A project with a video and a dataset's folder in the cache."""
    video = tmp_path / "project" / "videos" / "Küche 1.mp4"
    video.parent.mkdir(parents=True)
    video.touch()
    folder = tmp_path / "project" / "features" / "tea"
    folder.mkdir(parents=True)
    write_sources(folder, {"Küche 1": video})
    return tmp_path / "project"


def test_videos_are_found_again(project):
    assert read_sources(project / "features" / "tea") == {"Küche 1": project / "videos" / "Küche 1.mp4"}


def test_a_project_that_is_moved_as_a_whole_still_finds_them(project, tmp_path):
    project.rename(tmp_path / "elsewhere")
    (place,) = read_sources(tmp_path / "elsewhere" / "features" / "tea").values()
    assert place == tmp_path / "elsewhere" / "videos" / "Küche 1.mp4"
    assert str(tmp_path) not in (tmp_path / "elsewhere" / "features" / "tea" / SOURCES_NAME).read_text()


def test_folders_behind_links_are_found_through_them(project, tmp_path):
    disk = tmp_path / "big" / "disk"
    disk.mkdir(parents=True)
    (project / "features" / "milk").symlink_to(disk)
    write_sources(project / "features" / "milk", {"a": project / "videos" / "Küche 1.mp4"})
    assert read_sources(project / "features" / "milk")["a"].is_file()
    assert read_sources(disk)["a"].is_file()


def test_a_path_that_is_no_text_is_found_again(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_sources(tmp_path, {"a": folder / "a.mp4"})
    assert read_sources(tmp_path) == {"a": folder / "a.mp4"}


def test_a_cache_that_came_without_its_videos_has_none(tmp_path):
    assert read_sources(tmp_path) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"a": "x\\u0000y"}', "[" * 100_000])
def test_what_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / SOURCES_NAME).write_text(content)
    with pytest.raises(CacheError, match=r"sources\.json: not readable .*run byov-extract again"):
        read_sources(tmp_path)
