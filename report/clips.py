"""Short video clips for HTML pages, encoded as H.264 so that a browser can seek to any frame."""

import io
from fractions import Fraction

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

# In a clip, every frame lasts 1 / CLIP_FPS seconds, so that frame i is at the same time in every
# clip. Pages know the true times of the frames.
CLIP_FPS = 25
KEYFRAME_INTERVAL = 8  # seeking takes about 10 ms; with 15, clips are 20% smaller
CRF = 26  # quality: lower is better
PEAK_FRAMES = 2 * CLIP_FPS  # frames over which the size limit is averaged


class ClipWriter:
    """Encodes RGB frames (height, width, 3), all of the same even size, as an MP4 file.

    Args:
        width: Width of the frames.
        height: Height of the frames.
        frame_bytes: Maximum mean size of an encoded frame.
    """

    def __init__(self, width: int, height: int, frame_bytes: int) -> None:
        self._file = io.BytesIO()
        self._container = av.open(self._file, "w", format="mp4")
        peak = 8 * frame_bytes
        options = {
            "preset": "medium",
            "crf": str(CRF),
            "g": str(KEYFRAME_INTERVAL),
            "bf": "0",  # decoding order is display order, so times start at 0
            "threads": "1",  # several clips are encoded in parallel
            "maxrate": str(peak * CLIP_FPS),
            "bufsize": str(peak * PEAK_FRAMES),
        }
        self._stream = self._container.add_stream("libx264", rate=CLIP_FPS, options=options)
        self._stream.width = width
        self._stream.height = height
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.colorspace = Colorspace.ITU601
        self._frames = 0

    def add(self, pixels: NDArray[np.uint8]) -> None:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601)
        frame.pts = self._frames
        frame.time_base = Fraction(1, CLIP_FPS)
        self._frames += 1
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> bytes:
        """Return the contents of the file."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._file.getvalue()
