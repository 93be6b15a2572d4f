"""Factories for synthetic videos, caches and runs."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from safetensors.numpy import save

from byov.cache.embeddings import EmbeddingProvenance, training_digests, write_embedding
from byov.cache.features import FeatureWriter, Provenance, video_digests
from byov.cache.layout import prefix_lengths, ratio_key
from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.runs import embedding_path, embeddings_folder

CLIP = "openai/clip-vit-base-patch16"
TOKENS = 9
SOURCE_SHA256 = "cd" * 32
PHASES = ("reach", "pour", "leave")
UNTRAINED_SHA256 = hashlib.sha256(b"untrained").hexdigest()
# x264's assembly code reads uninitialized memory, so its output varies from run to run.
REPRODUCIBLE = {"libx264": {"x264-params": "asm=0"}}


class Call:
    """Object that, when unpickled, calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def read_files(folder: Path) -> dict[str, bytes]:
    """Return a dict mapping file names in a folder to contents, without index.json, which contains
    timestamps.
    """
    files = (
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "index.json"
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_file(path: Path, content: bytes | str = b"") -> Path:
    """Write a file and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def gray_images(count: int, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Make RGB images; image i has gray level 20 + 10 i."""
    return [np.full((height, width, 3), 20 + 10 * index, np.uint8) for index in range(count)]


def moving_images(count: int = 40) -> list[np.ndarray]:
    """Make textured images that move and brighten, so that lost bytes change the picture."""
    picture = np.random.default_rng(0).integers(0, 64, (48, 64, 3)).astype(np.uint8)
    return [np.roll(picture, 2 * index, axis=1) + np.uint8(3 * index) for index in range(count)]


def write_video(
    path: Path,
    images: Sequence[np.ndarray] | int = 3,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    fps: int = 10,
    options: Mapping[str, str] | None = None,
    container: str | None = None,
    container_options: Mapping[str, str] | None = None,
    pts_milliseconds: Sequence[int] | None = None,
    rotation: int = 0,
    hflip: bool = False,
    vflip: bool = False,
) -> Path:
    """Write a video of the given RGB images, or of a number of gray images, with reproducible
    bytes.
    """
    images = gray_images(images) if isinstance(images, int) else images
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format=container, options=dict(container_options or {})) as output:
        stream = output.add_stream(
            codec, rate=fps, options=REPRODUCIBLE.get(codec, {}) | dict(options or {})
        )
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = pix_fmt
        if rotation or hflip or vflip:
            stream.set_display_rotation(rotation, hflip=hflip, vflip=vflip)
        if pts_milliseconds is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, image in enumerate(images):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            # The encoder's own conversion uses several threads and occasionally garbles images of
            # odd sizes.
            frame = VideoReformatter().reformat(picture, format=pix_fmt, threads=1)
            if pts_milliseconds is not None:
                frame.pts = pts_milliseconds[index]
                frame.time_base = Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def write_noise_videos(folder: Path, frames: Sequence[int], name: str = "mine") -> Path:
    """Write videos v0, v1, ... of changing noise with the given frame counts; return the CSV that
    lists them.
    """
    lines = ["path,view,split"]
    for index, count in enumerate(frames):
        write_noise_video(folder / f"v{index}.mp4", count, seed=index)
        lines.append(f"v{index}.mp4,{('ego', 'exo')[index % 2]},train")
    return write_file(folder / f"{name}.csv", "\n".join(lines) + "\n")


def write_noise_video(path: Path, frames: int, *, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    images = [random.integers(0, 256, (32, 48, 3))]
    for _ in range(frames - 1):
        images.append(np.clip(images[-1] + random.integers(-40, 41, images[-1].shape), 0, 255))
    return write_video(path, [image.astype(np.uint8) for image in images], fps=15)


def make_provenance(**changes: Any) -> Provenance:
    values: dict[str, Any] = {
        "video": "a",
        "view": "ego",
        "encoder": CLIP,
        "encoder_revision": "",
        "encoder_sha256": "ab" * 32,
        "preprocessing": "squash 224",
        "compute_dtype": "float32",
        "decoder": "PyAV 14",
        "source_name": "Küche 1.mp4",
        "source_bytes": 12345,
        "source_sha256": SOURCE_SHA256,
        "source_fingerprint": "ef" * 32,
    }
    return Provenance(**(values | changes))


def write_features(
    path: Path,
    merged: Mapping[float, np.ndarray],
    *,
    cls: np.ndarray | None = None,
    order: np.ndarray | None = None,
    fps: float = 30.0,
    **provenance: Any,
) -> Path:
    """Write the feature file of a video; `merged` maps ratios to features (T, width).

    Other keyword arguments change the provenance, which is otherwise derived from the path.
    """
    provenance = {"video": path.stem, "view": path.parent.name} | provenance
    frames = len(next(iter(merged.values())))
    order = np.tile(np.arange(TOKENS, dtype=np.uint16), (frames, 1)) if order is None else order
    rows = {
        f"merged/{ratio_key(ratio)}": values.astype(np.float16) for ratio, values in merged.items()
    }
    rows |= {} if cls is None else {"cls": cls}
    rows |= {"order": order, "pts_seconds": np.arange(frames) / fps}
    with FeatureWriter(path) as writer:
        writer.append(rows)
        writer.finish_video(make_provenance(**provenance), fps=fps, truncated=False)
    return path


def make_labels(frames: int, phases: int = len(PHASES)) -> np.ndarray:
    """Return the phase index of each frame, for phases of equal length."""
    return np.arange(frames) * phases // frames


def make_rows(seed: Any, labels: np.ndarray, width: int = 16, *, noise: float = 0.7) -> np.ndarray:
    """Return float32 rows (T, width) that depend on the phase of the frame, plus noise."""
    centers = np.random.default_rng(0).normal(size=(int(labels.max(initial=0)) + 1, width))
    rows = centers[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), width))
    return np.asarray(rows, np.float32)


