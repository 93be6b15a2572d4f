"""The frames of a report: the right ones, from the right file, and what is said when they cannot be had."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from byov.cache.features import FeatureWriter, read_header
from byov.cache.hdf5 import read_array
from byov.report import sheets
from byov.report.content import Sheet, Unavailable
from byov.report.gallery import Gallery
from byov.report.sheets import Tiles, make_sheets, read_tiles, sheet_of
from byov.report.tokens import choose_token_videos, darkened, selected_patches, token_clips
from byov.report.video_files import VideoFiles


def tile(sheet, frame):
    """The pixels of one frame, (height, width, 3), from the JPEG."""
    row, column = divmod(sheet.frames.index(frame), sheet.columns)
    picture = np.asarray(Image.open(io.BytesIO(sheet.rows[row])))
    assert picture.shape[:2] == (sheet.tile_height, sheet.columns * sheet.tile_width)
    return picture[:, column * sheet.tile_width : (column + 1) * sheet.tile_width].astype(int)


@pytest.fixture
def rewrite_order():
    """Give every frame of a feature file these tokens as its order; all else stays."""

    def rewrite(path, tokens_of_frame):
        header = read_header(path)
        merged = {float(ratio): read_array(path, f"merged/{ratio}") for ratio in header.ratios}
        order = np.tile(np.array(tokens_of_frame, np.uint16), (header.frames, 1))
        cls = read_array(path, "cls")
        writer = FeatureWriter(path, list(merged), order.shape[1], cls.shape[1], has_cls=True)
        writer.append(merged, order, cls, read_array(path, "pts_seconds"))
        writer.finish(header.provenance, fps=header.fps, truncated=False)

    return rewrite


@pytest.fixture
def find(project):
    """find(id, view, folder=None): where the file of a video is found."""

    def locate(video_id, view="ego", folder=None):
        header = read_header(project.features(view, video_id))
        return VideoFiles(project.features_dir / "tea", folder).find(video_id, header.provenance)

    return locate


def test_each_tile_shows_its_frame(content, gray):
    for video in content.videos:
        assert (video.sheet.tile_width, video.sheet.tile_height) == (96, 64)
        for frame in video.sheet.frames:
            left_half = tile(video.sheet, frame)[8:-8, 8:40]
            assert np.abs(left_half - gray(frame)).max() <= 5, (video.name, frame)


def test_each_sheet_shows_its_own_video_in_its_own_colors(content, whole_project):
    ids = [line.split(",")[3] for line in (whole_project.root / "videos" / "tea.csv").read_text().splitlines()[1:]]
    for video in content.videos:
        color = np.random.default_rng(ids.index(video.name.split("/")[1])).integers(40, 200, 3)
        shown = tile(video.sheet, video.sheet.frames[-1])[8:-8, 56:64].mean(axis=(0, 1))
        np.testing.assert_allclose(shown, color, atol=6)


def test_sheets_hold_all_that_the_parts_refer_to(content):
    wanted = [strip.query for strip in content.strips] + [ref for strip in content.strips for ref in strip.retrieved]
    wanted += [*content.projection.frames, content.failures.reference]
    for ref in wanted:
        assert ref.frame in content.videos[ref.video].sheet.frames
    for part in (*content.failures.worst, *content.tokens):
        assert set(part.frames) <= set(content.videos[part.video].sheet.frames)
    for worst in content.failures.worst:
        assert set(worst.matched) <= set(content.videos[worst.partner].sheet.frames)


def test_large_frames_are_made_small_and_keep_their_shape(tmp_path, write_video, gray):
    path = write_video(tmp_path / "wide.mp4", 5, width=400, height=202)
    tiles = sheets._decode(sheets._Wanted(path, (1, 4), truncated=False, area=200 * 101))
    assert tiles.pixels.shape == (2, 101, 200, 3)
    for pixels, frame in zip(tiles.pixels, (1, 4), strict=True):
        assert np.abs(pixels[8:-8, 8:80].astype(int) - gray(frame)).max() <= 4


def test_a_sheet_of_more_than_one_row_is_read_row_by_row():
    grays = np.arange(23) * 10
    pixels = np.broadcast_to(grays[:, None, None, None], (23, 16, 24, 3)).astype(np.uint8)
    sheet = sheet_of(Tiles(tuple(range(5, 28)), pixels))
    assert (sheet.columns, len(sheet.rows)) == (8, 3)
    for frame in sheet.frames:
        assert abs(tile(sheet, frame).mean() - grays[frame - 5]) < 2


def test_pictures_are_made_as_small_as_the_page_has_room_for():
    noise = np.random.default_rng(0).integers(0, 255, (4, 60, 80, 3), np.uint8)
    tiles = [Tiles((0, 1, 2, 3), noise), Unavailable("gone"), Tiles((5, 6, 7, 8), noise)]
    whole = make_sheets(tiles, 10**9)
    assert (whole[0].tile_width, whole[0].tile_height) == (80, 60)
    assert whole[1] == Unavailable("gone")
    taken = sum(len(row) for sheet in (whole[0], whole[2]) for row in sheet.rows)
    smaller = make_sheets(tiles, taken // 3)
    assert sum(len(row) for sheet in (smaller[0], smaller[2]) for row in sheet.rows) <= taken // 3
    assert smaller[0].tile_width == smaller[2].tile_width < 70
    assert smaller[0].tile_width / smaller[0].tile_height == pytest.approx(80 / 60, rel=0.05)


def test_tokens_are_dark_where_the_ratio_excludes_them(content, whole_project):
    for clip in content.tokens:
        video = content.videos[clip.video]
        order = read_array(whole_project.features(*video.name.split("/")), "order")
        assert clip.ratios == (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
        assert clip.pictures.shape == (6, len(clip.frames), 64, 96, 3)
        whole = clip.pictures[-1].astype(float)
        for ratio, pictures in zip(clip.ratios, clip.pictures.astype(float), strict=True):
            for frame, picture, full in zip(clip.frames, pictures, whole, strict=True):
                kept = order[frame][: max(1, round(64 * ratio))]
                for token in range(64):
                    rows, columns = (
                        np.s_[token // 8 * 8 : token // 8 * 8 + 8],
                        np.s_[token % 8 * 12 : token % 8 * 12 + 12],
                    )
                    expected = full if token in kept else (full * 0.15).round()
                    np.testing.assert_array_equal(picture[rows, columns], expected[rows, columns])


def test_tokens_at_ratio_one_are_the_frames_themselves(content, gray):
    for clip in content.tokens:
        for frame, picture in zip(clip.frames, clip.pictures[-1].astype(int), strict=True):
            assert np.abs(picture[8:-8, 8:40] - gray(frame)).max() <= 4


def test_what_was_cropped_away_is_dark_at_every_ratio():
    pixels = np.full((40, 80, 3), 200, np.uint8)
    bright = darkened(pixels, np.ones((4, 4), bool), cropped=True)[..., 0] == 200
    assert bright[:, 20:60].all()
    assert not bright[:, :20].any()
    assert not bright[:, 60:].any()
    one = selected_patches(np.array([6, *range(6), *range(7, 16)], np.uint16), 0.01)  # second row, third column
    bright = darkened(pixels, one, cropped=True)[..., 0] == 200
    assert bright[10:20, 40:50].all()
    assert bright.sum() == 100
    tall = darkened(pixels.transpose(1, 0, 2), np.ones((4, 4), bool), cropped=True)[..., 0] == 200
    assert tall[20:60].all()
    assert tall.sum() == 1600


@pytest.mark.parametrize(
    ("tokens_of_frame", "said"),
    [(range(7), "7 tokens a frame are not a square of patches"), ((0, 1, 2, 4), "token 4 of 4; extract it again")],
)
def test_tokens_that_make_no_grid_are_a_reason(project, rewrite_order, tokens_of_frame, said):
    material = project.material()
    gallery = Gallery(len(material))
    chosen = choose_token_videos(material, gallery)
    for video in chosen:
        rewrite_order(material.feature_file(video), tokens_of_frame)
    for video in range(len(material)):
        gallery.show(video, (0,))
    tiles = read_tiles(material, gallery, VideoFiles(project.features_dir / "tea"), 10**6)
    assert said in token_clips(material, chosen, tiles).reason


def test_a_video_is_found_where_it_was(find, project):
    assert find("test_ego_1") == project.video("test_ego_1")


def test_a_video_that_is_gone_is_looked_for_in_the_folder_that_is_named(find, project, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    moved = project.video("test_ego_1").rename(elsewhere / "test_ego_1.mp4")
    gone = find("test_ego_1")
    assert gone.reason.startswith("test_ego_1.mp4 is no longer where it was")
    assert "--videos FOLDER" in gone.reason
    assert find("test_ego_1", folder=tmp_path / "elsewhere") == moved
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find("test_ego_1", folder=empty).reason == "test_ego_1.mp4 is not in the folder that --videos names"


def test_of_two_files_of_one_name_the_right_one_is_taken(find, project, tmp_path):
    for name, source in (("a", "test_ego_1"), ("b", "still")):
        (tmp_path / "two" / name).mkdir(parents=True)
        shutil.copy(project.video(source), tmp_path / "two" / name / "still.mp4")
    assert find("still", folder=tmp_path / "two") == tmp_path / "two" / "b" / "still.mp4"


def test_a_video_that_has_changed_is_not_shown(find, project):
    path = project.video("test_ego_1")
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # of the same size
    path.write_bytes(content)
    assert "has changed since it was extracted" in find("test_ego_1").reason


@pytest.mark.parametrize("text", ["{", '{"test_ego_1": "../../nowhere.mp4"}', '{"test_ego_1": "."}', "{}"])
def test_a_list_of_places_that_is_damaged_or_wrong_is_a_reason_and_no_error(find, project, text):
    (project.features_dir / "tea" / "sources.json").write_text(text)
    assert "--videos FOLDER" in find("test_ego_1").reason
    assert find("test_ego_1", folder=project.root / "videos") == project.video("test_ego_1")


def test_one_unreadable_video_costs_only_its_own_frames(project):
    material = project.material()
    gallery = Gallery(len(material))
    for video in range(len(material)):
        gallery.show(video, (0,))
    project.video("test_ego_1").unlink()
    tiles = read_tiles(material, gallery, VideoFiles(project.features_dir / "tea"), 10**6)
    blind = [material.segments[video].name for video, one in enumerate(tiles) if isinstance(one, Unavailable)]
    assert blind == ["ego/test_ego_1"]


def test_a_file_that_does_not_decode_or_ends_early_is_a_reason(tmp_path, write_video):
    (tmp_path / "text.mp4").write_text("no video")
    assert sheets._decode(
        sheets._Wanted(tmp_path / "text.mp4", (0,), truncated=False, area=sheets.AREA)
    ).reason.startswith("text.mp4: ")
    short = write_video(tmp_path / "short.mp4", 3)
    assert sheets._decode(sheets._Wanted(short, (0, 3), truncated=False, area=sheets.AREA)) == Unavailable(
        "short.mp4: 3 frames decoded, frame 3 is wanted"
    )


def test_without_any_video_all_but_the_pictures_is_shown(project):
    shutil.rmtree(project.root / "videos")
    content = project.collect()
    reason = content.strips.reason
    assert "is no longer where it was" in reason
    assert str(project.root) not in repr(content)
    assert isinstance(content.tokens, Unavailable)
    assert not any(isinstance(video.sheet, Sheet) for video in content.videos)
    shown = (content.tables, content.curves, content.projection, content.vectors, content.similarity, content.failures)
    assert not any(isinstance(part, Unavailable) for part in shown)


def test_features_other_than_those_that_were_embedded_are_not_mixed_in(project):
    shutil.copy(project.features("ego", "test_ego_1"), project.features("ego", "cup & 'saucer' [1]"))
    content = project.collect()
    assert "not the features that first has embedded" in content.projection.reason
    assert content.projection.reason.startswith("features/tea/random--tiny/ego/cup & 'saucer' [1].h5: ")
    blind = [video.name for video in content.videos if isinstance(video.sheet, Unavailable)]
    assert blind == ["ego/cup & 'saucer' [1]"]
    assert [content.videos[clip.video].view for clip in content.tokens] == ["exo"]
    assert len(content.strips) == 5  # all but the one that it is the query of
