"""Video decoder that yields all frames of a file or segment in display order, as RGB.

Frame counts in headers are unreliable, so frame t is defined as the t-th decoded frame. To read a
segment, the decoder seeks to an earlier keyframe if the format stores the time of every frame;
otherwise it decodes from the beginning.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import numpy as np
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from byov.data.dataset import WHOLE_FILE, FileSegment
from byov.errors import VideoError
from byov.files import check_regular
from byov.records import check_choice
from byov.text import pluralize

OnDamage = Literal["error", "keep"]
MAX_PIXELS = 70_000_000  # per frame: twice 8K, or 210 MB as RGB; FFmpeg buffers several frames
BLOCK_BYTES = 8 << 20
BLOCK_FRAMES = 16
DECODER = (
    f"PyAV {av.__version__}, libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"
)
# FFmpeg detects the format from the content, so a playlist renamed to x.mp4 could make it open
# other files and URLs. Only formats that contain their own data are allowed, and only from disk.
_OPEN_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,"
    "ogg,ivf,mxf,nut,rm,dv,"
    "h264,hevc,av1,mjpeg,gif,yuv4mpegpipe,wav,mp3,flac,aac",
}
# These formats store frames in coding order without display times, and FFmpeg's guesses are wrong
# for B-frames.
_FORMATS_WITHOUT_PTS = {"avi", "mpegvideo"}
# Formats whose header states the duration. For other formats FFmpeg estimates it, even if the file
# is truncated.
_FORMATS_WITH_DURATION = {
    "mov,mp4,m4a,3gp,3g2,mj2",
    "matroska,webm",
    "avi",
    "flv",
    "asf",
    "mxf",
    "ivf",
}
# Formats with a keyframe index and exact display times.
_SEEKABLE_FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
# Formats of the videos that we write: suffix -> FFmpeg format.
WRITTEN_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
# Start this long before a segment: frames shown before a keyframe may need earlier ones.
_SEEK_MARGIN_SECONDS = 1.0
_TOLERANCE_SECONDS = 0.001  # Matroska rounds times to milliseconds


@dataclass(frozen=True)
class DecodingPolicy:
    """Policy for truncated files, frames that FFmpeg marks as corrupt, and oversized frames."""

    on_truncated: OnDamage = "error"
    on_corrupt: OnDamage = "error"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_choice("on_truncated", self.on_truncated, OnDamage)
        check_choice("on_corrupt", self.on_corrupt, OnDamage)


STRICT = DecodingPolicy()


@dataclass(frozen=True)
class FrameBlock:
    """Consecutive frames of the same size."""

    pixels: NDArray[np.uint8]  # RGB, (T, H, W, 3)
    # (T,) presentation times, relative to the first frame of the video.
    pts_seconds: NDArray[np.float64]


class FrameReader:
    """Single-pass video reader. Its attributes are final once all frames have been read."""

    def __init__(
        self,
        path: Path,
        *,
        segment: FileSegment = WHOLE_FILE,
        threads: int = 1,
        policy: DecodingPolicy = STRICT,
    ) -> None:
        self.path = path
        self.fps = 0.0  # average frame rate; 0 if unknown
        # Width / height of a displayed pixel; valid from the first block on.
        self.pixel_aspect = 1.0
        self.truncated = False
        self.corrupt_frames = 0  # number of frames that FFmpeg marked as corrupt
        self._segment = segment
        self._source = f"{path}{segment.fragment}"
        # On errors, multi-threaded decoders drop frames in flight, so the result would depend on
        # the thread count.
        self._threads = 1 if policy.on_truncated == "keep" else threads
        self._policy = policy

    def blocks(self) -> Iterator[FrameBlock]:
        """Yield the frames in blocks of at most BLOCK_FRAMES frames and BLOCK_BYTES bytes (but at
        least one frame).
        """
        buffer = np.empty((0, 0, 0, 3), np.uint8)
        times: list[float] = []
        for image, time in self.images():
            if len(times) == len(buffer) or image.shape != buffer.shape[1:]:
                if times:
                    yield FrameBlock(buffer[: len(times)], np.array(times))
                capacity = max(1, min(BLOCK_FRAMES, BLOCK_BYTES // image.nbytes))
                buffer = np.empty((capacity, *image.shape), np.uint8)
                times = []
            buffer[len(times)] = image
            times.append(time)
        if times:
            yield FrameBlock(buffer[: len(times)], np.array(times))

    def images(self) -> Iterator[tuple[NDArray[np.uint8], float]]:
        """Yield upright RGB images `(H, W, 3)` and their times in seconds from the first image."""
        reformatter = VideoReformatter()
        rotation = None
        mirrored = False
        turns = 0
        offset = 0.0  # time of the first image
        for count, (frame, seconds) in enumerate(self._segment_frames()):
            self.corrupt_frames += frame.is_corrupt
            if frame.is_corrupt and self._policy.on_corrupt == "error":
                raise VideoError(
                    f"{self._source}: FFmpeg marks frame {count} as corrupt. Get a clean copy, or "
                    "use the frame anyway with --on-corrupt keep."
                )
            image = np.asarray(
                reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray(),
                dtype=np.uint8,
            )
            if frame.rotation != rotation:
                rotation = frame.rotation
                mirrored, turns = _orientation(frame)
            if count == 0:
                offset = seconds
                if turns % 2:
                    self.pixel_aspect = 1 / self.pixel_aspect
            image = image[:, ::-1] if mirrored else image
            # Round, because 1.3 - 1.2 < 0.1 in floating point: an event at 0.1 would come one
            # frame late.
            seconds_in_segment = round(seconds - offset, 9) if offset else seconds
            yield np.rot90(image, turns) if turns else image, seconds_in_segment

    def _segment_frames(self, *, seek: bool = True) -> Iterator[tuple[av.VideoFrame, float]]:
        """Yield the frames of the segment and their times in seconds from the first frame of the
        file.
        """
        start, end = self._range_seconds()
        seconds = 0.0
        is_empty = True
        with open_video(self.path) as (container, stream):
            if stream.width * stream.height > self._policy.max_pixels:
                raise VideoError(
                    f"{self._source}: frames of {stream.width} x {stream.height} pixels exceed the "
                    f"limit of {self._policy.max_pixels:,}. Downscale the video or raise "
                    "--max-pixels."
                )
            # Applies to size changes, too.
            stream.codec_context.options = {"max_pixels": str(self._policy.max_pixels)}
            stream.codec_context.thread_count = self._threads
            stream.codec_context.thread_type = "AUTO"
            self.fps = _frame_rate(stream)
            seek = (
                seek and start > _SEEK_MARGIN_SECONDS and container.format.name in _SEEKABLE_FORMATS
            )
            first_time = _seek(container, stream, start - _SEEK_MARGIN_SECONDS) if seek else None
            if seek and first_time is None:
                yield from self._segment_frames(seek=False)
                return
            for index, (frame, time) in enumerate(self._frames(container, stream)):
                first_time = time if first_time is None else first_time
                seconds = time - first_time
                if seek and index == 0 and time > first_time + start:  # wrong keyframe index
                    yield from self._segment_frames(seek=False)
                    return
                if seconds < start - _TOLERANCE_SECONDS:
                    continue
                if seconds >= end - _TOLERANCE_SECONDS:
                    return
                if is_empty:
                    is_empty = False
                    aspect = float(stream.sample_aspect_ratio or 1)
                    # Broadcast formats are between 0.7 and 2; values far outside come from broken
                    # headers.
                    self.pixel_aspect = aspect if 0.1 <= aspect <= 10 else 1.0
                yield frame, seconds
        problem = _outside(
            self._segment._replace(start=start, end=end, unit="s"), 0, seconds, self.fps
        )
        if is_empty or (problem and not self.truncated):
            raise VideoError(f"{self._source}: {problem or 'no frame in this segment'}")

    def _range_seconds(self) -> tuple[float, float]:
        """Return the segment in seconds from the first frame of the file."""
        start, end, unit = self._segment
        if unit == "s":
            return start, end
        with open_video(self.path) as (container, stream):
            packets = (
                packet
                for packet in container.demux(stream)
                if packet.size and not packet.is_discard
            )
            times = _frame_seconds(
                [_packet_time(container, packet) for packet in packets], _frame_rate(stream)
            )
        if problem := _outside(self._segment, len(times), 0.0, 0.0):
            raise VideoError(f"{self._source}: {problem}")
        return float(times[int(start)]), float(times[int(end)]) if end < len(times) else math.inf

    def _frames(
        self, container: av.container.InputContainer, stream: av.VideoStream
    ) -> Iterator[tuple[av.VideoFrame, float]]:
        """Yield decoded frames and their presentation times in seconds."""
        frames = 0
        packet_times: deque[float] = deque()  # in file order, for formats without display times
        end_seconds = 0.0
        problem = ""

        def timed(decoded: Iterable[av.VideoFrame]) -> Iterator[tuple[av.VideoFrame, float]]:
            nonlocal frames
            for frame in decoded:
                if packet_times:
                    time = packet_times.popleft()
                # frame.time is not set for the last frames.
                elif frame.pts is not None and stream.time_base:
                    time = float(frame.pts * stream.time_base)
                else:
                    time = frames / (self.fps or 1)
                frames += 1
                yield frame, time

        try:
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                if packet.is_corrupt:
                    problem = "incomplete packet"
                    break
                if container.format.name in _FORMATS_WITHOUT_PTS and packet.dts is not None:
                    packet_times.append(float(packet.dts * packet.time_base))
                end_seconds = max(end_seconds, _packet_end(packet))
                yield from timed(packet.decode())
            problem = problem or _missing_seconds(container, stream, end_seconds)
            # In a truncated file, a lost B-frame may precede the frames that are still in the
            # decoder.
            if not (problem and stream.codec_context.has_b_frames):
                yield from timed(stream.decode(None))
        except av.error.FFmpegError as error:
            problem = problem or str(error.strerror)
        if problem and self._policy.on_truncated == "error":
            raise VideoError(
                f"{self._source}: truncated after {pluralize(frames, 'frame')} ({problem}). Get a "
                "complete copy, or use the frames before the cut with --on-truncated keep."
            )
        if not frames:
            raise VideoError(f"{self._source}: no frame could be decoded")
        self.truncated = bool(problem)


@dataclass(frozen=True)
class Probe:
    """Properties of a video, determined without decoding more than the first frame."""

    frames: int  # number of video packets, usually the number of frames
    width: int  # as displayed, after rotation
    height: int
    fps: float  # average frame rate; 0 if unknown
    last_seconds: float  # time of the last frame, relative to the first
    truncation: str  # why the file is considered truncated; "" if it is not


def probe(path: Path, segment: FileSegment = WHOLE_FILE) -> Probe:
    """Inspect a video by counting packets and decoding only the first frame."""
    with open_video(path) as (container, stream):
        turns = None
        size = (stream.width, stream.height)
        times: list[float] = []
        end_seconds = 0.0
        truncation = ""
        try:
            for packet in container.demux(stream):
                if packet.size:
                    times.append(_packet_time(container, packet))
                    end_seconds = max(end_seconds, _packet_end(packet))
                    if packet.is_corrupt:
                        truncation = "incomplete packet"
                if turns is None:
                    for frame in packet.decode():
                        _, turns = _orientation(frame)
                        size = (frame.width, frame.height)
        except av.error.FFmpegError as error:
            truncation = str(error.strerror)
        width, height = size[::-1] if turns in (1, 3) else size
        fps = _frame_rate(stream)
        seconds = _frame_seconds(times, fps)
        if times:
            truncation = truncation or _outside(segment, len(seconds), float(seconds[-1]), fps)
        place = np.arange(len(seconds)) if segment.unit == "f" else seconds + _TOLERANCE_SECONDS
        seconds = seconds[(place >= segment.start) & (place < segment.end)]
        last_seconds = float(np.ptp(seconds)) if len(seconds) else 0.0
        truncation = truncation or _missing_seconds(container, stream, end_seconds)
        return Probe(len(seconds), width, height, fps, last_seconds, truncation)


def estimated_frames(path: Path, segment: FileSegment = WHOLE_FILE) -> int | None:
    """Estimate the frame count from the header; return None if it is unknown or the file cannot be
    opened.
    """
    with suppress(VideoError), open_video(path) as (container, stream):
        rate = _frame_rate(stream)
        frames = stream.frames or (container.duration or 0) / av.time_base * rate
        if segment != WHOLE_FILE:
            scale = rate if segment.unit == "s" else 1
            frames = min(frames, segment.end * scale if scale else 0) - segment.start * scale
        return round(frames) if frames > 0 else None
    return None


def _is_text(path: Path) -> bool:
    """Return whether a file starts with bytes that occur in text."""
    with path.open("rb") as file:
        return min(file.read(1024)) >= ord("\t")


@contextmanager
def open_video(path: Path) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Open a video file and select its first video stream, ignoring cover images."""
    try:
        check_regular(path)
        container = av.open(
            str(path.absolute()), "r", options=_OPEN_OPTIONS, metadata_errors="replace"
        )
    except FileNotFoundError:
        raise VideoError(f"{path}: no such file") from None
    except (av.error.FFmpegError, OSError) as error:
        if path.is_file() and not path.stat().st_size:
            raise VideoError(f"{path}: empty file. Copy it again.") from error
        if path.is_file() and _is_text(path):
            raise VideoError(f"{path}: a text file, not a video") from error
        raise VideoError(
            f"{path}: FFmpeg cannot open this file as a video ({error.strerror}). It may be "
            "truncated, or a recording that was never finalized."
        ) from error
    with container:
        streams = [
            stream
            for stream in container.streams.video
            if not stream.disposition & Disposition.attached_pic
        ]
        if not streams:
            raise VideoError(f"{path}: no video stream")
        if streams[0].codec_context is None:
            raise VideoError(
                f"{path}: this build of FFmpeg has no decoder for its codec. Convert the video to "
                "H.264."
            )
        yield container, streams[0]


