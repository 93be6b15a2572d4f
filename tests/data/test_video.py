import os
from pathlib import Path

import av
import numpy as np
import pytest
from tests.factories import gray_images, moving_images, write_file, write_video

from byov.data import video
from byov.data.dataset import FileSegment
from byov.data.video import DecodingPolicy, FrameReader, estimated_frames, probe
from byov.errors import VideoError

KEEP_TRUNCATED = DecodingPolicy(on_truncated="keep")
B_FRAMES = {"bf": "3", "g": "100", "x264-params": "b-adapt=0:scenecut=0:b-pyramid=normal"}
FINE = {"flags": "+qscale", "global_quality": "118"}
CLIPS = Path(__file__).parents[3] / "shared" / "clips"
CLIP_FRAMES = {
    "decord_flipping_a_pancake.mkv": 310,
    "intel_asl_eat.mkv": 47,
    "intel_asl_milk.mkv": 51,
    "intel_bottle-detection.mp4": 1189,
    "tv_RATRACE_wave_f_nm_np1_fr_goo_37.avi": 72,
    "tv_v_SoccerJuggling_g23_c01.avi": 240,
}


def gray_indices(images):
    """Return the index of each image in `gray_images`."""
    return [round((float(image.mean()) - 20) / 10) for image in images]


def decode_video(path, **settings):
    """Return all frames of a video and their times."""
    blocks = list(FrameReader(path, **settings).blocks())
    times = [block.pts_seconds for block in blocks]
    return [image for block in blocks for image in block.pixels], np.concatenate(times)


def count_frames(path, **settings):
    return len(decode_video(path, **settings)[0])


def error_of(path, **settings):
    with pytest.raises(VideoError) as error:
        list(FrameReader(path, **settings).blocks())
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


def erase_packet(path, index, keep):
    """Overwrite a packet with zeros, leaving the leading fraction `keep` of its bytes intact."""
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][index]
        start = packet.pos + int(keep * packet.size)
        end = packet.pos + packet.size
    content = bytearray(path.read_bytes())
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


# --- frames, order, times


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", B_FRAMES),
        ("a.mkv", "libx264", B_FRAMES),
        ("a.avi", "libx264", B_FRAMES),
        ("a.ts", "libx264", B_FRAMES),
        ("a.h264", "libx264", B_FRAMES),
        ("a.avi", "mpeg4", {}),
        ("b.avi", "mpeg4", {"bf": "2", **FINE}),
        ("a.m1v", "mpeg1video", {"bf": "2", **FINE}),
        ("a.mpg", "mpeg1video", {"bf": "2", **FINE}),
        ("a.webm", "libvpx", {}),
        ("a.flv", "libx264", B_FRAMES),
        ("a.mov", "mjpeg", {}),
    ],
)
def test_all_frames_in_order_with_their_times(name, codec, options, threads, tmp_path):
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = write_video(tmp_path / name, 20, codec=codec, options=options, pix_fmt=pix_fmt, fps=25)
    images, times = decode_video(path, threads=threads)
    assert gray_indices(images) == list(range(20))
    # Some containers round to milliseconds.
    assert times == pytest.approx(np.arange(20) / 25, abs=0.0011)
    assert times[0] == 0
    seen = probe(path)
    assert (seen.frames, seen.width, seen.height, seen.truncation) == (20, 64, 48, "")
    assert seen.fps == pytest.approx(25)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("options", [{"bf": "0"}, B_FRAMES], ids=["no B-frames", "B-frames"])
def test_variable_frame_rate_and_late_start(name, options, tmp_path):
    pts_ms = 5000 + np.array([0, 40, 80, 500, 510, 1500, 1540, 1999, 2400, 3000])
    path = write_video(tmp_path / name, 10, options=options, pts_milliseconds=pts_ms.tolist())
    images, times = decode_video(path)
    assert gray_indices(images) == list(range(10))
    assert times == pytest.approx((pts_ms - 5000) / 1000, abs=0.0011)


