"""The extraction as one call: a dataset's videos, through an encoder, into the cache; what byov-extract does, without
its terminal."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byov.cache.atomic import remove_abandoned
from byov.data.dataset import Dataset
from byov.data.demo import DEFAULT_VIDEOS, write_demo
from byov.data.own_videos import read_own_videos
from byov.data.registry import READERS, open_dataset
from byov.data.video import MAX_PIXELS, DecodingPolicy, OnCorrupt, OnTruncated
from byov.device import Device
from byov.errors import DatasetError, EncoderError
from byov.extract.encoder_name import DEFAULT_ENCODER, Resize, parse_encoder
from byov.extract.manifest_update import update_manifest
from byov.extract.plan import OnMismatch, make_plan, pinned_revision, refuse_conflicts
from byov.folders import Folder, datasets_folder, features_folder
from byov.progress import SILENT, Progress
from byov.stopping import Stop, Stoppable, never

LOGGER = logging.getLogger(__name__)

DEMO_ENCODER = "imagenet/efficientnet-lite0"  # trained, and without a hub
DEFAULT_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)  # of the paper's ablation; 1.0 = no selection


@dataclass(frozen=True)
class ExtractedFeatures:
    """What an extraction has done. Videos that failed are tried again by the next one."""

    dataset: str
    encoder: str
    folder: Path  # features/<dataset>/<encoder>
    videos: int  # extracted now
    frames: int
    cached: int  # videos that were there before
    failures: dict[str, str]  # video id → reason


def extract_features(
    dataset: str | None = None,
    *,
    manifest: str | os.PathLike[str] | None = None,
    name: str | None = None,
    encoder: str | None = None,
    revision: str | None = None,
    ratios: Sequence[float] = DEFAULT_RATIOS,
    resize: Resize = "squash",
    device: Device = "auto",
    compile_model: bool = False,
    batch_size: int | None = None,
    decoders: int | None = None,
    shard: tuple[int, int] = (1, 1),
    on_truncated: OnTruncated = "error",
    on_corrupt: OnCorrupt = "error",
    max_pixels: int = MAX_PIXELS,
    on_mismatch: OnMismatch = "error",
    verify_sources: bool = False,
    overwrite: bool = False,
    datasets_dir: Folder = None,
    features_dir: Folder = None,
    progress: Progress = SILENT,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Run a frozen vision model over every frame of a dataset, once; what is cached already is left as it is.

    A known dataset by its name ("demo" is rendered if it is not there), or one's own videos by their CSV, `manifest`,
    and `name`. All else is as the options of byov-extract; folders that are left out are those of the environment
    (BYOV_DATASETS, BYOV_FEATURES), else datasets/ and features/.

    A video that cannot be read does not stop the others: it is among the `failures`. `stop` is asked between batches;
    then Interrupted is raised, finished videos are kept, and the same call goes on with the rest.

    >>> done = extract_features("demo", encoder="random/tiny")  # untrained and small: to try things with
    >>> done.folder.as_posix(), done.videos + done.cached, done.failures
    ('features/demo/random--tiny', 8, {})
    """
    features = features_folder(features_dir)
    _refuse(ratios, shard)
    progress = Stoppable(progress, stop)
    videos = open_videos(dataset, manifest, name, datasets_folder(datasets_dir), progress)
    chosen = parse_encoder(encoder or (DEMO_ENCODER if dataset == "demo" else DEFAULT_ENCODER), revision)
    plan = make_plan(
        videos,
        features,
        chosen if overwrite else pinned_revision(videos, features, chosen),
        resize=resize,
        ratios=sorted(set(ratios)),
        device=device,
        on_mismatch=on_mismatch,
        shard=shard,
        overwrite=overwrite,
        verify_sources=verify_sources,
    )
    refuse_conflicts(plan)
    remove_abandoned(plan.folder.parent)
    jobs, extracted, frames, failures = plan.in_state("missing", "stale"), 0, 0, dict[str, str]()
    if jobs:
        from byov.extract.extraction import ExtractionOptions, run_plan  # torch takes seconds to import

        for job in [] if overwrite else plan.in_state("stale"):
            LOGGER.info(f"{job.video.id}: to be extracted again ({job.reason})")
        policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
        options = ExtractionOptions(resize, device, compile_model, batch_size, decoders, policy, on_mismatch)
        outcome = run_plan(plan, jobs, options, progress)
        extracted, frames, failures = outcome.videos, outcome.frames, outcome.failures
    update_manifest(plan, features, failures)
    cached = len(plan.in_state("cached"))
    return ExtractedFeatures(videos.name, plan.encoder.id, plan.folder, extracted, frames, cached, failures)


def _refuse(ratios: Sequence[float], shard: tuple[int, int]) -> None:
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise EncoderError(f"ratios {tuple(ratios)}: expected numbers above 0 and at most 1, like {DEFAULT_RATIOS}")
    if not 1 <= shard[0] <= shard[1]:
        raise DatasetError(f"shard {shard}: expected (i, n) with i from 1 to n, like (2, 4)")


def open_videos(
    dataset: str | None,
    manifest: str | os.PathLike[str] | None,
    name: str | None,
    datasets_dir: Path,
    progress: Progress = SILENT,
) -> Dataset:
    """A known dataset, the demo rendered if it is not there, or one's own videos by their CSV."""
    if manifest is not None:
        if dataset is not None:
            raise DatasetError("give a dataset or a manifest, not both")
        return read_own_videos(own_name(name or Path(manifest).stem), Path(manifest))
    if dataset is None:
        raise DatasetError(f"which dataset? One of {', '.join(READERS)}, or your own videos by their manifest")
    if name is not None:
        raise DatasetError("a name goes with a manifest or a folder; a dataset has one")
    if dataset == "demo" and not (datasets_dir / "demo").exists():
        _render_demo(datasets_dir / "demo", progress)
    return open_dataset(dataset, datasets_dir)


def own_name(name: str) -> str:
    """The name of one's own videos, unless it is that of a known dataset."""
    if name in READERS:
        raise DatasetError(f"{name!r} is the name of a known dataset; give the videos another name (--name)")
    return name


def _render_demo(root: Path, progress: Progress) -> None:
    LOGGER.info(f"rendering the demo videos into {root}")
    videos = sum(ego + exo for ego, exo in DEFAULT_VIDEOS.values())
    with progress.bar("rendering", unit="video", total=videos) as bar:
        write_demo(root, videos=DEFAULT_VIDEOS, progress=lambda _done, _total: bar.advance())
