"""Feature extraction as a single function call: byov-extract without the terminal."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byov.cache.atomic import remove_abandoned, write_text
from byov.cache.layout import check_name
from byov.data import READERS, WITHOUT_DOWNLOAD, open_dataset
from byov.data.dataset import SPLITS, Dataset, View
from byov.data.lerobot import read_lerobot
from byov.data.own_videos import CSV_NAME, list_folder, log_skipped, read_own_videos, to_csv, video_files
from byov.data.video import MAX_PIXELS, DecodingPolicy, OnCorrupt, OnTruncated
from byov.device import Device
from byov.errors import CacheError, DatasetError
from byov.extract.cached_files import update_manifest
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET, Resize, parse_encoder
from byov.extract.plan import DEFAULT_RATIOS, ExtractionOptions, Job, OnMismatch, Outcome, Plan, make_plan
from byov.folders import Folder, dataset_folder, datasets_folder, features_folder
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractedFeatures:
    """Result of an extraction. Failed videos are tried again by the next one."""

    dataset: str
    encoder: str
    folder: Path  # features/<dataset>/<encoder>
    videos: int  # extracted by this call
    frames: int
    cached: int  # videos that were cached before
    failures: dict[str, str]  # video id → reason


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
    on_truncated: OnTruncated = "error",
    on_corrupt: OnCorrupt = "error",
    max_pixels: int = MAX_PIXELS,
    on_mismatch: OnMismatch = "error",
    verify_sources: bool = False,
    overwrite: bool = False,
    datasets_dir: Folder = None,
    features_dir: Folder = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Compute the features of a dataset's videos with a frozen vision model; cached videos are skipped.

    A video that cannot be decoded does not stop the others; it is listed in `failures`.

    Args:
        dataset: Name of a known dataset; videos of "demo" and Meta-World need no download.
        manifest: CSV of your own videos, instead of a dataset.
        folder: Folder of your own videos, instead of a dataset; its CSV is written.
        lerobot: Folder of a LeRobot dataset, instead of a dataset.
        ego: Camera key of `lerobot`, or pattern of the paths of ego videos in `folder`, like "*wrist*".
        exo: The same for exo videos.
        task: Task of `lerobot`; needed if it has several.
        split: Fractions of train, val and test videos of `folder` or `lerobot`.
        name: Name for your own videos. Default: the name of the CSV or folder.
        encoder: Encoder id, like "openai/clip-vit-base-patch16".
        datasets_dir: Default: BYOV_DATASETS or datasets/.
        features_dir: Default: BYOV_FEATURES or features/.
        progress: Receives progress.
        stop: Called between batches; when it returns True, Interrupted is raised and finished videos are kept.

    The other arguments are the options of byov-extract.

    >>> done = extract_features("demo", encoder="random/tiny")  # a small untrained encoder, to try things out
    >>> done.folder.as_posix(), done.videos + done.cached, done.failures
    ('features/demo/random--tiny', 8, {})
    """
    features, progress = features_folder(features_dir), Stoppable(progress, stop)
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
    plan = make_plan(source.open(datasets_folder(datasets_dir), features, progress), features, chosen, options)

    def extract(jobs: Sequence[Job]) -> Outcome:
        from byov.extract.extraction import run_plan  # torch takes seconds to import

        return run_plan(plan, jobs, progress)

    done, cached = extract_plan(plan, extract), len(plan.in_state("cached"))
    return ExtractedFeatures(
        plan.dataset.name, plan.encoder.id, plan.folder, done.videos, done.frames, cached, done.failures
    )


