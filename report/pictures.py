"""Pictures of video frames: find the source files, decode the frames, and encode them as JPEG or
darken the tokens that are not selected.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import isqrt, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.cache.digests import fingerprint, segment_digest
from byov.cache.features import Header, Provenance, video_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import selected_tokens
from byov.cache.manifest import read_sources
from byov.data.dataset import WHOLE_FILE, FileSegment, parse_source
from byov.data.video import DecodingPolicy, FrameReader
from byov.device import usable_cores
from byov.errors import CacheError, VideoError
from byov.records import VIEWS
from byov.report.content import Pictures, ProgressLabels, TokenSelection, Unavailable
from byov.report.examples import SplitEmbeddings, centers
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.progress import aligned_progress

# maximum size of a thumbnail in pixels
MAX_SIDE = 400
MAX_AREA = 400 * 300
BYTES_PER_PIXEL = 0.1  # low estimate for JPEG; larger thumbnails are scaled down
MIN_SCALE = 0.1
QUALITY = 72  # JPEG quality
TOKEN_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
DARKENED = 0.15  # brightness of excluded patches
PROGRESS_FRAMES = 8
PROGRESS_PICTURE_PX = 160 * 120
PRELOADED_BYTES = 1 << 30
Pixels = NDArray[np.uint8]  # (n, height, width, 3)


class SourceVideos:
    """Video files of a dataset, searched for recursively in a folder, then at the paths recorded in
    the cache.
    """

    def __init__(self, dataset_folder: Path, search_folder: Path | None = None) -> None:
        self._by_name: dict[str, list[Path]] = {}
        for path in sorted(search_folder.rglob("*")) if search_folder is not None else ():
            self._by_name.setdefault(path.name, []).append(path)
        self._recorded: dict[str, Path] = {}
        with suppress(CacheError):
            self._recorded.update(read_sources(dataset_folder))

    def find(self, video_id: str, provenance: Provenance) -> Path:
        """Return the file of a video, verified by size and fingerprint; raise CacheError if it is
        not found.
        """
        name, segment = parse_source(provenance.source_name)
        problem = "was not found. Pass its folder with --videos."
        recorded = [self._recorded[video_id]] if video_id in self._recorded else []
        for path in self._by_name.get(name, []) + recorded:
            with suppress(OSError):  # the file is unreadable, or its name is invalid on this system
                same_size = path.stat().st_size == provenance.source_bytes
                digest = segment_digest(fingerprint(path), segment.fragment)
                if same_size and digest == provenance.source_fingerprint:
                    return path
                problem = "has changed since it was extracted. Extract it again with byov-extract."
        raise CacheError(f"{name} {problem}")

    def decode(self, header: Header, frames: Sequence[int], area: int) -> Pixels:
        """Decode frames of the video that a feature file was extracted from; see
        `decode_frames`.
        """
        source = header.provenance
        return decode_frames(
            self.find(source.video, source),
            frames,
            area,
            truncated=header.truncated,
            segment=parse_source(source.source_name)[1],
        )


def decode_frames(
    path: Path,
    frames: Sequence[int],
    area: int = MAX_AREA,
    *,
    truncated: bool = False,
    segment: FileSegment = WHOLE_FILE,
) -> Pixels:
    """Decode frames of a segment, in ascending order, and scale all of them to the thumbnail size
    of the first.

    Raises:
        CacheError: If the file is too short or damaged; `truncated` accepts a file that was
            truncated at extraction.
    """
    pixels: list[NDArray[np.uint8]] = []
    first = 0
    size = (0, 0)
    # Corrupt frames are kept because they were already accepted during extraction.
    policy = DecodingPolicy(on_truncated="keep" if truncated else "error", on_corrupt="keep")
    reader = FrameReader(path, segment=segment, policy=policy)
    try:
        for block in reader.blocks():
            for frame in (frame for frame in frames if first <= frame < first + len(block.pixels)):
                image = Image.fromarray(block.pixels[frame - first])
                size = (
                    size
                    if pixels
                    else thumbnail_size(image.width * reader.pixel_aspect, image.height, area)
                )
                pixels.append(
                    np.asarray(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0))
                )
            first += len(block.pixels)
            if len(pixels) == len(frames):
                return np.stack(pixels)
    except (VideoError, OSError) as error:
        raise CacheError(str(error).replace(str(path), path.name)) from None
    raise CacheError(f"{path.name} has {first} frames, but frame {frames[len(pixels)]} is needed.")


def thumbnail_size(width: float, height: float, area: int = MAX_AREA) -> tuple[int, int]:
    """Return the (width, height) of a thumbnail, limited by MAX_SIDE, `area` and the size of the
    frame.

    >>> thumbnail_size(640, 480), thumbnail_size(640, 640), thumbnail_size(100, 50)
    ((400, 300), (346, 346), (100, 50))
    """
    scale = min(1.0, MAX_SIDE / max(width, height), sqrt(area / (width * height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def thumbnail_area(frames: int, picture_bytes: int) -> int:
    """Return the number of pixels per thumbnail for which all frames should fit into
    `picture_bytes` as JPEG.
    """
    return max(min(MAX_AREA, int(picture_bytes / max(frames, 1) / BYTES_PER_PIXEL)), 1)


def encode_pictures(
    videos: Sequence[Pixels | Unavailable], picture_bytes: int
) -> list[Pictures | Unavailable]:
    """Encode the frames of all videos as JPEG in at most `picture_bytes`, scaled down uniformly if
    necessary.
    """
    scale = 1.0
    while True:
        with ThreadPoolExecutor(usable_cores()) as pool:
            encoded = list(pool.map(partial(_encode, scale=scale), videos))
        total = sum(len(jpeg) for pictures in encoded for jpeg in pictures or ())
        if total <= picture_bytes or scale < MIN_SCALE:
            return encoded
        scale *= 0.95 * sqrt(picture_bytes / total)


def _encode(pixels: Pixels | Unavailable, scale: float) -> Pictures | Unavailable:
    if isinstance(pixels, Unavailable):
        return pixels
    size = tuple(max(1, round(side * scale)) for side in pixels.shape[2:0:-1])
    return tuple(
        jpeg_bytes(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS))
        for frame in pixels
    )


def jpeg_bytes(picture: Image.Image, quality: int = QUALITY) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality, optimize=True)
    return encoded.getvalue()


def token_selection(
    data: SplitEmbeddings,
    video: int,
    frames: tuple[int, ...],
    samples: Sequence[int],
    pixels: Pixels | Unavailable,
) -> TokenSelection:
    """Darken the tokens excluded at each ratio in some frames of a video, given the pixels of its
    samples.
    """
    if isinstance(pixels, Unavailable):
        raise CacheError(pixels.reason)
    header = data.feature_header(video)
    order = read_array(header.path, "order")
    tokens = order.shape[1]
    if not tokens or isqrt(tokens) ** 2 != tokens or order.max() >= tokens:
        raise CacheError(f"the tokens of {data.segments[video].name} do not form a square grid")
    cropped = header.provenance.preprocessing.startswith("crop")
    pictures = [
        [
            darken_excluded(pixels[samples.index(frame)], order[frame], ratio, cropped=cropped)
            for frame in frames
        ]
        for ratio in TOKEN_RATIOS
    ]
    return TokenSelection(video, frames, TOKEN_RATIOS, np.array(pictures))


def darken_excluded(
    pixels: NDArray[np.uint8], order: NDArray[np.uint16], ratio: float, *, cropped: bool
) -> NDArray[np.uint8]:
    """Darken the patches of an (H, W, 3) picture that token merging excludes at a ratio.

    `order` lists the (N,) token indices by decreasing change. If `cropped` is True, they cover only
    the central square.
    """
    selected = np.zeros(len(order), np.bool_)
    selected[order[: selected_tokens(len(order), ratio)]] = True
    height, width = pixels.shape[:2]
    covered = (min(height, width),) * 2 if cropped else (width, height)
    mask = Image.new("1", (width, height))
    patches = Image.fromarray(selected.reshape(isqrt(len(order)), -1))
    mask.paste(
        patches.resize(covered, Image.Resampling.NEAREST),
        ((width - covered[0]) // 2, (height - covered[1]) // 2),
    )
    bright = np.asarray(mask)[..., None]
    return np.where(bright, pixels, np.round(pixels * DARKENED)).astype(np.uint8)


def progress_labels(data: SplitEmbeddings, sources: SourceVideos) -> tuple[ProgressLabels, ...]:
    """Return, for each view, the labels of the training video in which they differ most from
    normalized time.
    """
    run = data.reader.run
    if run.settings.get("method") != "timeline" or run.settings.get("progress_labels") != "aligned":
        return ()
    training = open_training_data(data.features_dir, run.dataset, run.encoder_folder, run.ratio)
    videos = training.split("train")
    store = FeatureStore(training, videos, PRELOADED_BYTES)
    labels = aligned_progress(videos, [video.view for video in videos], store.read, run.seed)
    shown = []
    for view in VIEWS:
        gaps = [
            np.abs(label.numpy() - np.linspace(0, 1, len(label))).mean()
            if video.view == view
            else 0.0
            for video, label in zip(videos, labels, strict=True)
        ]
        if not max(gaps, default=0.0):
            continue
        video = videos[int(np.argmax(gaps))]
        label = labels[int(np.argmax(gaps))].double().numpy()
        frames = centers(len(label), PROGRESS_FRAMES)
        header = video_header(training.folder, video)
        pictures = None
        with suppress(CacheError):
            pictures = sources.decode(header, frames, PROGRESS_PICTURE_PX)
        shown.append(ProgressLabels(f"{view}/{video.id}", label, frames, pictures))
    return tuple(shown)