def write_cache(
    features_dir: Path,
    videos: Mapping[tuple[str, str, str], int],
    *,
    dataset: str = "demo",
    encoder: str = CLIP,
    width: int = 16,
    ratios: Sequence[float] = (0.3, 1.0),
    phases: Sequence[str] = PHASES,
    pairs: Mapping[tuple[str, str], str] | None = None,
    has_cls: bool = False,
    **provenance: Any,
) -> Manifest:
    """Write the features and the manifest of a dataset.

    Args:
        videos: Dict mapping (split, view, id) to the number of frames.
        phases: Phase names; empty for a dataset without labels.
        pairs: Dict mapping (view, id) to the name of a pair.
        provenance: Changes to the provenance of every file.
    """
    folder = features_dir / dataset
    entries = []
    for number, ((split, view, video), frames) in enumerate(videos.items()):
        labels = make_labels(frames, max(len(phases), 1))
        merged = {
            ratio: make_rows([number, index], labels, width).astype(np.float16)
            for index, ratio in enumerate(ratios)
        }
        cls = (
            make_rows([number, len(ratios)], labels, width).astype(np.float16) if has_cls else None
        )
        path = folder / encoder.replace("/", "--") / view / f"{video}.h5"
        write_features(path, merged, cls=cls, encoder=encoder, **provenance)
        known = tuple(labels.tolist()) if phases else None
        entries.append(
            VideoEntry(
                video,
                view,
                split,
                frames,
                30.0,
                known,
                None,
                (pairs or {}).get((view, video)),
                SOURCE_SHA256,
            )
        )
    manifest = Manifest(dataset, tuple(phases), (), tuple(entries))
    manifest.save(folder / "manifest.json")
    return manifest


def make_embedding_provenance(**changes: Any) -> EmbeddingProvenance:
    values: dict[str, Any] = {
        "run": "first",
        "model_sha256": "ab" * 32,
        "dataset": "demo",
        "view": "ego",
        "video": "a",
        "encoder": CLIP,
        "encoder_revision": "",
        "encoder_sha256": "ab" * 32,
        "preprocessing": "squash 224",
        "column": "merged/0.3",
        "column_sha256": "01" * 32,
        "first_frame": 0,
    }
    return EmbeddingProvenance(**(values | changes))


def make_training(**changes: Any) -> dict[str, Any]:
    """Return the "training" section of a run's config.json; keys with the value None are
    omitted.
    """
    record = {
        "dataset": "demo",
        "encoder": CLIP,
        "encoder_folder": CLIP.replace("/", "--"),
        "column": "merged/0.3",
        "recipe": "paper",
        "seed": 3,
        "untrained_sha256": UNTRAINED_SHA256,
        "features_sha256": "ab" * 32,
        "labels_sha256": "cd" * 32,
    } | changes
    return {key: value for key, value in record.items() if value is not None}


def write_run(
    runs_dir: Path,
    features_dir: Path,
    manifest: Manifest,
    name: str = "first",
    *,
    seed: int = 0,
    width: int = 16,
    clips: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    embedded: bool = True,
    training: Mapping[str, Any] | None = None,
    **provenance: Any,
) -> Path:
    """Write a run that was never trained: config.json, a model file and embeddings that follow the
    labels.

    Args:
        features_dir: Cache with CLIP features.
        manifest: Manifest of the dataset.
        clips: Dict mapping video ids to sub-clips (start, stop) that are embedded, in
            addition to prefixes.
        embedded: Whether to write embeddings of the model and of the untrained model (which ignore
            the labels).
        training: Changes to the "training" section of config.json.
        provenance: Changes to the provenance of every embedding file.
    """
    folder = runs_dir / name
    model = save({"weight": np.zeros(1)}, metadata={"run": name})
    features = features_dir / manifest.dataset / CLIP.replace("/", "--")
    digests = {
        video: video_digests(features, video, "merged/0.3", "pts_seconds")
        for video in manifest.videos
    }
    trained_on = training_digests((video, sha256) for video, (sha256, _) in digests.items())
    record = make_training(dataset=manifest.dataset, seed=seed, **trained_on, **(training or {}))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"training": record}))
    (folder / "model.safetensors").write_bytes(model)
    for untrained in (False, True) if embedded else ():
        digest = UNTRAINED_SHA256 if untrained else hashlib.sha256(model).hexdigest()
        for number, (video, (column_sha256, times_sha256)) in enumerate(digests.items()):
            labels = (
                np.zeros(video.frames or 0, int)
                if untrained or video.labels is None
                else np.array(video.labels)
            )
            rows = make_rows([seed, number], labels, width)
            values = {
                "run": name,
                "view": video.view,
                "video": video.id,
                "dataset": manifest.dataset,
            }
            values |= {"column_sha256": column_sha256, "times_sha256": times_sha256}
            parts = [("standard", None)]
            if clips and video.id in clips:
                parts += [("online", None), *(("trimmed", clip) for clip in clips[video.id])]
            for protocol, clip in parts:
                start, stop = clip or (0, len(rows))
                kept = (
                    np.array(prefix_lengths(len(rows))) - 1
                    if protocol == "online"
                    else np.arange(start, stop)
                )
                at = embeddings_folder(folder, protocol, untrained=untrained)
                changes = values | {"model_sha256": digest, "first_frame": start} | provenance
                write_embedding(
                    embedding_path(at, video.view, video.id, clip),
                    rows[kept],
                    np.asarray(kept) / 30,
                    make_embedding_provenance(**changes),
                )
    return folder