# --- pictures


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "size"),
    [
        ("odd.mkv", "ffv1", "yuv420p", (33, 17)),
        ("odd.mp4", "libx264", "yuv444p", (33, 17)),
        ("one_wide.mov", "qtrle", "rgb24", (1, 3)),
        ("ten_bit.mp4", "libx264", "yuv420p10le", (34, 18)),
        ("sixteen_bit.mkv", "ffv1", "yuv444p16le", (33, 17)),
        ("gray.mkv", "ffv1", "gray", (33, 17)),
        ("alpha.mkv", "ffv1", "bgra", (33, 17)),
        ("alpha.mov", "qtrle", "argb", (33, 17)),
        ("raw.avi", "rawvideo", "yuv420p", (34, 18)),
    ],
)
def test_pixel_formats_and_odd_sizes(name, codec, pix_fmt, size, tmp_path):
    width, height = size
    levels = (0, 64, 128, 192, 255)
    pictures = [np.full((height, width, 3), level, np.uint8) for level in levels]
    path = write_video(tmp_path / name, pictures, codec=codec, pix_fmt=pix_fmt)
    images, _ = decode_video(path)
    assert [image.shape for image in images] == [(height, width, 3)] * 5
    assert [image.mean() for image in images] == pytest.approx(levels, abs=4)
    assert max(image.std() for image in images) < 3
    assert (probe(path).width, probe(path).height) == (width, height)


def test_lossless_rgb_is_bit_exact(tmp_path):
    pictures = [
        np.random.default_rng(index).integers(0, 256, (17, 33, 3)).astype(np.uint8)
        for index in range(3)
    ]
    images, _ = decode_video(
        write_video(tmp_path / "a.mov", pictures, codec="qtrle", pix_fmt="rgb24")
    )
    np.testing.assert_array_equal(images, pictures)


def test_frame_size_may_change(tmp_path):
    parts = [
        write_video(tmp_path / "part.h264", gray_images(5, *size)).read_bytes()
        for size in ((64, 48), (96, 32))
    ]
    path = write_file(tmp_path / "both.h264", b"".join(parts))
    assert [block.pixels.shape for block in FrameReader(path).blocks()] == [
        (5, 48, 64, 3),
        (5, 32, 96, 3),
    ]
    images, times = decode_video(path)
    assert gray_indices(images) == [0, 1, 2, 3, 4] * 2
    assert (np.diff(times) > 0).all()


def corner_colors(image):
    """Return the color of each corner, row by row: R, G, B, or - for dark."""
    patches = (image[4:10, 4:10], image[4:10, -10:-4], image[-10:-4, 4:10], image[-10:-4, -10:-4])
    means = [patch.mean(axis=(0, 1)) for patch in patches]
    return "".join("RGB"[int(mean.argmax())] if mean.max() > 100 else "-" for mean in means)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "RB" + "G-"),
        ({"rotation": 90}, "B-" + "RG"),  # counterclockwise: the right edge moves to the top
        ({"rotation": 180}, "-G" + "BR"),
        ({"rotation": 270}, "GR" + "-B"),
        ({"hflip": True}, "BR" + "-G"),
        ({"vflip": True}, "G-" + "RB"),
        ({"rotation": 90, "hflip": True}, "-B" + "GR"),
        ({"rotation": 90, "vflip": True}, "RG" + "B-"),
    ],
    ids=str,
)
def test_rotation_is_applied(settings, expected, tmp_path):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:16, :16] = (255, 0, 0)
    picture[:16, -16:] = (0, 0, 255)
    picture[-16:, :16] = (0, 255, 0)
    path = write_video(tmp_path / "a.mp4", [picture] * 3, **settings)
    images, _ = decode_video(path)
    assert [corner_colors(image) for image in images] == [expected] * 3
    seen = probe(path)
    assert images[0].shape == (seen.height, seen.width, 3)
    assert (seen.width, seen.height) == (
        (48, 64) if settings.get("rotation", 0) % 180 else (64, 48)
    )


@pytest.mark.parametrize(
    ("block_bytes", "expected"),
    [(video.BLOCK_BYTES, [16, 4]), (7 * 48 * 64 * 3 + 1, [7, 7, 6]), (1, [1] * 20)],
)
def test_blocks_are_bounded_in_frames_and_bytes(block_bytes, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "BLOCK_BYTES", block_bytes)
    blocks = list(FrameReader(write_video(tmp_path / "a.mp4", 20)).blocks())
    assert (
        [len(block.pixels) for block in blocks]
        == [len(block.pts_seconds) for block in blocks]
        == expected
    )
    assert gray_indices([image for block in blocks for image in block.pixels]) == list(range(20))


# --- truncated and damaged files


TRUNCATABLE = {
    "faststart.mp4": {"options": B_FRAMES, "container_options": {"movflags": "faststart"}},
    "b.mkv": {"options": B_FRAMES},
    "plain.mkv": {"options": {"bf": "0"}},
    "a.webm": {"codec": "libvpx"},
    "a.avi": {"codec": "mpeg4"},
    "b.avi": {"codec": "mpeg4", "options": {"bf": "2"}},
    "h264.avi": {"options": B_FRAMES},
    "a.flv": {"codec": "flv"},
    "a.mxf": {"codec": "mpeg2video", "container": "mxf", "fps": 25},
}


