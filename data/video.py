"""The video decoder: every frame from first to last, in order, as RGB.

Header counts and seeking are not trusted: frame t is the t-th frame that decoding to the end of the file gives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import av.container
import av.error
import numpy as np
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from byov.data.container import lacks_moov, missing_bytes
from byov.data.errors import VideoError

OnTruncated = Literal["error", "keep"]
DECODER = f"PyAV {av.__version__}, libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"
# A file's content decides how FFmpeg reads it, whatever its name: a playlist called x.mp4 would have it open other
# files and addresses. So only containers that hold their own data, and only from disk.
_OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,mxf,nut,rm,dv,"
    "h264,hevc,av1,mjpeg,gif,yuv4mpegpipe,wav,mp3,flac,aac",
}
BLOCK_BYTES = 8 << 20
BLOCK_FRAMES = 64


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
    """What can be said of a video without decoding it: its packets are counted, its first frame is decoded."""

    header_frames: int  # as the header says; 0 where it does not
    packets: int  # frames in the file; a rare codec decodes one more or one less
    width: int  # as shown, after rotation
    height: int
    fps: float
    variable_rate: bool
    rotation_degrees: int  # counter-clockwise, already applied to the size above
    codec: str
    missing_bytes: int  # by the container's own account; 0 if the file is whole


class Decoder:
    """One pass over a video. `blocks` may be consumed once; `fps` and `truncated` are known after it."""

    def __init__(self, path: Path, *, threads: int = 1, on_truncated: OnTruncated = "error") -> None:
        self.path = path
        self.fps = 0.0
        self.truncated = False
        self._threads = threads
        self._on_truncated = on_truncated
        self._reformatter = VideoReformatter()

    def blocks(self) -> Iterator[FrameBlock]:
        """All frames, in blocks of one size that stay below BLOCK_BYTES (or hold one frame)."""
        images: list[NDArray[np.uint8]] = []
        times: list[float] = []
        for image, time in self._frames():
            if images and (image.shape != images[0].shape or _full(images)):
                yield FrameBlock(np.stack(images), np.array(times))
                images, times = [], []
            images.append(image)
            times.append(time)
        if images:
            yield FrameBlock(np.stack(images), np.array(times))

    def _frames(self) -> Iterator[tuple[NDArray[np.uint8], float]]:
        count = 0
        with open_video(self.path) as (container, stream):
            stream.codec_context.thread_count = self._threads
            stream.codec_context.thread_type = "AUTO"
            self.fps = float(stream.average_rate or stream.guessed_rate or 0)
            first_time: float | None = None
            for frame in self._decoded(container, stream):
                time = frame.time if frame.time is not None else _time_at(count, self.fps)
                first_time = time if first_time is None else first_time
                count += 1
                yield self._to_rgb(frame), time - first_time
        if not count:
            raise VideoError(f"{self.path}: no frame could be decoded")

    def _decoded(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.VideoFrame]:
        count = 0
        try:
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    raise av.error.InvalidDataError(0, "packet cut off")
                for frame in packet.decode():
                    count += 1
                    yield frame
        except av.error.FFmpegError as error:
            self._broken_off(count, str(error.strerror))
            for frame in _flushed(stream):
                count += 1
                yield frame
        lacking = missing_bytes(self.path)
        if lacking and not self.truncated:
            self._broken_off(count, f"the file is {lacking} bytes short")

    def _broken_off(self, count: int, reason: str) -> None:
        if self._on_truncated == "error":
            raise VideoError(
                f"{self.path}: broken off after {count} frames ({reason}); get a whole copy, "
                "or keep the frames before the break with --on-truncated keep"
            )
        self.truncated = True

    def _to_rgb(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        converted = self._reformatter.reformat(frame, format="rgb24", threads=1)
        image = np.asarray(converted.to_ndarray(), dtype=np.uint8)
        turns = _quarter_turns(frame)
        return np.rot90(image, turns) if turns else image


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


def probe(path: Path) -> Probe:
    """Look at a video without decoding it."""
    with open_video(path) as (container, stream):
        turns, size, seconds = None, (stream.width, stream.height), []
        try:
            for packet in container.demux(stream):
                if packet.size:
                    seconds.append(float(packet.pts * packet.time_base) if packet.pts is not None else np.nan)
                if turns is None:
                    for frame in packet.decode():
                        turns, size = _quarter_turns(frame), (frame.width, frame.height)
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
        )


def _varies(seconds: NDArray[np.float64], tick_seconds: float) -> bool:
    """Do the gaps between frames differ by more than what rounding to the stream's clock explains?"""
    gaps = np.diff(seconds)
    return bool(len(gaps)) and bool(np.ptp(gaps) > 2.5 * tick_seconds + 1e-9)


def _full(images: list[NDArray[np.uint8]]) -> bool:
    return len(images) >= BLOCK_FRAMES or (len(images) + 1) * images[0].nbytes > BLOCK_BYTES


def _time_at(index: int, fps: float) -> float:
    return index / fps if fps else float(index)


def _quarter_turns(frame: av.VideoFrame) -> int:
    """Counter-clockwise quarter turns that show the frame upright."""
    return round(frame.rotation / 90) % 4


def _flushed(stream: av.VideoStream) -> list[av.VideoFrame]:
    """Frames that the decoder still holds back for reordering."""
    try:
        return stream.decode(None)
    except av.error.FFmpegError:
        return []


def _why_not_opened(path: Path, error: av.error.FFmpegError | OSError) -> str:
    if path.is_dir():
        return "a folder, not a video"
    if not path.stat().st_size:
        return "an empty file"
    if lacks_moov(path):
        return "an MP4 without its index (no moov atom): cut off, or its recording was never finished"
    return f"not a video that FFmpeg can open ({error.strerror})"
