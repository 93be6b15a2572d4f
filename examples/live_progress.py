"""Draw the progress and phase of an action on webcam images, or on a video file played in real
time.

python examples/live_progress.py datasets/demo/test/ego/test_ego_00.mp4 --run live -o annotated.mp4
python examples/live_progress.py /dev/video0 --run live --preview now.jpg    # a webcam on Linux;
stop with Ctrl-C

Open now.jpg in a viewer that reloads it. The frame rate should match that of the training videos.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import byov

TICK = Fraction(1, 90_000)  # seconds


def read_frames(source: str, *, pace: bool) -> Iterator[tuple[np.ndarray, float]]:
    """Yield RGB frames and their times in seconds; files are played in real time if `pace` is
    true.
    """
    is_file = Path(source).is_file()
    options = {} if is_file else {"format": "v4l2"}  # a camera on Linux
    started = time.monotonic()
    with av.open(source, **options) as container:
        for index, frame in enumerate(container.decode(video=0)):
            seconds = float(frame.time or 0.0) if is_file else time.monotonic() - started
            if pace and is_file:
                time.sleep(max(0.0, seconds - (time.monotonic() - started)))
            yield frame.to_ndarray(format="rgb24"), seconds if is_file or index else 0.0


def draw(frame: np.ndarray, progress: float, phase: str | None) -> Image.Image:
    """Draw a progress bar and the phase at the bottom of a frame, cropped to an even size, as H.264
    requires.
    """
    image = Image.fromarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
    width, height = image.size
    bar = max(4, height // 24)
    canvas = ImageDraw.Draw(image)
    canvas.rectangle((0, height - bar, width, height), fill=(40, 40, 40))
    canvas.rectangle((0, height - bar, round(progress * width), height), fill=(60, 200, 90))
    canvas.text(
        (bar, height - 2 * bar),
        f"{progress:4.0%}  {phase or ''}",
        "white",
        ImageFont.load_default(max(10, height // 16)),
        anchor="ls",
        stroke_width=1,
        stroke_fill="black",
    )
    return image


@contextmanager
def video_file(path: Path) -> Iterator[Callable[[Image.Image, float], None]]:
    """Open an .mp4 file and yield a function that appends an image with its presentation time in
    seconds.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "veryfast"})
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = TICK

        def write(image: Image.Image, seconds: float) -> None:
            if not stream.codec_context.is_open:
                stream.width, stream.height = image.size
            frame = av.VideoFrame.from_image(image)
            frame.pts = round(seconds / TICK)
            frame.time_base = TICK
            container.mux(stream.encode(frame))

        try:
            yield write
        finally:
            container.mux(stream.encode(None))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="video file or camera, such as /dev/video0")
    parser.add_argument("--run", help="name of the run (default: the newest)")
    parser.add_argument("-o", "--out", type=Path, help="annotated output video (.mp4)")
    parser.add_argument(
        "--preview", type=Path, help="image (.jpg) that always shows the newest frame"
    )
    parser.add_argument(
        "--fast", action="store_true", help="process a file as fast as possible, not in real time"
    )
    arguments = parser.parse_args()
    # Shows a warning if the run is not suitable for live video.
    logging.basicConfig(format="%(message)s")
    try:
        stream = byov.load_run(arguments.run).stream()
        output = video_file(arguments.out) if arguments.out else nullcontext()
        with output as write, suppress(KeyboardInterrupt):
            for frame, seconds in read_frames(arguments.source, pace=not arguments.fast):
                _, progress, phase = stream.push(frame)
                print(
                    f"\r{seconds:7.2f} s {progress:4.0%} {'#' * round(20 * progress):20} "
                    f"{phase or '':40.40}",
                    end="",
                )
                image = draw(frame, progress, phase)
                if write:
                    write(image, seconds)
                if arguments.preview:
                    image.save(arguments.preview)
    except (byov.ByovError, av.error.FFmpegError, OSError) as error:
        sys.exit(f"\nerror: {error}")
    print()


if __name__ == "__main__":
    main()
