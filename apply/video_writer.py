"""Write H.264 videos: frames at given times, and two videos side by side."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import av.container
import av.error
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from byov.cache.atomic import creation, replacing
from byov.data.video import DecodingPolicy, FrameReader
from byov.errors import ApplyError
from byov.extract.extraction import decoder_threads
from byov.progress import NO_PROGRESS, Progress, track

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}  # suffix → FFmpeg's name
TICK = Fraction(1, 90_000)  # seconds; frame durations at common frame rates are whole ticks
DEFAULT_FPS = Fraction(25)  # for videos with one frame
MIN_FPS = Fraction(1, 1000)
GAP = 4  # pixels between the panels
MIN_ASPECT, MAX_ASPECT = 0.5, 4.0  # width / height of a panel; other frames get black borders
MAX_STRETCH = 0.02  # allowed to fill a panel of even width
JPEG_QUALITY = 95


def write_video(path: Path, images: Iterable[NDArray[np.uint8]], pts_seconds: NDArray[np.float64]) -> None:
    """Write a video atomically.

    Args:
        path: An .mp4, .mov or .mkv file.
        images: (height, width, 3) RGB images, all of one even size.
        pts_seconds: (T,) frame times. They are shifted to start at 0 and made strictly increasing.
    """
    order = np.arange(len(pts_seconds))
    ticks = np.round((pts_seconds - pts_seconds[0]) / float(TICK)).astype(np.int64)
    ticks = np.maximum.accumulate(ticks - order) + order  # strictly increasing, as containers require
    fps = DEFAULT_FPS
    if len(ticks) > 1:
        fps = max((Fraction(len(ticks) - 1) / (int(ticks[-1]) * TICK)).limit_denominator(1001), MIN_FPS)
    durations = np.diff(ticks, append=ticks[-1] + round(1 / (fps * TICK)))
    file_format = CONTAINERS[path.suffix.lower()]
    with replacing(path) as partial:
        try:
            # The index comes first in MP4 files, so that browsers can play the video while it loads.
            options = {} if file_format == "matroska" else {"movflags": "faststart"}
            with creation:
                opened = av.open(str(partial.absolute()), "w", format=file_format, options=options)
            with opened as container:
                stream = None
                for image, start, duration in zip(images, ticks.tolist(), durations.tolist(), strict=True):
                    stream = stream or _add_stream(container, fps, image.shape[1], image.shape[0])
                    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                    frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601)
                    frame.pts, frame.duration, frame.time_base = start, duration, TICK
                    container.mux(stream.encode(frame))
                if stream is not None:
                    container.mux(stream.encode(None))
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):  # such as a full disk
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise ApplyError(f"{path}: FFmpeg cannot write it ({error.strerror}).") from error


def _add_stream(container: av.container.OutputContainer, fps: Fraction, width: int, height: int) -> av.VideoStream:
    stream = container.add_stream("libx264", rate=fps, options={"preset": "veryfast", "crf": "20"})
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.codec_context.time_base = TICK
    stream.codec_context.colorspace = Colorspace.ITU601
    return stream


@dataclass(frozen=True)
class Side:
    """One of two videos to show side by side."""

    letter: str
    path: Path
    pts_seconds: NDArray[np.float64]  # (T,)
    event_seconds: Sequence[float] | None  # ascending; None if the phases are unknown

    def caption(self, frame: int) -> str:
        seconds = float(self.pts_seconds[frame])
        text = f"{self.letter}   {seconds:.2f} s"
        if self.event_seconds is None:
            return text
        return f"{text}   phase {np.searchsorted(self.event_seconds, seconds, side='right')}"

    def panels(self, height: int, policy: DecodingPolicy) -> Iterator[Image.Image]:
        """Decode the video and fit all frames into panels of the first frame's shape."""
        count, size = 0, None
        _, threads = decoder_threads(1)
        reader = FrameReader(self.path, threads=threads, policy=policy)
        for block in reader.blocks():
            for pixels in block.pixels:
                image = Image.fromarray(pixels)
                aspect = image.width * reader.pixel_aspect / image.height
                size = size or _panel_size(aspect, height)
                count += 1
                yield _fit(image, aspect, size)
        if count != len(self.pts_seconds):
            raise ApplyError(f"{self.path} changed: it had {len(self.pts_seconds)} frames, now {count}.")


