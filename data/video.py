"""The video decoder: every frame from first to last, in order, as RGB.

Header counts and seeking are not trusted: frame t is the t-th frame that decoding to the end of the file gives.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import av
import av.container
import av.error
import numpy as np
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from byov.data.checksums import mismatch
from byov.data.container import broken_off, lacks_moov, missing_bytes
from byov.errors import VideoError
from byov.text import pluralize

OnTruncated = Literal["error", "keep"]
OnCorrupt = Literal["error", "keep"]
MAX_PIXELS = 70_000_000  # of a frame: twice an 8K picture; 210 MB as RGB, and FFmpeg holds several
DECODER = f"PyAV {av.__version__}, libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"
# A file's content decides how FFmpeg reads it, whatever its name: a playlist called x.mp4 would have it open other
# files and addresses. So only containers that hold their own data, and only from disk.
_OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,mxf,nut,rm,dv,"
    "h264,hevc,av1,mjpeg,gif,yuv4mpegpipe,wav,mp3,flac,aac",
}
# They store frames in coding order and no display times; what FFmpeg makes up instead goes wrong with B-frames.
_WITHOUT_TIMES = ("avi", "mpegvideo")
_PACKETS_TO_A_JOIN = 3
LEAST_ASPECT = 0.1  # of pixels; broadcast formats lie between 0.7 and 2
BLOCK_BYTES = 8 << 20
BLOCK_FRAMES = 16


@dataclass(frozen=True)
class DecodingPolicy:
    """What becomes of a video that breaks off, of frames that FFmpeg marks as corrupt, and of frames too large."""

    on_truncated: OnTruncated = "error"
    on_corrupt: OnCorrupt = "error"
    max_pixels: int = MAX_PIXELS


STRICT = DecodingPolicy()
VideoPacket: TypeAlias = "av.Packet[av.VideoStream]"


@dataclass(frozen=True)
class FrameBlock:
    """Consecutive frames of one size."""

    pixels: NDArray[np.uint8]  # (n, height, width, 3)
    pts_seconds: NDArray[np.float64]  # (n,), from the first frame of the video

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or len(self.pixels) != len(self.pts_seconds):
            raise ValueError(f"{self.pixels.shape} frames with {self.pts_seconds.shape} times")


@dataclass(frozen=True)
class Probe:
    """What can be said of a video without decoding it: its packets are pluralize, its first frame is decoded."""

    header_frames: int  # as the header says; 0 where it does not
    packets: int  # frames in the file; a rare codec decodes one more or one less
    width: int  # as shown, after rotation
    height: int
    fps: float
    variable_rate: bool
    rotation_degrees: int  # counter-clockwise, already applied to the size above
    codec: str
    missing_bytes: int  # by the container's own account; 0 if the file is whole
    broken_off: str  # why it cannot be whole; "" if it is, or if that cannot be told


class FrameReader:
    """One pass over a video. `blocks` may be consumed once; `fps`, `truncated` and `corrupt_frames` are known after it.

    `pixel_aspect` is known from the first block on.
    """

    def __init__(self, path: Path, *, threads: int = 1, policy: DecodingPolicy = STRICT) -> None:
        self.path = path
        self.fps = 0.0
        self.truncated = False
        self.corrupt_frames = 0
        self.pixel_aspect = 1.0  # width over height of a pixel, as the frame is to be shown
        # Threads hold frames back, and those held at a break are lost: what is kept must not depend on their number.
        self._threads = 1 if policy.on_truncated == "keep" else threads
        self._policy = policy
        self._reformatter = VideoReformatter()
        self._rotation: int | None = None  # of the frames so far, and what it means for them
        self._upright = (False, 0)
        self._slots: deque[float] = deque()  # times of the packets whose frames are still to come, if frames have none

    def blocks(self) -> Iterator[FrameBlock]:
        """All frames, in blocks of one size that stay below BLOCK_BYTES (or hold one frame)."""
        room = np.empty((0, 0, 0, 3), np.uint8)
        times: list[float] = []
        for image, time in self._frames():
            if len(times) == len(room) or image.shape != room.shape[1:]:
                if times:
                    yield FrameBlock(room[: len(times)], np.array(times))
                capacity = max(1, min(BLOCK_FRAMES, BLOCK_BYTES // image.nbytes))
                room, times = np.empty((capacity, *image.shape), np.uint8), []
            room[len(times)] = image
            times.append(time)
        if times:
            yield FrameBlock(room[: len(times)], np.array(times))

    def _frames(self) -> Iterator[tuple[NDArray[np.uint8], float]]:
        count = 0
        with open_video(self.path) as (container, stream):
            self._refuse_damage()
            _refuse_large(self.path, stream, self._policy.max_pixels)
            stream.codec_context.thread_count = self._threads
            stream.codec_context.thread_type = "AUTO"
            self.fps = float(stream.average_rate or stream.guessed_rate or 0)
            first_time: float | None = None
            joined = _Joined(self.fps) if container.format.name == "mpegts" else None
            for frame in self._decoded(container, stream):
                if self._slots:
                    time = self._slots.popleft()
                elif frame.pts is not None and stream.time_base:  # frame.time is not set on the last ones
                    time = float(frame.pts * stream.time_base)
                else:
                    time = _time_at(count, self.fps)
                time = joined.time(time) if joined else time
                first_time = time if first_time is None else first_time
                count += 1
                image = self._to_rgb(frame)
                if count == 1:
                    self.pixel_aspect = _pixel_aspect(stream, turned=bool(self._upright[1] % 2))
                yield image, time - first_time
        if not count:
            raise VideoError(f"{self.path}: no frame could be decoded")

    def _decoded(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.VideoFrame]:
        count, last_dts, reason = 0, None, ""
        lacking = broken_off(self.path)
        without_times = container.format.name in _WITHOUT_TIMES
        frame: av.VideoFrame | None = None
        held_back: list[av.VideoFrame] = []
        try:
            for packet in _sound_packets(container, stream):
                if without_times and packet.dts is not None:
                    self._slots.append(float(packet.dts * packet.time_base))
                for decoded in packet.decode():
                    self._examine(decoded, count, lacking)
                    count, frame = count + 1, decoded
                    yield decoded
                last_dts = packet.dts
        except av.error.FFmpegError as error:
            reason = str(error.strerror)
        try:
            held_back = stream.decode(None)
        except av.error.FFmpegError as error:
            reason = reason or str(error.strerror)
        reason = reason or lacking
        if reason and stream.codec_context.has_b_frames:
            held_back = [] if without_times else _before_gap(frame, held_back, last_dts)
        for frame in held_back:
            if reason and frame.is_corrupt:
                break
            self._examine(frame, count, reason)
            count += 1
            yield frame
        if reason:
            self._broken_off(count, reason)

    def _refuse_damage(self) -> None:
        damage = mismatch(self.path) if self._policy.on_corrupt == "error" else ""
        if damage:
            raise VideoError(f"{self.path}: {damage}; get a sound copy, or take it as it is with --on-corrupt keep")

    def _examine(self, frame: av.VideoFrame, index: int, lacking: str) -> None:
        """What FFmpeg marks as corrupt is the break of a file that is not whole, and else as the user wants it."""
        if not frame.is_corrupt:
            return
        if lacking:
            raise av.error.InvalidDataError(0, lacking)
        if self._policy.on_corrupt == "error":
            raise VideoError(
                f"{self.path}: FFmpeg marks frame {index} as corrupt; get a sound copy, or keep such frames with "
                "--on-corrupt keep"
            )
        self.corrupt_frames += 1

    def _broken_off(self, count: int, reason: str) -> None:
        if self._policy.on_truncated == "error":
            raise VideoError(
                f"{self.path}: broken off after {pluralize(count, 'frame')} ({reason}); get a whole copy, "
                "or keep the frames before the break with --on-truncated keep"
            )
        self.truncated = True

    def _to_rgb(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        converted = self._reformatter.reformat(frame, format="rgb24", threads=1)
        image = np.asarray(converted.to_ndarray(), dtype=np.uint8)
        if frame.rotation != self._rotation:
            self._rotation, self._upright = frame.rotation, _orientation(frame)
        mirrored, turns = self._upright
        image = image[:, ::-1] if mirrored else image
        return np.rot90(image, turns) if turns else image


class _Joined:
    """Times of recordings that were joined end to end: where they go back, they go on one frame later."""

    def __init__(self, fps: float) -> None:
        self._gap, self._shift, self._last = _time_at(1, fps), 0.0, float("-inf")

    def time(self, time: float) -> float:
        if time + self._shift <= self._last:
            self._shift = self._last + self._gap - time
        self._last = time + self._shift
        return self._last


def _sound_packets(container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[VideoPacket]:
    """The packets up to the first that is cut off, which raises.

    MPEG-TS marks one of the last packets of a recording, too, if another one was joined to it: time goes back soon.
    """
    doubtful: list[VideoPacket] = []  # one that is marked, and those behind it
    for packet in container.demux(stream):
        if not packet.size:  # the end
            continue
        if doubtful and _goes_back(doubtful[-1], packet):
            yield from doubtful
            doubtful = []
        if doubtful or packet.is_corrupt:
            doubtful.append(packet)
            if container.format.name != "mpegts" or len(doubtful) > _PACKETS_TO_A_JOIN:
                break
        else:
            yield packet
    if doubtful:
        raise av.error.InvalidDataError(0, "packet cut off")


def _goes_back(before: VideoPacket, packet: VideoPacket) -> bool:
    return before.dts is not None and packet.dts is not None and packet.dts <= before.dts


@contextmanager
def open_video(path: Path) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """The container and its first real video stream; every reason not to get there is a VideoError."""
    try:
        container = av.open(str(path.absolute()), "r", options=_OPEN_OPTIONS, metadata_errors="replace")
    except FileNotFoundError:
        raise VideoError(f"{path}: no such file") from None
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError(f"{path}: {_why_not_opened(path, error)}") from error
    with container:
        streams = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
        if not streams:
            kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
            raise VideoError(f"{path}: no video stream in it, only {kinds}")
        if streams[0].codec_context is None:
            raise VideoError(f"{path}: a codec that this build of FFmpeg cannot decode")
        yield container, streams[0]


def _refuse_large(path: Path, stream: av.VideoStream, max_pixels: int) -> None:
    """Before a frame of it takes any memory; FFmpeg itself refuses those that become larger on the way."""
    if stream.width * stream.height > max_pixels:
        raise VideoError(
            f"{path}: frames of {stream.width} x {stream.height} pixels, more than {max_pixels:,}; scale them down, or "
            "set another limit with --max-pixels"
        )
    stream.codec_context.options = {"max_pixels": str(max_pixels)}


def probe(path: Path) -> Probe:
    """Look at a video without decoding it."""
    with open_video(path) as (container, stream):
        turns, size, seconds = None, (stream.width, stream.height), []
        try:
            for packet in container.demux(stream):
                if packet.size:
                    stamp = packet.dts if container.format.name in _WITHOUT_TIMES else packet.pts
                    seconds.append(float(stamp * packet.time_base) if stamp is not None else np.nan)
                if turns is None:
                    for frame in packet.decode():
                        (_, turns), size = _orientation(frame), (frame.width, frame.height)
        except av.error.FFmpegError:
            pass  # the extraction will say where it breaks; the figures up to there are still of use
        width, height = size if (turns or 0) % 2 == 0 else size[::-1]
        return Probe(
            header_frames=stream.frames,
            packets=len(seconds),
            width=width,
            height=height,
            fps=float(stream.average_rate or stream.guessed_rate or 0),
            variable_rate=_varies(np.sort(np.array(seconds)), float(stream.time_base or 0)),
            rotation_degrees=90 * ((turns or 0) % 4),
            codec=stream.codec_context.name,
            missing_bytes=missing_bytes(path),
            broken_off=broken_off(path),
        )


def _varies(seconds: NDArray[np.float64], tick_seconds: float) -> bool:
    """Do the gaps between frames differ by more than what rounding to the stream's clock explains?"""
    gaps = np.diff(seconds)
    return bool(len(gaps)) and bool(np.ptp(gaps) > 2.5 * tick_seconds + 1e-9)


