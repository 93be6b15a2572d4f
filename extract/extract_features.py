"""Feature extraction as a function call, independent of the command line."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byov.cache.atomic import remove_abandoned, write_text
from byov.cache.layout import check_name
from byov.data import READERS, WITHOUT_DOWNLOAD, open_dataset
from byov.data.dataset import Dataset
from byov.data.lerobot import read_lerobot
from byov.data.own_videos import (
    CSV_NAME,
    list_folder,
    log_skipped,
    read_own_videos,
    to_csv,
    video_files,
)
from byov.data.video import MAX_PIXELS, DecodingPolicy, OnDamage
from byov.device import Device
from byov.errors import CacheError, DatasetError
from byov.extract.cached_files import update_manifest
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET, Resize, parse_encoder
from byov.extract.plan import (
    DEFAULT_RATIOS,
    ExtractionOptions,
    Job,
    OnMismatch,
    Outcome,
    Plan,
    make_plan,
)
from byov.folders import Folder, dataset_folder, datasets_folder, features_folder
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never
from byov.records import SPLITS, View

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractedFeatures:
    """Result of an extraction. Failed videos are retried by the next extraction."""

    dataset: str
    encoder: str
    folder: Path  # features/<dataset>/<encoder>
    videos: int  # number of videos extracted by this call
    frames: int
    cached: int  # number of videos that were already cached
    failures: dict[str, str]  # video id -> reason


def extract_features(
    dataset: str | None = None,
    *,
    manifest: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    lerobot: str | os.PathLike[str] | None = None,
    ego: str | None = None,
    exo: str | None = None,
    task: str | None = None,
    split: Sequence[float] | None = None,
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
    on_truncated: OnDamage = "error",
    on_corrupt: OnDamage = "error",
    max_pixels: int = MAX_PIXELS,
    on_mismatch: OnMismatch = "error",
    verify_sources: bool = False,
    overwrite: bool = False,
    datasets_dir: Folder = None,
    features_dir: Folder = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Compute the features of a dataset's videos with a frozen vision model; cached videos are
    skipped.

    Videos that cannot be decoded are listed in `failures` and do not stop the extraction.

    Args:
        dataset: Name of a built-in dataset; "demo" and the Meta-World datasets need no download.
        manifest: CSV of your own videos, instead of a dataset.
        folder: Folder of your own videos, instead of a dataset; a CSV that lists them is written.
        lerobot: Folder of a LeRobot dataset, instead of a dataset.
        ego: Camera key in `lerobot`, or path pattern of the ego videos in `folder`, such as
            "*wrist*".
        exo: The same for exo videos.
        task: Task in `lerobot`; required if there are several.
        split: Fractions of train, val and test videos in `folder` or `lerobot`.
        name: Name for your own videos. Default: the name of the CSV or folder.
        encoder: Encoder id, such as "openai/clip-vit-base-patch16".
        datasets_dir: Folder that contains the datasets. Default: BYOV_DATASETS, else datasets/.
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        progress: Receives progress updates.
        stop: Called between batches; if it returns True, Interrupted is raised and finished videos
            are kept.

    The other arguments are the options of byov-extract.

    >>> # A small untrained encoder, to try things out.
    >>> done = extract_features("demo", encoder="random/tiny")
    >>> done.folder.as_posix(), done.videos + done.cached, done.failures
    ('features/demo/random--tiny', 8, {})
    """
    features = features_folder(features_dir)
    progress = Stoppable(progress, stop)
    options = ExtractionOptions(
        ratios=(ratios,) if isinstance(ratios, (float, int, str)) else tuple(ratios),
        shard=shard,
        resize=resize,
        device=device,
        compile=compile_model,
        batch_size=batch_size,
        decoders=decoders,
        policy=DecodingPolicy(on_truncated, on_corrupt, max_pixels),
        on_mismatch=on_mismatch,
        overwrite=overwrite,
        verify_sources=verify_sources,
    )
    source = VideoSource(dataset, manifest, folder, lerobot, ego, exo, task, split, name)
    chosen = parse_encoder(encoder or source.default_encoder, revision)
    plan = make_plan(
        source.open(datasets_folder(datasets_dir), features, progress), features, chosen, options
    )

    def extract(jobs: Sequence[Job]) -> Outcome:
        from byov.extract.extraction import run_plan  # importing torch takes seconds

        return run_plan(plan, jobs, progress)

    done = extract_plan(plan, extract)
    cached = len(plan.in_state("cached"))
    return ExtractedFeatures(
        plan.dataset.name,
        plan.encoder.id,
        plan.folder,
        done.videos,
        done.frames,
        cached,
        done.failures,
    )


