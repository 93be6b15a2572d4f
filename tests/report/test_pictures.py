"""Tests of clips and stills: the right frames from the right files, or the reason why there are
none.
"""

import io
import shutil

import av
import numpy as np
import pytest
from PIL import Image
from tests.factories import write_features, write_video
from tests.report.conftest import VIDEOS, gray_of, hue_of, make_frames

from byov.cache.features import FeatureWriter, read_header
from byov.cache.hdf5 import read_array
from byov.data.dataset import FileSegment
from byov.errors import CacheError, StaleError
from byov.report.collect import attempt
from byov.report.pictures import (
    SourceVideos,
    darken_excluded,
    encode_video,
    read_frames,
    token_selection,
)


def decode(clip):
    """Decode the frames of a clip, with their times."""
    with av.open(io.BytesIO(clip.mp4)) as container:
        frames = list(container.decode(video=0))
    assert all(frame.key_frame for frame in frames[::8]), "seeking needs frequent keyframes"
    return [(frame.time, frame.to_ndarray(format="rgb24").astype(int)) for frame in frames]


def test_clips_and_stills_show_the_frames_of_their_video(collected):
    seeds = {f"{view}/{video_id}": seed for seed, (video_id, view, _, _) in enumerate(VIDEOS)}
    for video in collected.videos:
        decoded = decode(video.clip)
        assert (video.clip.stride, len(decoded)) == (1, video.frames)
        assert [time for time, _ in decoded] == pytest.approx(np.arange(video.frames) / 25)
        assert video.middle in video.pictures
        stills = [
            (frame, np.asarray(Image.open(io.BytesIO(jpeg))).astype(int))
            for frame, jpeg in video.pictures.items()
        ]
        for frame, pixels in [*enumerate(pixels for _, pixels in decoded), *stills]:
            assert pixels.shape == (64, 96, 3)
            assert np.abs(pixels[8:-8, 8:40] - gray_of(frame)).max() <= 5, (video.name, frame)
            np.testing.assert_allclose(
                pixels[8:-8, 56:64].mean(axis=(0, 1)), hue_of(seeds[video.name]), atol=6
            )


def test_all_frames_that_the_parts_refer_to_have_pictures(collected):
    refs = [ref for strip in collected.strips for ref in strip]
    refs += [collected.failures.reference] * (collected.failures.similarity is None)
    refs += [ref for worst in collected.failures.worst for pair in worst.pairs for ref in pair]
    refs += [(tokens.video, frame) for tokens in collected.tokens for frame in tokens.frames]
    assert all(frame in collected.videos[video].pictures for video, frame in refs)


def test_frames_of_a_segment_are_counted_from_its_start(tmp_path):
    path = write_video(tmp_path / "long.mp4", 20, options={"g": "4"})
    pixels = np.stack([*read_frames(path, (1, 3), segment=FileSegment(14, 19, "f"))])
    np.testing.assert_allclose(pixels.mean((1, 2, 3)), [20 + 10 * 15, 20 + 10 * 17], atol=2)


def test_large_frames_are_scaled_down(tmp_path):
    path = write_video(
        tmp_path / "wide.mp4", make_frames(5, width=400, height=202), options={"crf": "8"}
    )
    frames = np.stack([*read_frames(path, (1, 4), area=200 * 101)])
    assert frames.shape == (2, 100, 200, 3), "H.264 requires even sizes"
    for pixels, frame in zip(frames, (1, 4), strict=True):
        assert np.abs(pixels[8:-8, 8:80].astype(int) - gray_of(frame)).max() <= 4


def test_clips_fit_their_budget_and_have_every_nth_frame():
    random = np.random.default_rng(0)
    noise = random.integers(0, 255, (100, 60, 80, 3), np.uint8)
    whole, stills = encode_video(enumerate(noise), 1, {3, 50}, 10**5)
    assert len(whole.mp4) > 3 * 500 * len(noise)
    np.testing.assert_array_equal([stills[3], stills[50]], noise[[3, 50]])
    small, _ = encode_video(enumerate(noise), 1, (), 500)
    assert len(small.mp4) < 1.4 * 500 * len(noise)
    gray = [np.full((16, 16, 3), 60 + 5 * frame, np.uint8) for frame in range(20)]
    every, _ = encode_video(enumerate(gray), 3, (), 10**5)
    assert every.stride == 3
    shown = [pixels.mean() for _, pixels in decode(every)]
    assert shown == pytest.approx([60 + 5 * frame for frame in range(0, 20, 3)], abs=3)