@pytest.mark.parametrize("name", TRUNCATABLE)
def test_truncated_files_are_rejected_or_give_their_first_frames(name, tmp_path):
    path = write_video(tmp_path / name, moving_images(), **TRUNCATABLE[name])
    whole, whole_times = decode_video(path)
    assert (len(whole), probe(path).truncation) == (40, "")
    content = path.read_bytes()
    for percent in (78, 80, 82, 84, 86):
        path.write_bytes(content[: len(content) * percent // 100])
        assert "--on-truncated keep" in error_of(path, threads=2)
        assert probe(path).truncation
        reader = FrameReader(path, threads=2, policy=KEEP_TRUNCATED)
        blocks = list(reader.blocks())
        images = np.concatenate([block.pixels for block in blocks])
        assert reader.truncated
        assert 2 < len(images) < 40
        np.testing.assert_array_equal(images, whole[: len(images)])
        times = np.concatenate([block.pts_seconds for block in blocks])
        assert times == pytest.approx(whole_times[: len(images)], abs=1e-6)


def test_undecodable_packet_counts_as_truncation(tmp_path):
    path = write_video(tmp_path / "a.mkv", 20, codec="ffv1", options={"slicecrc": "1"})
    whole, _ = decode_video(path)
    erase_packet(path, 12, keep=0.1)
    np.testing.assert_array_equal(decode_video(path, policy=KEEP_TRUNCATED)[0], whole[:12])
    assert "truncated after 12 frames" in error_of(path)


def test_corrupt_frames_are_rejected_or_counted(tmp_path):
    path = write_video(tmp_path / "corrupt.mp4", moving_images())
    erase_packet(path, 3, keep=0.5)
    assert "--on-corrupt keep" in error_of(path)
    reader = FrameReader(path, policy=DecodingPolicy(on_corrupt="keep"))
    assert sum(len(block.pixels) for block in reader.blocks()) == 40
    assert 0 < reader.corrupt_frames < 40
    assert not reader.truncated


def test_max_pixels(tmp_path):
    path = write_video(tmp_path / "a.mp4")
    assert "--max-pixels" in error_of(path, policy=DecodingPolicy(max_pixels=64 * 48 - 1))
    assert count_frames(path, policy=DecodingPolicy(max_pixels=64 * 48)) == 3


# --- odd files


def test_metadata_need_not_be_utf8(tmp_path):
    path = write_video(tmp_path / "a.avi", codec="mpeg4")
    content = path.read_bytes()
    at = content.index(b"ISFT") + 8
    path.write_bytes(content[:at] + b"M\xfcller" + content[at + 6 :])
    assert count_frames(path) == estimated_frames(path) == 3


# --- files that are not videos


@pytest.mark.parametrize(
    "content", [b"", b"This is text.\n" * 50, bytes(5000), b"\x89PNG\r\n\x1a\n" + bytes(50), None]
)
def test_files_that_are_not_videos_are_rejected(content, tmp_path):
    path = tmp_path / "a.mp4"
    if content is not None:
        path.write_bytes(content)
    error_of(path)
    with pytest.raises(VideoError):
        probe(path)
    assert estimated_frames(path) is None


def test_mp4_without_index_is_rejected(tmp_path):
    path = write_video(tmp_path / "a.mp4")
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"moov") - 4])
    assert "never finalized" in error_of(path, policy=KEEP_TRUNCATED)


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.mp4", "aac")])
def test_audio_only_file_is_rejected(name, codec, tmp_path):
    path = tmp_path / name
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=44100)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 4410), np.int16), format="s16", layout="mono"
        )
        frame.sample_rate = 44100
        for converted in av.AudioResampler(stream.format, "mono", 44100).resample(frame):
            output.mux(stream.encode(converted))
        output.mux(stream.encode())
    assert "no video stream" in error_of(path)


