import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from byov.data import video
from byov.data.container import missing_bytes
from byov.data.video import DecodingPolicy, FrameBlock, FrameReader, estimated_frames, probe
from byov.errors import VideoError
from byov.text import pluralize

KEEP = DecodingPolicy(on_truncated="keep")
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
Encode = Callable[..., Path]
Greys = Callable[..., list[NDArray[np.uint8]]]
Decode = Callable[..., tuple[list[NDArray[np.uint8]], NDArray[np.float64]]]


def order(images: list[NDArray[np.uint8]]) -> list[int]:
    """Which frame of `grays` each picture is."""
    return [round((float(image.mean()) - 20) / 10) for image in images]


def message_of(path: Path, **settings: Any) -> str:
    with pytest.raises(VideoError) as error:
        list(FrameReader(path, **settings).blocks())
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    return str(error.value)


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
def test_all_frames_in_order_with_their_times(
    name: str,
    codec: str,
    options: dict[str, str],
    threads: int,
    tmp_path: Path,
    encode: Encode,
    grays: Greys,
    decode: Decode,
) -> None:
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = encode(tmp_path / name, grays(20), codec=codec, options=options, pix_fmt=pix_fmt, fps=25)
    images, times = decode(path, threads=threads)
    assert order(images) == list(range(20))
    assert times == pytest.approx(np.arange(20) / 25, abs=0.0011)  # some containers count milliseconds
    assert times[0] == 0
    seen = probe(path)
    assert (seen.packets, seen.width, seen.height) == (20, 64, 48)
    assert seen.fps == pytest.approx(25)
    assert not seen.variable_rate
    assert seen.missing_bytes == 0