def test_tokens_are_dark_where_the_ratio_excludes_them(collected, shared_project):
    for selection in collected.tokens:
        video = collected.videos[selection.video]
        order = read_array(shared_project.features(*video.name.split("/")), "order")
        assert selection.ratios == (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
        assert selection.pictures.shape == (6, len(selection.frames), 64, 96, 3)
        whole = selection.pictures[-1].astype(float)
        for frame, full in zip(selection.frames, whole, strict=True):
            assert np.abs(full[8:-8, 8:40] - gray_of(frame)).max() <= 4
        for ratio, pictures in zip(selection.ratios, selection.pictures.astype(float), strict=True):
            for frame, picture, full in zip(selection.frames, pictures, whole, strict=True):
                kept = order[frame][: max(1, round(64 * ratio))]
                for token in range(64):
                    top = token // 8 * 8
                    left = token % 8 * 12
                    patch = np.s_[top : top + 8, left : left + 12]
                    expected = full[patch] if token in kept else (full[patch] * 0.15).round()
                    np.testing.assert_array_equal(picture[patch], expected)


@pytest.mark.parametrize("tokens_of_frame", [range(7), (0, 1, 2, 4)])
def test_tokens_without_a_grid(project, tokens_of_frame):
    data = project.read_split()
    path = project.features("ego", "test_ego_1")
    header = read_header(path)
    rows = {name: read_array(path, name) for name in header.columns}
    rows["order"] = np.tile(np.array(tokens_of_frame, np.uint16), (header.frames, 1))
    writer = FeatureWriter(path)
    writer.append(rows)
    writer.finish_video(header.provenance, fps=header.fps, truncated=False)
    video = [segment.name for segment in data.segments].index("ego/test_ego_1")
    pixels = {0: np.zeros((4, 4, 3), np.uint8)}
    assert "do not form a square grid" in attempt(token_selection, data, video, pixels).reason


@pytest.fixture
def find(project):
    """Find the source file of an ego video."""

    def locate(video_id, folder=None):
        header = read_header(project.features("ego", video_id))
        return SourceVideos(project.features_dir / "tea", folder).find(video_id, header.provenance)

    return locate


def test_a_moved_video_is_found_in_the_given_folder(find, project, tmp_path):
    assert find("test_ego_1") == project.video("test_ego_1")
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    moved = project.video("test_ego_1").rename(elsewhere / "test_ego_1.mp4")
    with pytest.raises(CacheError, match="--videos"):
        find("test_ego_1")
    assert find("test_ego_1", tmp_path / "elsewhere") == moved


def test_files_with_the_same_name_are_told_apart(find, project, tmp_path):
    for name, source in (("a", "test_ego_1"), ("b", "still")):
        (tmp_path / "two" / name).mkdir(parents=True)
        shutil.copy(project.video(source), tmp_path / "two" / name / "still.mp4")
    assert find("still", tmp_path / "two") == tmp_path / "two" / "b" / "still.mp4"


def test_a_changed_video_is_not_shown(find, project):
    path = project.video("test_ego_1")
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheError, match="has changed"):
        find("test_ego_1")


@pytest.mark.parametrize("text", ["{", "{}", None])
def test_a_damaged_or_missing_index(find, project, text):
    index = project.features_dir / "tea" / "index.json"
    index.unlink() if text is None else index.write_text(text)
    with pytest.raises(CacheError, match="--videos"):
        find("test_ego_1")
    assert find("test_ego_1", project.root / "videos") == project.video("test_ego_1")


def test_files_that_do_not_decode(tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    short = write_video(tmp_path / "short.mp4", make_frames(3))
    with pytest.raises(CacheError, match=r"^text\.mp4"):
        next(read_frames(tmp_path / "text.mp4", (0,)))
    with pytest.raises(CacheError, match=r"short\.mp4 has 3 frames"):
        list(read_frames(short, (0, 3)))


def test_features_that_the_run_did_not_embed_are_refused(project):
    path = project.features("ego", "test_ego_1")
    merged = {
        float(ratio): read_array(path, f"merged/{ratio}")[::-1]
        for ratio in read_header(path).ratios
    }
    write_features(path, merged, source_sha256=read_header(path).provenance.source_sha256)
    with pytest.raises(StaleError, match="byov-train --run first --embed-only"):
        project.collect()
    shutil.copy(project.features("ego", "still"), path)
    with pytest.raises(CacheError, match="run byov-extract again"):
        project.collect()


def test_cropped_borders_are_dark_at_every_ratio():
    pixels = np.full((40, 80, 3), 200, np.uint8)
    order = np.array([6, *range(6), *range(7, 16)], np.uint16)
    bright = darken_excluded(pixels, order, 1.0, cropped=True)[..., 0] == 200
    assert bright[:, 20:60].all()
    assert bright.sum() == 1600
    bright = darken_excluded(pixels, order, 0.01, cropped=True)[..., 0] == 200
    assert bright[10:20, 40:50].all(), "token 6: second row, third column"
    assert bright.sum() == 100
    tall = darken_excluded(pixels.transpose(1, 0, 2), order, 1.0, cropped=True)[..., 0] == 200
    assert tall[20:60].all()
    assert tall.sum() == 1600