def _time_at(index: int, fps: float) -> float:
    return index / fps if fps else float(index)


def _pixel_aspect(stream: av.VideoStream, *, turned: bool) -> float:
    """1 where the file does not say, or says nonsense."""
    aspect = float(stream.sample_aspect_ratio or 1)
    aspect = aspect if LEAST_ASPECT <= aspect <= 1 / LEAST_ASPECT else 1.0
    return 1 / aspect if turned else aspect


def _orientation(frame: av.VideoFrame) -> tuple[bool, int]:
    """What shows the frame upright: swap left and right or not, then so many counter-clockwise quarter turns.

    Not for every frame: one whose side data were looked at is freed only by the garbage collector.
    """
    turns = round(frame.rotation / 90)
    try:
        matrix = bytes(frame.side_data["DISPLAYMATRIX"])  # type: ignore[typeddict-item]
        a, b, _, c, d, *_ = np.frombuffer(matrix, dtype=np.int32).astype(float)
    except (KeyError, ValueError):  # no matrix, or something else on the frame that PyAV has no name for
        return False, turns % 4
    mirrored = bool(a * d < b * c)
    return mirrored, (turns + 2 * mirrored) % 4


def _before_gap(
    previous: av.VideoFrame | None, held_back: list[av.VideoFrame], last_dts: int | None
) -> list[av.VideoFrame]:
    """Of the frames that the decoder holds back for reordering, those before the first that was cut off.

    A B-frame comes later in the file than the frame it is shown before: the last frames may have lost one in between.
    """
    kept: list[av.VideoFrame] = []
    for frame in held_back:
        if previous is not None:
            if frame.pts is None or previous.pts is None:
                break
            settled = last_dts is not None and frame.pts <= last_dts
            if not settled and frame.pts - previous.pts > 1.5 * (previous.duration or 0):
                break
        kept.append(frame)
        previous = frame
    return kept


def _why_not_opened(path: Path, error: av.error.FFmpegError | OSError) -> str:
    if path.is_dir():
        return "a folder, not a video"
    if not path.stat().st_size:
        return "an empty file"
    if lacks_moov(path):
        return "an MP4 without its index (no moov atom): cut off, or its recording was never finished"
    return f"not a video that FFmpeg can open ({error.strerror})"


def estimated_frames(path: Path) -> int | None:
    """As the header says; None where it does not, or cannot be read."""
    try:
        with open_video(path) as (container, stream):
            if stream.frames:
                return stream.frames
            if container.duration is None or not stream.average_rate:
                return None
            return round(container.duration / av.time_base * float(stream.average_rate))
    except VideoError:
        return None