@dataclass(frozen=True)
class VideoSource:
    """Source of the videos, as described in `extract_features`; exactly one of the first four
    fields is set.
    """

    dataset: str | None = None
    manifest: str | os.PathLike[str] | None = None
    folder: str | os.PathLike[str] | None = None
    lerobot: str | os.PathLike[str] | None = None
    ego: str | None = None
    exo: str | None = None
    task: str | None = None
    split: Sequence[float] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        split = self.split
        own = self.folder if self.lerobot is None else self.lerobot
        if (
            sum(
                source is not None
                for source in (self.dataset, self.manifest, self.folder, self.lerobot)
            )
            != 1
        ):
            raise DatasetError(
                f"pass one of --dataset ({', '.join(READERS)}), --manifest, --folder or --lerobot"
            )
        if self.task is not None and self.lerobot is None:
            raise DatasetError("--task requires --lerobot")
        if own is None and (split, self.ego, self.exo) != (None, None, None):
            raise DatasetError(
                "--split, --ego and --exo require --folder or --lerobot; a CSV lists splits and "
                "views"
            )
        if split is not None and (
            len(split) != len(SPLITS)
            or min(split) < 0
            or not split[0]
            or abs(sum(split) - 1) > 1e-6
        ):
            raise DatasetError(
                f"split {tuple(split)}: expected fractions of train, val and test, such as "
                "0.6,0.2,0.2"
            )
        if self.folder is not None and (self.ego is None) != (self.exo is None):
            raise DatasetError(
                "--ego and --exo must be used together, such as --ego '*wrist*' --exo '*front*'"
            )
        if self.dataset is not None and self.name is not None:
            raise DatasetError(
                "--name requires --manifest, --folder or --lerobot; a built-in dataset has a name"
            )

    @property
    def default_encoder(self) -> str:
        """Id of the default encoder; datasets that need no download have a default encoder that
        needs none.
        """
        without_download = (
            self.dataset is not None and dataset_folder(self.dataset) in WITHOUT_DOWNLOAD
        )
        return IMAGENET if without_download else DEFAULT_ENCODER

    def open(self, datasets_dir: Path, features_dir: Path, progress: Progress) -> Dataset:
        """Open a built-in dataset or user-provided videos."""
        if self.dataset is not None:
            return open_dataset(self.dataset, datasets_dir, progress)
        path = Path(self.manifest or self.folder or self.lerobot or "")
        folder = path.parent if self.manifest else path
        name = self.name or (
            path.stem if self.manifest and path.name != CSV_NAME else folder.resolve().name
        )
        if name in READERS:
            raise DatasetError(
                f"{name!r} is the name of a built-in dataset; choose another one with --name"
            )
        if self.manifest is not None:
            return read_own_videos(name, path)
        if self.lerobot is not None:
            return read_lerobot(name, path, self.ego, self.exo, self.task, self.split)
        return self._open_folder(path, name, features_dir)

    def _open_folder(self, folder: Path, name: str, features_dir: Path) -> Dataset:
        """Open a folder of videos, using its CSV if there is one; otherwise, write a CSV based on
        the file names.
        """
        patterns: dict[View, str] | None = (
            {"ego": self.ego, "exo": self.exo} if self.ego and self.exo else None
        )
        next_to_videos = folder / CSV_NAME
        next_to_features = features_dir / check_name(name, "dataset") / CSV_NAME
        table = next((path for path in (next_to_videos, next_to_features) if path.is_file()), None)
        if table is not None:
            if self.split is not None or patterns is not None:
                raise DatasetError(
                    f"{table} already defines splits and views. Edit it or delete it."
                )
            LOGGER.info(f"videos listed in {table} (edit it, or delete it to list {folder} again)")
            dataset = read_own_videos(name, table, folder=folder)
            listed = {video.path.resolve() for video in dataset.videos}
            present, _ = video_files(folder)
            log_skipped(
                "not listed", [path for path in present if (folder / path).resolve() not in listed]
            )
            return dataset
        videos = list_folder(folder, self.split, patterns)
        try:
            write_text(next_to_videos, to_csv(videos))
            table = next_to_videos
        except OSError:  # a read-only folder
            write_text(next_to_features, to_csv(videos))
            table = next_to_features
        counts = Counter(f"{video.split} {video.view}" for video in videos)
        found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        LOGGER.info(
            f"videos: {found}; listed in {table} (edit it to change splits or add events, then run "
            "again)"
        )
        return read_own_videos(name, table, folder=folder)


def extract_plan(plan: Plan, extract: Callable[[Sequence[Job]], Outcome]) -> Outcome:
    """Extract the missing and stale videos of a plan by calling `extract`, and update the
    manifest.
    """
    if conflicts := plan.in_state("conflict"):  # features of different origins are never mixed
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise CacheError(
            f"{conflicts[0].reason}{more}; delete outdated files, use --overwrite to extract "
            "everything again, "
            "or use another --features-dir"
        )
    remove_abandoned(plan.folder.parent)
    for line in plan.reasons():
        LOGGER.info(line)
    jobs = plan.in_state("missing", "stale")
    outcome = extract(jobs) if jobs else Outcome()
    update_manifest(
        plan.folder, plan.dataset, {job.video.id for job in plan.jobs}, outcome.failures
    )
    return outcome