def _frame_rate(stream: av.VideoStream) -> float:
    return float(stream.average_rate or stream.guessed_rate or 0)


def _packet_time(
    container: av.container.InputContainer, packet: "av.Packet[av.VideoStream]"
) -> float:
    stamp = packet.dts if container.format.name in _FORMATS_WITHOUT_PTS else packet.pts
    return math.nan if stamp is None else float(stamp * packet.time_base)


def _frame_seconds(times: Sequence[float], fps: float) -> NDArray[np.float64]:
    """Return sorted frame times relative to the first; assume a constant frame rate if a packet
    time is NaN.
    """
    seconds = np.sort(np.array(times, dtype=np.float64))
    if np.isnan(seconds).any():
        return np.arange(len(times)) / (fps or 1)
    return seconds - seconds[:1]


def _outside(segment: FileSegment, frames: int, last_seconds: float, fps: float) -> str:
    """Describe how a segment extends past the end of the file; return "" if it does not."""
    start, end, unit = segment
    end = max(start, end if end < math.inf else 0.0)
    # An end computed from a frame count may be off by one frame.
    last = frames if unit == "f" else last_seconds + (max(2 / fps, 0.1) if fps else 0.1)
    if end > last or (unit == "f" and start == frames):
        length = (
            pluralize(frames, "frame") if unit == "f" else f"its last frame at {last_seconds:.2f} s"
        )
        return f"the file has {length}, but the segment ends at {end:g} {unit}"
    return ""