def test_decoder_tells_rate_and_wholeness_after_the_pass(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    decoder = FrameReader(encode(tmp_path / "a.mp4", grays(4), fps=12))
    assert sum(len(block.pixels) for block in decoder.blocks()) == 4
    assert decoder.fps == 12
    assert not decoder.truncated


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("options", [{"bf": "0"}, B_FRAMES], ids=["no B-frames", "B-frames"])
def test_variable_frame_rate(
    name: str, options: dict[str, str], tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    pts = [0, 40, 80, 500, 510, 1500, 1540, 1999, 2400, 3000]
    path = encode(tmp_path / name, grays(10), options=options, pts=pts)
    images, times = decode(path)
    assert order(images) == list(range(10))
    assert times == pytest.approx(np.array(pts) / 1000, abs=0.0011)
    assert probe(path).variable_rate


def test_rate_that_the_clock_cannot_express_is_not_variable(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    assert not probe(encode(tmp_path / "a.mkv", grays(20), fps=30)).variable_rate  # 33, 33, 34 ms


@pytest.mark.parametrize("name", ["a.ts", "a.mkv", "a.mp4"])
def test_times_count_from_the_first_frame(
    name: str, tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    path = encode(tmp_path / name, grays(5), options={"bf": "0"}, pts=[5000, 5100, 5200, 5300, 5400])
    assert decode(path)[1] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.0011)


def test_one_frame(tmp_path: Path, encode: Encode, grays: Greys, decode: Decode) -> None:
    path = encode(tmp_path / "a.mp4", grays(1))
    images, times = decode(path)
    assert order(images) == [0]
    assert times.tolist() == [0.0]
    assert probe(path).packets == 1
    assert not probe(path).variable_rate


def test_frames_that_an_avi_left_out_leave_gaps_in_time(
    tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    path = encode(tmp_path / "a.avi", grays(10), codec="mpeg4", fps=10)
    content = path.read_bytes()
    movi = content.index(b"movi")
    at = content.index(b"00dc", movi + 300)
    empty = b"00dc\0\0\0\0"
    grown = {offset: int.from_bytes(content[offset : offset + 4], "little") + 8 for offset in (4, movi - 4)}
    changed = bytearray(content[:at] + empty + content[at:].replace(b"idx1", b"JUNK"))
    for offset, size in grown.items():
        changed[offset : offset + 4] = size.to_bytes(4, "little")
    path.write_bytes(changed)
    images, times = decode(path)
    assert order(images) == list(range(10))
    gaps = np.diff(times).round(3).tolist()
    assert sorted(gaps) == [0.1] * 8 + [0.2]


# --- pictures


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "size"),
    [
        ("odd.mkv", "ffv1", "yuv420p", (33, 17)),
        ("odd.mp4", "libx264", "yuv444p", (33, 17)),
        ("odd.avi", "mjpeg", "yuvj420p", (33, 17)),
        ("one_wide.mov", "qtrle", "rgb24", (1, 3)),
        ("ten_bit.mp4", "libx264", "yuv420p10le", (34, 18)),
        ("ten_bit.mkv", "ffv1", "yuv420p10le", (33, 17)),
        ("sixteen_bit.mkv", "ffv1", "yuv444p16le", (33, 17)),
        ("gray.mkv", "ffv1", "gray", (33, 17)),
        ("gray_ten_bit.mkv", "ffv1", "gray10le", (33, 17)),
        ("alpha.mkv", "ffv1", "bgra", (33, 17)),
        ("alpha_yuv.mkv", "ffv1", "yuva420p", (33, 17)),
        ("alpha.mov", "qtrle", "argb", (33, 17)),
        ("raw.avi", "rawvideo", "yuv420p", (34, 18)),
    ],
)
def test_pixel_formats_and_odd_sizes(
    name: str, codec: str, pix_fmt: str, size: tuple[int, int], tmp_path: Path, encode: Encode, decode: Decode
) -> None:
    width, height = size
    levels = (0, 64, 128, 192, 255)
    pictures = [np.full((height, width, 3), level, np.uint8) for level in levels]
    path = encode(tmp_path / name, pictures, codec=codec, pix_fmt=pix_fmt)
    images, _ = decode(path)
    assert [image.shape for image in images] == [(height, width, 3)] * 5
    assert [image.mean() for image in images] == pytest.approx(levels, abs=4)
    assert max(image.std() for image in images) < 3
    assert (probe(path).width, probe(path).height) == (width, height)


def test_channels_are_red_green_blue(tmp_path: Path, encode: Encode, decode: Decode) -> None:
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    pictures = [np.full((16, 16, 3), color, np.uint8) for color in colors]
    images, _ = decode(encode(tmp_path / "a.mp4", pictures, options={"crf": "1"}))
    for image, color in zip(images, colors, strict=True):
        assert image.mean(axis=(0, 1)) == pytest.approx(color, abs=8)


def test_change_of_size_amid_the_stream(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    parts = [
        encode(tmp_path / f"{width}.h264", grays(5, width, height)).read_bytes()
        for width, height in ((64, 48), (96, 32))
    ]
    path = tmp_path / "both.h264"
    path.write_bytes(b"".join(parts))
    blocks = list(FrameReader(path).blocks())
    assert [block.pixels.shape for block in blocks] == [(5, 48, 64, 3), (5, 32, 96, 3)]
    assert order([image for block in blocks for image in block.pixels]) == [0, 1, 2, 3, 4] * 2
    assert (np.diff(np.concatenate([block.pts_seconds for block in blocks])) > 0).all()


def corners(image: NDArray[np.uint8]) -> str:
    """The colors of the corners, row by row: R, G, B or - for dark."""
    patches = (image[4:10, 4:10], image[4:10, -10:-4], image[-10:-4, 4:10], image[-10:-4, -10:-4])
    means = [patch.mean(axis=(0, 1)) for patch in patches]
    return "".join("RGB"[int(mean.argmax())] if mean.max() > 100 else "-" for mean in means)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "RB" + "G-"),
        ({"rotation": 90}, "B-" + "RG"),  # counter-clockwise: the right edge comes to the top
        ({"rotation": 180}, "-G" + "BR"),
        ({"rotation": 270}, "GR" + "-B"),
        ({"hflip": True}, "BR" + "-G"),
        ({"vflip": True}, "G-" + "RB"),
        ({"rotation": 90, "hflip": True}, "-B" + "GR"),
        ({"rotation": 90, "vflip": True}, "RG" + "B-"),
    ],
    ids=str,
)
def test_pictures_are_shown_upright(
    settings: dict[str, Any], expected: str, tmp_path: Path, encode: Encode, decode: Decode
) -> None:
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:16, :16], picture[:16, -16:], picture[-16:, :16] = (255, 0, 0), (0, 0, 255), (0, 255, 0)
    path = encode(tmp_path / "a.mp4", [picture] * 3, **settings)
    images, _ = decode(path)
    assert [corners(image) for image in images] == [expected] * 3
    turned = settings.get("rotation", 0) % 180 == 90
    assert images[0].shape == ((64, 48, 3) if turned else (48, 64, 3))
    seen = probe(path)
    assert (seen.width, seen.height) == ((48, 64) if turned else (64, 48))
    if not settings.keys() - {"rotation"}:
        assert seen.rotation_degrees == settings.get("rotation", 0)


