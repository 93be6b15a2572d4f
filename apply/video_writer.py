"""Pictures as an H.264 video, each at its own time."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

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

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}  # ending → FFmpeg's name
TICK = Fraction(1, 90_000)  # seconds; of the usual rates, all are whole numbers of these
DEFAULT_FPS = Fraction(25)  # of a video of one frame
LEAST_FPS = Fraction(1, 1000)  # of a video with a gap of hours in its times
_ENCODING = {"preset": "veryfast", "crf": "20"}
_INDEX_FIRST = {"movflags": "faststart"}  # so that a browser can play it while it loads


def write_video(path: Path, pictures: Iterable[NDArray[np.uint8]], pts_seconds: NDArray[np.float64]) -> None:
    """pictures: (height, width, 3) RGB, of one even size; pts_seconds: (T,) the time of each. Whole or not at all."""
    ticks = _rising_ticks(pts_seconds)
    fps = _average_fps(ticks)
    durations = np.diff(ticks, append=ticks[-1] + round(1 / (fps * TICK)))
    with replacing(path) as partial:
        try:
            with _open(partial, CONTAINERS[path.suffix.lower()]) as container:
                stream = None
                for picture, start, duration in zip(pictures, ticks.tolist(), durations.tolist(), strict=True):
                    stream = stream or _add_stream(container, fps, picture.shape[1], picture.shape[0])
                    container.mux(stream.encode(_frame(picture, start, duration)))
                if stream is not None:
                    container.mux(stream.encode(None))
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):  # of the disk
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise ApplyError(f"{path}: FFmpeg cannot write it ({error.strerror})") from error


def _open(partial: Path, container_format: str) -> av.container.OutputContainer:
    with creation:
        options = {} if container_format == "matroska" else _INDEX_FIRST
        return av.open(str(partial.absolute()), "w", format=container_format, options=options)


def _add_stream(container: av.container.OutputContainer, fps: Fraction, width: int, height: int) -> av.VideoStream:
    stream = container.add_stream("libx264", rate=fps, options=_ENCODING)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.codec_context.time_base = TICK
    stream.codec_context.colorspace = Colorspace.ITU601  # as the pictures are converted
    return stream


def _frame(picture: NDArray[np.uint8], start: int, duration: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601)
    frame.pts, frame.duration, frame.time_base = start, duration, TICK
    return frame


def _rising_ticks(pts_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole ticks from 0, each at least one after the one before: a container takes no two frames of one time."""
    order = np.arange(len(pts_seconds))
    ticks = np.round((pts_seconds - pts_seconds[0]) / float(TICK)).astype(np.int64)
    rising: NDArray[np.int64] = np.maximum.accumulate(ticks - order) + order
    return rising


def _average_fps(ticks: NDArray[np.int64]) -> Fraction:
    if len(ticks) < 2:
        return DEFAULT_FPS
    rate = (Fraction(len(ticks) - 1) / (int(ticks[-1]) * TICK)).limit_denominator(1001)
    return max(rate, LEAST_FPS)


GAP = 4  # pixels between the panels
NARROWEST, WIDEST = 0.5, 4.0  # width over height of a panel; frames beyond get black borders
MOST_STRETCHED = 0.02  # to the even width of their panel; other frames get black borders
JPEG_QUALITY = 95


@dataclass(frozen=True)
class Side:
    """One of the two videos, and what its captions say."""

    letter: str
    path: Path
    pts_seconds: NDArray[np.float64]  # (T,)
    event_seconds: Sequence[float] | None  # in order; None if its phases are not known

    def caption(self, frame: int) -> str:
        seconds = float(self.pts_seconds[frame])
        text = f"{self.letter}   {seconds:.2f} s"
        if self.event_seconds is None:
            return text
        return f"{text}   phase {np.searchsorted(self.event_seconds, seconds, side='right')}"

    def panels(self, height: int, policy: DecodingPolicy) -> Iterator[Image.Image]:
        """All frames in the panel of the first one; as many as there were when the video was embedded."""
        count, size = 0, None
        _, threads = decoder_threads(1)
        reader = FrameReader(self.path, threads=threads, policy=policy)
        for block in reader.blocks():
            for pixels in block.pixels:
                frame = Image.fromarray(pixels)
                shape = frame.width * reader.pixel_aspect / frame.height
                size = size or _panel_size(shape, height)
                count += 1
                yield _fitted(frame, shape, size)
        if count != len(self.pts_seconds):
            raise ApplyError(f"{self.path}: had {len(self.pts_seconds)} frames, now {count}; do not write to it yet")