def test_header_without_frames_is_rejected(tmp_path):
    path = write_video(tmp_path / "a.avi", codec="mpeg4")
    path.write_bytes(path.read_bytes().replace(b"00dc", b"JUNK").replace(b"idx1", b"JUNK"))
    error_of(path)
    assert "no frame" in error_of(path, policy=KEEP_TRUNCATED)
    assert probe(path).frames == 0


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{}'\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" '
        'type="static"><Period><AdaptationSet>'
        "<Representation><BaseURL>{}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP "
        "96\na=rtpmap:96 H264/90000\n",
    ],
    ids=["m3u8", "ffconcat", "mpd", "sdp"],
)
@pytest.mark.parametrize("target", ["secret.ts", "secret.mp4"])
def test_playlists_named_like_videos_are_rejected(playlist, target, tmp_path):
    secret = write_video(tmp_path / target)
    for spelling in (secret.name, str(secret), f"file:{secret}"):
        path = write_file(tmp_path / "x.mp4", playlist.format(spelling))
        assert error_of(path) == f"{path}: a text file, not a video"
        assert estimated_frames(path) is None


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.mp4")
    assert "not a regular file" in error_of(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    "name",
    [
        "t\u00e9l\u00e9 \u6f22\u5b57 \U0001f95a.mp4".encode(),
        b"caf\xe9.mp4",
        b"%03d_img.mp4",
        b"http:x.mp4",
        b"pipe:0.mp4",
        b"-i.mp4",
        b"[x]*?.mp4",
        b"line\nbreak.mp4",
        b"no suffix",
    ],
)
def test_unusual_file_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_video(tmp_path / "a.mp4").rename(os.fsdecode(name))
    assert probe(path).frames == estimated_frames(path) == count_frames(path) == 3


# --- segments


OPEN_GOPS = {"bf": "3", "g": "10", "x264-params": "asm=0:open-gop=1:b-pyramid=normal:scenecut=0"}


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", OPEN_GOPS),
        ("b.mp4", "libx264", {"g": "250"}),
        ("a.mkv", "libx264", OPEN_GOPS),
        ("a.avi", "libx264", OPEN_GOPS),
        ("a.ts", "libx264", OPEN_GOPS),
        ("a.h264", "libx264", OPEN_GOPS),
        ("a.webm", "libvpx", {"g": "10"}),
    ],
)
def test_segments_have_the_same_frames_as_the_whole_file(name, codec, options, tmp_path):
    path = write_video(tmp_path / name, moving_images(60), codec=codec, options=options, fps=10)
    whole, times = decode_video(path)
    for first, end in ((0, 7), (3, 20), (14, 15), (33, 51), (40, 60)):
        end_seconds = times[end] if end < 60 else np.inf
        for segment in (FileSegment(first, end, "f"), FileSegment(times[first], end_seconds)):
            images, seconds = decode_video(path, segment=segment, threads=2)
            np.testing.assert_array_equal(images, whole[first:end])
            assert seconds == pytest.approx(times[first:end] - times[first], abs=1e-9)
            assert probe(path, segment).frames == end - first
            assert probe(path, segment).last_seconds == pytest.approx(seconds[-1], abs=0.0011)


def test_segments_are_decoded_from_a_keyframe_nearby(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", moving_images(60), options={"g": "5"}, fps=10)
    decoded = []
    frames = FrameReader._frames

    def watch(*arguments):
        for frame, seconds in frames(*arguments):
            decoded.append(seconds)
            yield frame, seconds

    monkeypatch.setattr(FrameReader, "_frames", watch)
    for unit, scale in (("s", 1.0), ("f", 10.0)):
        decoded.clear()
        for start in range(6):
            decode_video(path, segment=FileSegment(start * scale, (start + 1) * scale, unit))
        # Margin plus one group of pictures; without seeking, 210 frames are decoded.
        assert len(decoded) < 60 + 6 * 20


@pytest.mark.parametrize(
    "segment",
    [
        FileSegment(0, 30, "f"),
        FileSegment(20, 21, "f"),
        FileSegment(1, 3),
        FileSegment(5),
        FileSegment(5, 6),
    ],
)
def test_segments_outside_of_the_file(segment, tmp_path):
    path = write_video(tmp_path / "a.mp4", 20, fps=10)
    with pytest.raises(VideoError, match=r"a\.mp4#[tf]=.*: the file has .*but the segment ends at"):
        decode_video(path, segment=segment)
    assert "but the segment ends at" in probe(path, segment).truncation


# --- camera footage


@pytest.mark.parametrize("name", CLIP_FRAMES)
def test_real_clips(name):
    if not (CLIPS / name).is_file():
        pytest.skip(f"the clips are not at {CLIPS}")
    images, times = decode_video(CLIPS / name, threads=2)
    assert len(images) == CLIP_FRAMES[name]
    assert (np.diff(times) > 0).all()
    seen = probe(CLIPS / name)
    # This file ends with an empty packet.
    assert seen.frames - len(images) == (1 if "RATRACE" in name else 0)
    assert (*images[0].shape[:2], seen.truncation) == (seen.height, seen.width, "")
