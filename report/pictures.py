"""Pictures of video frames: find the source files, decode the frames, and encode them as clips or
JPEG, or darken the tokens that are not selected.
"""

import io
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from byov.errors import CacheError, VideoError
from byov.records import VIEWS
from byov.report.clips import ClipWriter
from byov.report.content import ProgressLabels, TokenSelection, VideoClip
from byov.report.examples import SplitEmbeddings, centers
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.progress import aligned_progress

# maximum size of a thumbnail in pixels
MAX_SIDE = 400
MAX_AREA = 400 * 300
QUALITY = 72  # JPEG quality
TOKEN_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
DARKENED = 0.15  # brightness of excluded patches
PROGRESS_FRAMES = 8
PROGRESS_PICTURE_PX = 160 * 120
PRELOADED_BYTES = 1 << 30
Pixels = NDArray[np.uint8]  # (height, width, 3)


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

    def read(self, header: Header, frames: Sequence[int], area: int) -> Iterator[Pixels]:
        """Decode frames of the video that a feature file was extracted from; see
        `read_frames`.
        """
        source = header.provenance
        return read_frames(
            self.find(source.video, source),
            frames,
            area,
            truncated=header.truncated,
            segment=parse_source(source.source_name)[1],
        )


def read_frames(
    path: Path,
    frames: Sequence[int],
    area: int = MAX_AREA,
    *,
    truncated: bool = False,
    segment: FileSegment = WHOLE_FILE,
) -> Iterator[Pixels]:
    """Decode frames of a segment, in ascending order, and scale all of them to the thumbnail size
    of the first.

    Raises:
        CacheError: If the file is too short or damaged; `truncated` accepts a file that was
            truncated at extraction.
    """
    remaining = deque(frames)
    first = 0
    size = (0, 0)
    # Corrupt frames are kept because they were already accepted during extraction.
    policy = DecodingPolicy(on_truncated="keep" if truncated else "error", on_corrupt="keep")
    reader = FrameReader(path, segment=segment, policy=policy)
    try:
        for block in reader.blocks():
            while remaining and remaining[0] < first + len(block.pixels):
                image = Image.fromarray(block.pixels[remaining.popleft() - first])
                if size == (0, 0):
                    width = image.width * reader.pixel_aspect
                    size = thumbnail_size(width, image.height, area)
                yield np.asarray(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0))
            if not remaining:
                return
            first += len(block.pixels)
    except (VideoError, OSError) as error:
        raise CacheError(str(error).replace(str(path), path.name)) from None
    raise CacheError(f"{path.name} has {first} frames, but frame {remaining[0]} is needed.")


def encode_video(
    frames: Iterable[tuple[int, Pixels]], stride: int, stills: Collection[int], frame_bytes: int
) -> tuple[VideoClip, dict[int, Pixels]]:
    """Encode every stride-th frame as a clip, and return it with the pixels of the stills.

    Args:
        frames: Frame numbers and pixels (height, width, 3), in ascending order.
        stride: Distance between the frames of the clip.
        stills: Frames to return.
        frame_bytes: Maximum mean size of a frame in the clip.
    """
    writer = None
    shown = {}
    for frame, pixels in frames:
        if writer is None:
            height, width = pixels.shape[:2]
            writer = ClipWriter(width, height, frame_bytes)
        if frame % stride == 0:
            writer.add(pixels)
        if frame in stills:
            shown[frame] = pixels
    assert writer is not None, "videos have at least one frame"
    return VideoClip(writer.finish(), width, height, stride), shown


def thumbnail_size(width: float, height: float, area: int = MAX_AREA) -> tuple[int, int]:
    """Return the (width, height) of a thumbnail, limited by MAX_SIDE, `area` and the size of the
    frame. Both are even, as H.264 requires.

    >>> thumbnail_size(640, 480), thumbnail_size(640, 640), thumbnail_size(100, 51)
    ((400, 300), (346, 346), (100, 52))
    """
    scale = min(1.0, MAX_SIDE / max(width, height), sqrt(area / (width * height)))
    return max(2, 2 * round(width * scale / 2)), max(2, 2 * round(height * scale / 2))


def jpeg_bytes(picture: Image.Image, quality: int = QUALITY) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality, optimize=True)
    return encoded.getvalue()


def token_selection(
    data: SplitEmbeddings, video: int, pixels: Mapping[int, Pixels]
) -> TokenSelection:
    """Darken the tokens excluded at each ratio in some frames of a video, given their pixels."""
    header = data.feature_header(video)
    order = read_array(header.path, "order")
    tokens = order.shape[1]
    if not tokens or isqrt(tokens) ** 2 != tokens or order.max() >= tokens:
        raise CacheError(f"the tokens of {data.segments[video].name} do not form a square grid")
    cropped = header.provenance.preprocessing.startswith("crop")
    pictures = [
        [
            darken_excluded(picture, order[frame], ratio, cropped=cropped)
            for frame, picture in pixels.items()
        ]
        for ratio in TOKEN_RATIOS
    ]
    return TokenSelection(video, tuple(pixels), TOKEN_RATIOS, np.array(pictures))


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
            pictures = np.stack([*sources.read(header, frames, PROGRESS_PICTURE_PX)])
        shown.append(ProgressLabels(f"{view}/{video.id}", label, frames, pictures))
    return tuple(shown)