class PanelStore:
    """Some frames of a video as panels, in one file."""

    def __init__(self, path: Path, side: Side, wanted: set[int], height: int, policy: DecodingPolicy) -> None:
        self._path = path
        self._places: dict[int, tuple[int, int]] = {}  # frame → where in the file, and how many bytes
        with path.open("wb") as file:
            for index, panel in enumerate(side.panels(height, policy)):
                if index in wanted:
                    self._places[index] = (file.tell(), self._append(file, panel))

    def _append(self, file: BinaryIO, panel: Image.Image) -> int:
        """Returns the number of bytes."""
        jpeg = io.BytesIO()
        panel.save(jpeg, "JPEG", quality=JPEG_QUALITY)
        try:
            return file.write(jpeg.getbuffer())
        except OSError as error:  # of a full disk, which does not say what it has no room for
            error.filename = str(self._path)
            raise

    def take(self, frames: Sequence[int]) -> Iterator[Image.Image]:
        """These frames, in this order, with repeats."""
        with self._path.open("rb") as file:
            for frame in frames:
                start, size = self._places[frame]
                file.seek(start)
                yield Image.open(io.BytesIO(file.read(size)))


class Captions:
    """A line of text at the bottom of each panel."""

    def __init__(self, height: int) -> None:
        self._font = ImageFont.load_default(max(9, height // 20))
        self._band = min(height, 2 * max(9, height // 20))  # rows that the text stands in

    def draw(self, picture: Image.Image, texts: Sequence[tuple[int, str]]) -> Image.Image:
        """texts: where they begin, in pixels from the left, and what they say."""
        width, height = picture.size
        below = (0, height - self._band, width, height)
        picture.paste(picture.crop(below).point(lambda value: value // 3), below)
        pen = ImageDraw.Draw(picture)
        for left, text in texts:
            pen.text((left + self._band // 2, height - self._band // 2), text, "white", self._font, anchor="lm")
        return picture


def write_side_by_side(
    out: Path,
    a: Side,
    b: Side,
    matched: NDArray[np.int64],
    *,
    height: int,
    policy: DecodingPolicy,
    scratch: Path,
    progress: Progress = NO_PROGRESS,
) -> None:
    """matched (Ta,): for each frame of A, that of B. scratch: a folder for B's frames."""
    frames = matched.tolist()
    panels = PanelStore(scratch / "panels", b, set(frames), height, policy)
    captions = Captions(height)

    def pictures() -> Iterator[NDArray[np.uint8]]:
        pairs = zip(a.panels(height, policy), panels.take(frames), strict=True)
        drawn = track(pairs, progress, "drawing", unit="frame", total=len(frames))
        for index, (left, right) in enumerate(drawn):
            texts = [(0, a.caption(index)), (left.width + GAP, b.caption(frames[index]))]
            yield np.asarray(captions.draw(_joined(left, right), texts))

    write_video(out, pictures(), a.pts_seconds)


def _panel_size(shape: float, height: int) -> tuple[int, int]:
    """Width and height of a panel for frames of a shape (width over height); both even, as H.264 needs them."""
    return 2 * max(1, round(height * min(max(shape, NARROWEST), WIDEST) / 2)), height


def _fitted(frame: Image.Image, shape: float, size: tuple[int, int]) -> Image.Image:
    """The frame, shown in its shape, in the middle of a panel."""
    width, height = size
    stretched = width / height / shape
    if abs(stretched - 1) > MOST_STRETCHED:  # else it fills the panel
        width, height = (round(height * shape), height) if stretched > 1 else (width, round(width / shape))
    scaled = frame.resize((max(1, width), max(1, height)), Image.Resampling.BICUBIC, reducing_gap=2)
    if scaled.size == size:
        return scaled
    panel = Image.new("RGB", size)
    panel.paste(scaled, ((size[0] - scaled.width) // 2, (size[1] - scaled.height) // 2))
    return panel


def _joined(left: Image.Image, right: Image.Image) -> Image.Image:
    picture = Image.new("RGB", (left.width + GAP + right.width, left.height))
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    return picture