class PanelStore:
    """Selected panels of a video, stored as JPEGs in one temporary file."""

    def __init__(self, path: Path, panels: Iterable[Image.Image], wanted: set[int]) -> None:
        self._path = path
        self._slices: dict[int, tuple[int, int]] = {}  # frame → offset, bytes
        with path.open("wb") as file:
            for frame, panel in enumerate(panels):
                if frame in wanted:
                    jpeg = io.BytesIO()
                    panel.save(jpeg, "JPEG", quality=JPEG_QUALITY)
                    try:
                        self._slices[frame] = (file.tell(), file.write(jpeg.getbuffer()))
                    except OSError as error:  # A full disk: the error does not name the file.
                        error.filename = str(path)
                        raise

    def read(self, frames: Sequence[int]) -> Iterator[Image.Image]:
        """Yield the panels of these frames, in this order."""
        with self._path.open("rb") as file:
            for frame in frames:
                offset, size = self._slices[frame]
                file.seek(offset)
                yield Image.open(io.BytesIO(file.read(size)))


def write_side_by_side(
    path: Path,
    a: Side,
    b: Side,
    matched: NDArray[np.int64],
    *,
    height: int,
    policy: DecodingPolicy,
    scratch: Path,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Write a video of A next to the matching frames of B, with captions and the frame times of A.

    Args:
        path: The output file.
        a: The video on the left.
        b: The video on the right.
        matched: (Ta,) matching frame of B for each frame of A.
        height: Height in pixels, even.
        policy: How to handle truncated and corrupt videos.
        scratch: A folder for a temporary file.
        progress: Advanced by one per frame of A.
    """
    frames = matched.tolist()
    store = PanelStore(scratch / "panels", b.panels(height, policy), set(frames))

    def images() -> Iterator[NDArray[np.uint8]]:
        pairs = zip(a.panels(height, policy), store.read(frames), strict=True)
        for frame, (left, right) in enumerate(track(pairs, progress, "drawing", unit="frame", total=len(frames))):
            image = Image.new("RGB", (left.width + GAP + right.width, height))
            image.paste(left, (0, 0))
            image.paste(right, (left.width + GAP, 0))
            draw_captions(image, [(0, a.caption(frame)), (left.width + GAP, b.caption(frames[frame]))])
            yield np.asarray(image)

    write_video(path, images(), a.pts_seconds)


def draw_captions(image: Image.Image, captions: Sequence[tuple[int, str]]) -> None:
    """Darken the bottom of an image and write captions on it, given as (left edge in pixels, text)."""
    width, height = image.size
    font_size = max(9, height // 20)
    band_height = min(height, 2 * font_size)
    band = (0, height - band_height, width, height)
    image.paste(image.crop(band).point(lambda value: value // 3), band)
    draw = ImageDraw.Draw(image)
    for left, text in captions:
        position = (left + band_height // 2, height - band_height // 2)
        draw.text(position, text, "white", ImageFont.load_default(font_size), anchor="lm")


def _panel_size(aspect: float, height: int) -> tuple[int, int]:
    """Return width and height of a panel; the width is even, as H.264 requires."""
    return 2 * max(1, round(height * min(max(aspect, MIN_ASPECT), MAX_ASPECT) / 2)), height


def _fit(image: Image.Image, aspect: float, size: tuple[int, int]) -> Image.Image:
    """Scale an image to a panel, with black borders if the aspect ratio differs."""
    width, height = size
    stretch = width / height / aspect
    if abs(stretch - 1) > MAX_STRETCH:
        width, height = (round(height * aspect), height) if stretch > 1 else (width, round(width / aspect))
    scaled = image.resize((max(1, width), max(1, height)), Image.Resampling.BICUBIC, reducing_gap=2)
    if scaled.size == size:
        return scaled
    panel = Image.new("RGB", size)
    panel.paste(scaled, ((size[0] - scaled.width) // 2, (size[1] - scaled.height) // 2))
    return panel