def test_phone_held_upright_as_its_header_says(tmp_path: Path, encode: Encode, decode: Decode) -> None:
    """A track matrix 0 1 -1 0 turns the picture clockwise for display: what was left is on top."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, :16] = 255
    path = encode(tmp_path / "a.mp4", [picture], rotation=270)
    content = path.read_bytes()
    matrix = np.frombuffer(content, ">i4", 9, content.index(b"tkhd") + 44)
    assert (matrix[[0, 1, 3, 4]] // 65536).tolist() == [0, 1, -1, 0]
    image = decode(path)[0][0]
    assert image[:10].mean() > 200
    assert image[-10:].mean() < 50


# --- blocks


def test_blocks_are_bounded_in_frames(tmp_path: Path, encode: Encode) -> None:
    pictures = [np.full((16, 16, 3), index % 200, np.uint8) for index in range(150)]
    path = encode(tmp_path / "a.mkv", pictures, codec="ffv1")
    blocks = list(FrameReader(path).blocks())
    expected = [min(video.BLOCK_FRAMES, 150 - start) for start in range(0, 150, video.BLOCK_FRAMES)]
    assert len(expected) > 1
    assert [len(block.pixels) for block in blocks] == expected
    assert [len(block.pts_seconds) for block in blocks] == expected
    assert [int(image.mean().round()) for block in blocks for image in block.pixels] == pytest.approx(
        [index % 200 for index in range(150)], abs=2
    )


@pytest.mark.parametrize("size", [(800, 480), (2560, 1440)])
def test_blocks_are_bounded_in_bytes(size: tuple[int, int], tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / "a.mp4", grays(7, *size), options={"preset": "ultrafast"})
    blocks = list(FrameReader(path).blocks())
    frames = max(1, video.BLOCK_BYTES // (size[0] * size[1] * 3))
    assert [len(block.pixels) for block in blocks] == [min(frames, 7 - start) for start in range(0, 7, frames)]
    assert all(block.pixels.nbytes <= video.BLOCK_BYTES or len(block.pixels) == 1 for block in blocks)
    assert order([image for block in blocks for image in block.pixels[:, :8, :8]]) == list(range(7))


def test_block_refuses_times_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="frames with"):
        FrameBlock(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(3))


# --- files that are cut off


def opens(path: Path) -> bool:
    try:
        probe(path)
    except VideoError:
        return False
    return True


CUT = {
    "faststart.mp4": ("libx264", {"movflags": "faststart"}, B_FRAMES),
    "fragmented.mp4": ("libx264", {"movflags": "frag_keyframe+empty_moov", "frag_duration": "300000"}, B_FRAMES),
    "b.mkv": ("libx264", {}, B_FRAMES),
    "plain.mkv": ("libx264", {}, {"bf": "0"}),
    "a.webm": ("libvpx", {}, {}),
    "a.avi": ("mpeg4", {}, {}),
    "b.avi": ("mpeg4", {}, {"bf": "2"}),
    "h264.avi": ("libx264", {}, B_FRAMES),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CUT)
def test_what_is_kept_of_a_cut_file_are_the_first_frames_of_the_whole(
    name: str, threads: int, tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    codec, container_options, options = CUT[name]
    path = encode(tmp_path / name, grays(20), codec=codec, options=options, container_options=container_options)
    whole, whole_times = decode(path)
    size = path.stat().st_size
    counts = []
    for cut in range(size - 1, size // 4, -max(1, size // 60)):
        os.truncate(path, cut)
        if not missing_bytes(path) or not opens(path):
            continue  # a fragmented file cut between two boxes, where it looks whole, or amid one, where it is refused
        decoder = FrameReader(path, threads=threads, policy=KEEP)
        try:
            blocks = list(decoder.blocks())
        except VideoError:
            counts.append(0)
            continue
        assert decoder.truncated
        images = np.concatenate([block.pixels for block in blocks])
        times = np.concatenate([block.pts_seconds for block in blocks])
        assert np.array_equal(images, np.stack(whole[: len(images)]))
        assert times == pytest.approx(whole_times[: len(images)], abs=1e-6)
        assert f"broken off after {pluralize(len(images), 'frame')} (" in message_of(path, threads=1)
        counts.append(len(images))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 17
    assert len(set(counts)) > 5


@pytest.mark.parametrize(("name", "held"), [("plain.mkv", 0), ("a.webm", 0), ("a.avi", 0), ("faststart.mp4", 3)])
def test_frames_that_are_whole_are_kept(
    name: str, held: int, tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    """All of them, but for those whose predecessor was to come behind the cut."""
    codec, container_options, options = CUT[name]
    path = encode(tmp_path / name, grays(20), codec=codec, options=options, container_options=container_options)
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][14]
        at, content = packet.pos, bytes(packet)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(content, at) + len(content)])
    images, _ = decode(path, policy=KEEP)
    assert 15 - held <= len(images) <= 15
    assert order(images) == list(range(len(images)))


def test_probe_counts_what_a_cut_file_still_has(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / "a.mp4", grays(20), options={"bf": "0"}, container_options={"movflags": "faststart"})
    os.truncate(path, path.stat().st_size - 60)
    seen = probe(path)
    assert seen.header_frames == 20
    assert 0 < seen.packets <= 20
    assert seen.missing_bytes == 60


def test_cut_file_says_how_to_go_on(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / "a.mkv", grays(20))
    os.truncate(path, path.stat().st_size - 1)
    message = message_of(path)
    assert "1 bytes short" in message
    assert "--on-truncated keep" in message


def test_bytes_lost_amid_the_file_break_it_off(tmp_path: Path, encode: Encode, grays: Greys, decode: Decode) -> None:
    without = {"write_crc32": "0"}  # else the container tells
    path = encode(tmp_path / "a.mkv", grays(20), codec="ffv1", options={"slicecrc": "1"}, container_options=without)
    whole, _ = decode(path)
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][12]
        at, size = packet.pos, packet.size
    content = bytearray(path.read_bytes())
    content[at + 8 : at + size] = bytes(size - 8)
    path.write_bytes(content)
    images, _ = decode(path, policy=KEEP)
    assert len(images) == 12
    assert np.array_equal(images, whole[:12])
    assert "broken off after 12 frames" in message_of(path)


# --- headers that are wrong


@pytest.mark.parametrize("claimed", [1, 7, 5000])
def test_frame_count_of_the_header_is_not_trusted(
    claimed: int, tmp_path: Path, encode: Encode, grays: Greys, decode: Decode
) -> None:
    path = encode(tmp_path / "a.avi", grays(20), codec="mpeg4")
    content = bytearray(path.read_bytes())
    header = content.index(b"avih") + 8 + 16  # dwTotalFrames
    stream = content.index(b"strh") + 8 + 32  # dwLength
    for at in (header, stream):
        assert int.from_bytes(content[at : at + 4], "little") == 20
        content[at : at + 4] = claimed.to_bytes(4, "little")
    path.write_bytes(content)
    assert order(decode(path)[0]) == list(range(20))
    assert probe(path).packets == 20
    assert probe(path).header_frames == claimed


def test_suffix_is_not_trusted(tmp_path: Path, encode: Encode, grays: Greys, decode: Decode) -> None:
    path = encode(tmp_path / "a.mkv", grays(5)).rename(tmp_path / "a.mp4")
    assert len(decode(path)[0]) == 5


@pytest.mark.parametrize("settings", [{"codec": "libx264"}, {"codec": "ffv1", "name": "a.mkv"}])
def test_probe_names_the_codec(settings: dict[str, str], tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / settings.get("name", "a.mp4"), grays(3), codec=settings["codec"])
    assert probe(path).codec == {"libx264": "h264", "ffv1": "ffv1"}[settings["codec"]]


# --- what is no video


def test_missing_file(tmp_path: Path) -> None:
    assert message_of(tmp_path / "absent.mp4") == f"{tmp_path / 'absent.mp4'}: no such file"
    with pytest.raises(VideoError, match="no such file"):
        probe(tmp_path / "absent.mp4")


def test_folder(tmp_path: Path) -> None:
    assert message_of(tmp_path) == f"{tmp_path}: a folder, not a video"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty file"),
        (b"This is text.\n" * 50, "not a video that FFmpeg can open"),
        (bytes(5000), "not a video that FFmpeg can open"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "not a video that FFmpeg can open"),
    ],
)
def test_no_video(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    assert reason in message_of(path)
    with pytest.raises(VideoError, match=reason):
        probe(path)


def test_mp4_without_index(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / "a.mp4", grays(5))
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"moov") - 4])
    assert "no moov atom" in message_of(path)
    assert "no moov atom" in message_of(path, policy=KEEP)


def sound(path: Path, codec: str) -> Path:
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=44100)
        samples = np.zeros((1, 4410), np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 44100
        for converted in av.AudioResampler(stream.format, "mono", 44100).resample(frame):
            output.mux(stream.encode(converted))
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.mp4", "aac"), ("a.mkv", "aac")])
def test_sound_only(name: str, codec: str, tmp_path: Path) -> None:
    path = sound(tmp_path / name, codec)
    assert message_of(path) == f"{path}: no video stream in it, only audio"
    with pytest.raises(VideoError, match="only audio"):
        probe(path)


def test_header_without_frames(tmp_path: Path, encode: Encode, grays: Greys) -> None:
    path = encode(tmp_path / "a.avi", grays(3), codec="mpeg4")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"00dc", b"JUNK").replace(b"idx1", b"JUNK"))
    assert message_of(path) == f"{path}: no frame could be decoded"
    assert probe(path).packets == 0


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{}'\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
        "<Representation><BaseURL>{}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    ],
    ids=["m3u8", "ffconcat", "mpd", "sdp"],
)
@pytest.mark.parametrize("target", ["secret.ts", "secret.mp4"])
def test_playlist_disguised_as_a_video_is_refused(
    playlist: str, target: str, tmp_path: Path, encode: Encode, grays: Greys
) -> None:
    secret = encode(tmp_path / target, grays(5))
    path = tmp_path / "x.mp4"
    for spelling in (secret.name, str(secret), f"file:{secret}"):
        path.write_text(playlist.format(spelling))
        assert "not a video that FFmpeg can open" in message_of(path)
        assert estimated_frames(path) is None


@pytest.mark.parametrize(
    "name",
    [
        b"with space.mp4",
        "t\u00e9l\u00e9 \u6f22\u5b57 \U0001f95a.mp4".encode(),
        b"caf\xe9.mp4",
        b"%d.mp4",
        b"%03d_img.mp4",
        b"a:b.mp4",
        b"http:x.mp4",
        b"pipe:0.mp4",
        b"-i.mp4",
        b"[x]*?.mp4",
        b"line\nbreak.mp4",
        b"no suffix",
    ],
)
def test_odd_file_names(
    name: bytes, tiny_video: bytes, tmp_path: Path, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(name))
    path.write_bytes(tiny_video)
    assert order(decode(path)[0]) == [0, 1, 2]
    assert probe(path).packets == estimated_frames(path) == 3


# --- footage of cameras


@pytest.mark.parametrize("name", CLIP_FRAMES)
def test_real_clips(name: str) -> None:
    if not (CLIPS / name).is_file():
        pytest.skip(f"the clips are not at {CLIPS}")
    count, times = 0, []
    for block in FrameReader(CLIPS / name, threads=2).blocks():
        count += len(block.pixels)
        times.append(block.pts_seconds)
        assert block.pixels.std() > 5
    assert count == CLIP_FRAMES[name]
    assert (np.diff(np.concatenate(times)) > 0).all()
    seen = probe(CLIPS / name)
    assert seen.packets - count == (1 if "RATRACE" in name else 0)  # that one ends with an empty packet
    assert block.pixels.shape[1:3] == (seen.height, seen.width)
    assert seen.missing_bytes == 0