@dataclass(frozen=True)
class VideoSource:
    """Source of the videos: exactly one of the first four fields is set. See extract_features."""

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
        split, own = self.split, self.folder if self.lerobot is None else self.lerobot
        if sum(source is not None for source in (self.dataset, self.manifest, self.folder, self.lerobot)) != 1:
            raise DatasetError(f"pass one of --dataset ({', '.join(READERS)}), --manifest, --folder and --lerobot")
        if self.task is not None and self.lerobot is None:
            raise DatasetError("--task goes with --lerobot")
        if own is None and (split, self.ego, self.exo) != (None, None, None):
            raise DatasetError(
                "--split, --ego and --exo go with --folder or --lerobot. A CSV has columns split and view."
            )
        if split is not None and (
            len(split) != len(SPLITS) or min(split) < 0 or not split[0] or abs(sum(split) - 1) > 1e-6
        ):
            raise DatasetError(f"split {tuple(split)}: expected fractions of train, val and test, such as 0.6,0.2,0.2")
        if self.folder is not None and (self.ego is None) != (self.exo is None):
            raise DatasetError("--ego and --exo go together, such as --ego '*wrist*' --exo '*front*'")
        if self.dataset is not None and self.name is not None:
            raise DatasetError("a name goes with a manifest or a folder; a dataset has one")

    @property
    def default_encoder(self) -> str:
        """Encoder id; datasets that need no download default to an encoder that needs none."""
        without_download = self.dataset is not None and dataset_folder(self.dataset) in WITHOUT_DOWNLOAD
        return IMAGENET if without_download else DEFAULT_ENCODER

    def open(self, datasets_dir: Path, features_dir: Path, progress: Progress) -> Dataset:
        """Open a built-in dataset or user-provided videos."""
        if self.dataset is not None:
            return open_dataset(self.dataset, datasets_dir, progress)
        path = Path(self.manifest or self.folder or self.lerobot or "")
        name = self.name or (path.stem if self.manifest else path.resolve().name)
        if name in READERS:
            raise DatasetError(f"{name!r} is the name of a known dataset; give the videos another name (--name)")
        if self.manifest is not None:
            return read_own_videos(name, path)
        if self.lerobot is not None:
            return read_lerobot(name, path, self.ego, self.exo, self.task, self.split)
        return self._open_folder(path, name, features_dir)

    def _open_folder(self, folder: Path, name: str, features_dir: Path) -> Dataset:
        """Open a folder as a dataset: by its CSV if there is one, else by file names, writing the CSV."""
        patterns: dict[View, str] | None = {"ego": self.ego, "exo": self.exo} if self.ego and self.exo else None
        next_to_videos, next_to_features = folder / CSV_NAME, features_dir / check_name(name, "dataset") / CSV_NAME
        table = next((path for path in (next_to_videos, next_to_features) if path.is_file()), None)
        if table is not None:
            if self.split is not None or patterns is not None:
                raise DatasetError(
                    f"{table} already defines splits and views. Edit or delete it to use --split or --ego."
                )
            LOGGER.info(f"videos listed in {table} (edit it, or delete it to list {folder} again)")
            dataset = read_own_videos(name, table, folder=folder)
            listed = {video.path.resolve() for video in dataset.videos}
            present, _ = video_files(folder)
            log_skipped("not listed", [path for path in present if (folder / path).resolve() not in listed])
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
        LOGGER.info(f"videos: {found}; listed in {table} (edit it to change splits or add events, then run again)")
        return read_own_videos(name, table, folder=folder)


def extract_plan(plan: Plan, extract: Callable[[Sequence[Job]], Outcome]) -> Outcome:
    """Extract the missing and stale videos of a plan by calling `extract`, and update the manifest."""
    if conflicts := plan.in_state("conflict"):  # features of different origin are never mixed
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise CacheError(
            f"{conflicts[0].reason}{more}; delete what is out of date, use --overwrite to extract everything again, "
            "or another --features-dir"
        )
    remove_abandoned(plan.folder.parent)
    for line in plan.reasons():
        LOGGER.info(line)
    jobs = plan.in_state("missing", "stale")
    outcome = extract(jobs) if jobs else Outcome()
    update_manifest(plan.folder, plan.dataset, {job.video.id for job in plan.jobs}, outcome.failures)
    return outcome