def _seek(
    container: av.container.InputContainer, stream: av.VideoStream, seconds: float
) -> float | None:
    """Seek to a keyframe within `seconds` of the first frame; return the first frame's time, or
    None on failure.
    """
    try:
        first_time = next(container.decode(stream)).time
        if first_time is None or stream.time_base is None:
            return None
        container.seek(int((first_time + seconds) / stream.time_base), stream=stream)
    except (av.error.FFmpegError, StopIteration):
        return None
    return first_time


def _packet_end(packet: "av.Packet[av.VideoStream]") -> float:
    stamp = packet.pts if packet.pts is not None else packet.dts
    return 0.0 if stamp is None else float((stamp + (packet.duration or 0)) * packet.time_base)


def _missing_seconds(
    container: av.container.InputContainer, stream: av.VideoStream, end_seconds: float
) -> str:
    """Describe how much of the duration in the header is missing at the end of the file; "" if
    nothing is.
    """
    if container.format.name not in _FORMATS_WITH_DURATION:
        return ""
    if stream.duration is not None and stream.time_base:
        declared = float(stream.duration * stream.time_base)
    elif "DURATION" in stream.metadata:  # Matroska: "00:01:23.456000000"
        hours, minutes, seconds = stream.metadata["DURATION"].split(":")
        declared = 3600 * int(hours) + 60 * int(minutes) + float(seconds)
    # Duration of the longest stream.
    elif container.duration is not None and len(container.streams) == 1:
        declared = container.duration / av.time_base
    else:
        return ""
    # Headers may be off by one frame, and the duration of the last frame may be unknown.
    tolerance = max(2 / _frame_rate(stream), 0.1) if _frame_rate(stream) else 0.1
    if declared - end_seconds <= tolerance:
        return ""
    return f"it ends at {end_seconds:.2f} s but its header declares {declared:.2f} s"


def _orientation(frame: av.VideoFrame) -> tuple[bool, int]:
    """Return whether to mirror a frame, and how many counterclockwise quarter turns to rotate it by
    afterwards.

    Call it only when the rotation changes: a frame whose side data was accessed is freed only by
    the garbage collector.
    """
    turns = round(frame.rotation / 90)
    try:
        matrix = bytes(frame.side_data["DISPLAYMATRIX"])  # type: ignore[typeddict-item]
        a, b, _, c, d, *_ = np.frombuffer(matrix, dtype=np.int32).astype(float)
    except (KeyError, ValueError):  # no matrix, or side data of a type unknown to PyAV
        return False, turns % 4
    mirrored = bool(a * d < b * c)
    return mirrored, (turns + 2 * mirrored) % 4
