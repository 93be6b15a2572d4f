"""byov-extract: run a frozen vision model over every frame and cache the merged tokens."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated

import typer

from byov.cache.atomic import write_text
from byov.cache.layout import check_name
from byov.cli import common
from byov.cli import videos as cli_videos
from byov.cli.common import UsageError
from byov.cli.signals import interruptible
from byov.cli.terminal import PROGRESS, note, rich_table, table_console
from byov.data import READERS
from byov.data.dataset import SPLITS, Dataset
from byov.data.own_videos import CSV_NAME, DEFAULT_SPLIT_FRACTIONS, list_folder, read_own_videos, video_files
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.device import Device
from byov.errors import EncoderError, VideoError
from byov.extract import plan as planning
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET_PREFIX, WHEELS, Resize, parse_encoder
from byov.extract.extract_features import (
    DEFAULT_RATIOS,
    OFFLINE_ENCODER,
    default_encoder,
    extract_plan,
    open_videos,
    own_name,
)
from byov.extract.plan import ExtractionOptions, Job, OnMismatch, Outcome, Plan, VideoCheck
from byov.text import format_duration, format_size, pluralize, printable

RATIOS = ",".join(map(str, DEFAULT_RATIOS))
DEFAULT_SPLIT = ",".join(f"{fraction:g}" for fraction in DEFAULT_SPLIT_FRACTIONS)
RESUME = "finished videos are kept; run the same command to resume"

app = common.new_app()


@app.command()
def extract(
    dataset: Annotated[
        str | None, typer.Option(help=f"Dataset: {', '.join(READERS)}.", autocompletion=lambda: list(READERS))
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="CSV: path,view,split[,id,events,phases,pair].")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of your own videos; its CSV is written.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Fractions of train, val and test videos of --folder.", show_default=DEFAULT_SPLIT),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of your own videos.", show_default="that of the CSV")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"Hugging Face model id, local folder, {IMAGENET_PREFIX}{' | '.join(WHEELS)} or random/ARCHITECTURE.",
            show_default=f"{DEFAULT_ENCODER}; demo, metaworld: {OFFLINE_ENCODER}",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch of the encoder.")] = None,
    ratios: Annotated[str, typer.Option("--ratios", "--ratio", help="STM ratios in (0, 1], comma-separated.")] = RATIOS,
    resize: Annotated[Resize, typer.Option(help="Squash the whole frame, or crop it as CLIP does.")] = "squash",
    device: Annotated[Device, typer.Option(help="Device for the encoder.")] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Compile the encoder with torch.compile.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Frames per batch.", show_default="32; CUDA: 256")
    ] = None,
    decoders: Annotated[
        int | None, typer.Option(min=1, help="Videos decoded in parallel.", show_default="CPU cores")
    ] = None,
    shard: Annotated[str, typer.Option(help="Part i of n of the dataset, as i/n with i from 1.")] = "1/1",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    on_mismatch: Annotated[
        OnMismatch, typer.Option(help="Unequal numbers of frames and labels: report an error, or trim to the shorter.")
    ] = "error",
    check: Annotated[
        bool, typer.Option("--check", help="Check videos and estimate disk space and time; extract nothing.")
    ] = False,
    verify_sources: Annotated[
        bool, typer.Option("--verify-sources", help="Compare every byte of the videos with what was extracted.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Extract cached videos again.")] = False,
    cluster: common.ClusterOption = None,
    workers: common.WorkersOption = None,
    cpus_per_worker: common.CpusOption = None,
    gpus_per_worker: common.GpusOption = None,
    as_json: common.Json = False,
    datasets_dir: common.DatasetsDir = Path("datasets"),
    features_dir: common.FeaturesDir = Path("features"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Run the frozen vision model over every frame of a dataset. Cached videos are skipped."""
    started = time.monotonic()
    parsed_ratios, parsed_shard = _parse_ratios(ratios), _parse_shard(shard)
    ray = common.parse_cluster(cluster, workers, cpus_per_worker, gpus_per_worker, device)
    if ray is not None and parsed_shard != (1, 1):
        raise UsageError("--cluster distributes the videos itself. Omit --shard.")
    chosen = parse_encoder(encoder or default_encoder(dataset), revision)
    if folder is not None:
        if dataset or manifest:
            raise UsageError(f"--folder {folder} cannot be combined with --dataset or --manifest.")
        videos = _open_folder(folder, own_name(name or folder.resolve().name), split, features_dir)
    elif split is not None:
        raise UsageError("--split needs --folder. A CSV has a split column.")
    elif dataset is None and manifest is None:
        raise UsageError(
            f"No dataset given. Pass --dataset {' | '.join(READERS)}, or --folder or --manifest for your own videos."
        )
    else:
        videos = open_videos(dataset, manifest, name, datasets_dir, PROGRESS)
    if encoder is None:
        note(f"encoder: {chosen.id} (choose another with --encoder)")
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
    options = ExtractionOptions(
        resize, device, compile_model, batch_size, decoders, policy, on_mismatch, overwrite, verify_sources
    )
    plan = planning.make_plan(videos, features_dir, chosen, options, ratios=parsed_ratios, shard=parsed_shard)
    if check:
        has_problems = _check(plan, features_dir, options, as_json=as_json)
        raise typer.Exit(common.FAILED if has_problems else 0)

    def run(jobs: Sequence[Job]) -> Outcome:
        from byov.extract.extraction import run_plan

        if ray is None:
            return interruptible(lambda: run_plan(plan, jobs, options, PROGRESS), f"interrupted; {RESUME}")
        from byov.cluster.extraction import extract_on_cluster

        return common.run_stoppable(
            lambda stop: extract_on_cluster(plan, jobs, options, ray, PROGRESS, stop), f"interrupted; {RESUME}"
        )

    try:
        outcome = extract_plan(plan, features_dir, run)
    except OSError:  # such as a full disk; common.run prints the reason
        note(f"stopped; {RESUME}")
        raise
    _print_summary(plan, outcome, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(common.FAILED if outcome.failures else 0)


def _parse_numbers(text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers; return () if they are malformed."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


def _parse_ratios(text: str) -> tuple[float, ...]:
    ratios = _parse_numbers(text)
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise UsageError(f"--ratios {text}: expected comma-separated numbers in (0, 1], such as {RATIOS}.")
    return tuple(sorted(set(ratios)))


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(f"--shard {text}: expected i/n with i from 1 to n, such as 2/4.")
    return int(index), int(count)


def _print_summary(plan: Plan, outcome: Outcome, seconds: float, *, as_json: bool) -> None:
    cached = len(plan.in_state("cached"))
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "folder": str(plan.folder),
            "extracted_videos": outcome.videos,
            "extracted_frames": outcome.frames,
            "written_bytes": outcome.written_bytes,
            "cached_before": cached,
            "failures": outcome.failures,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(summary, indent=1))
        return
    rate = f" at {outcome.frames / outcome.seconds:.0f} frames/s" if outcome.frames else ""
    frames = f"{pluralize(outcome.frames, 'frame')}{rate}, {format_size(outcome.written_bytes)}"
    print(
        f"{plan.dataset.name}: {pluralize(outcome.videos, 'video')} extracted ({frames}), {cached} already cached, "
        f"{len(outcome.failures)} failed; {seconds:.1f} s; {plan.folder}"
    )
    if outcome.failures:
        print(f"Failed videos are retried next time. Reasons: {plan.folder / 'failures.json'}")


# --check


def _check(plan: Plan, features_dir: Path, options: ExtractionOptions, *, as_json: bool) -> bool:
    """Check all videos and print what an extraction would do; return whether there are problems."""
    checks = planning.check_videos(plan, PROGRESS)
    frames = sum(check.probe.packets for check in checks if check.probe and check.job.state != "cached")
    if not as_json:
        _print_checks(plan, checks)  # before asking the Hub about the encoder, which can take a while
    needed, rates = _estimate(plan, checks, options)
    seconds = [frames / rate for rate in reversed(rates)]
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "states": plan.count(),
            "frames": frames,
            "seconds": [round(estimate, 1) for estimate in seconds] or None,  # at best, at worst
            "needed_bytes": needed,
            "free_bytes": planning.free_bytes(features_dir),
            "videos": [check.as_dict() for check in checks],
        }
        print(json.dumps(summary, indent=1))
    else:
        counts = ", ".join(f"{count} {_state_name(state)}" for state, count in plan.count().items())
        size = "unknown" if needed is None else format_size(needed)
        print(f"\n{plan.dataset.name} with {plan.encoder.id}: {pluralize(len(plan.jobs), 'video')}: {counts}")
        print(f"disk space: {size} needed, {format_size(planning.free_bytes(features_dir))} free")
        if seconds:
            best, worst = map(format_duration, seconds)
            speed = " to ".join(f"{rate:.0f}" for rate in rates)
            print(f"{pluralize(frames, 'frame')} to encode, {best} to {worst} at {speed} frames/s")
        elif frames:
            print(f"{pluralize(frames, 'frame')} to encode; time unknown until the encoder is downloaded")
    return any(check.problem or check.job.state == "conflict" for check in checks)


def _estimate(
    plan: Plan, checks: Sequence[VideoCheck], options: ExtractionOptions
) -> tuple[int | None, tuple[float, ...]]:
    """Return the bytes needed, None if unknown, and the lowest and highest frames per second, () if unknown."""
    from byov.extract.encoders import encoder_shape, needs_download
    from byov.extract.extraction import measure_rates

    try:
        shape = encoder_shape(plan.encoder)
        needed = planning.bytes_needed(checks, shape.tokens, shape.width, has_cls=shape.has_cls)
        todo = (check.job for check in checks if check.job.state in ("missing", "stale") and not check.problem)
        job = next(todo, None)
        return needed, () if job is None or needs_download(plan.encoder) else measure_rates(plan, job, options)
    except (EncoderError, VideoError) as error:
        note(f"cannot estimate disk space and time: {error}")
        return None, ()


def _print_checks(plan: Plan, checks: Sequence[VideoCheck]) -> None:
    numbers = ("header", "packets", "decoded", "labels", "size", "fps", "turned")
    table = rich_table(("video", "view", "split", "state", *numbers), [_check_row(check) for check in checks])
    table.padding = (0, 1, 0, 0)  # 11 columns should fit into 80 characters
    for column in table.columns[1:]:
        column.no_wrap = True
    table_console().print(table)
    for check in checks:
        if check.problem:
            print(printable(f"problem: {check.problem}"))
        if check.job.state == "conflict":
            print(printable(f"conflict: {check.job.video.id}: {check.job.reason}"))
    for line in plan.reasons():
        print(printable(line))


def _check_row(check: VideoCheck) -> list[str]:
    job, probe, video = check.job, check.probe, check.job.video
    decoded = "-" if job.frames is None else str(job.frames)
    labels = str(job.label_count or "-") if video.events is None else pluralize(len(video.events), "event")
    row = [video.id, video.view, video.split, _state_name(job.state)]
    if probe is None:
        return [*row, "-", "-", decoded, labels, "unreadable", "-", "-"]
    rate = f"{probe.fps:.2f}" + (" var" if probe.variable_rate else "")
    rotation = f"{probe.rotation_degrees}°" if probe.rotation_degrees else ""
    size = f"{probe.width}x{probe.height}"
    return [*row, str(probe.header_frames), str(probe.packets), decoded, labels, size, rate, rotation]


def _state_name(state: str) -> str:
    return "to do" if state == "missing" else state


# --folder


def _open_folder(folder: Path, name: str, split: str | None, features_dir: Path) -> Dataset:
    """Open a folder as a dataset: by its CSV if there is one, else by file names, writing the CSV."""
    fractions = None if split is None else _parse_split(split)
    next_to_videos, next_to_features = folder / CSV_NAME, features_dir / check_name(name, "dataset") / CSV_NAME
    table = next((path for path in (next_to_videos, next_to_features) if path.is_file()), None)
    if table is not None:
        if fractions is not None:
            raise UsageError(f"{table} already defines the splits. Edit or delete it to use --split {split}.")
        note(f"videos listed in {table} (edit it, or delete it to list {folder} again)")
        dataset = read_own_videos(name, table, folder=folder)
        listed = {video.path.resolve() for video in dataset.videos}
        _note_skipped(
            [path for path in video_files(folder)[0] if (folder / path).resolve() not in listed], "not listed"
        )
        return dataset
    listing = list_folder(folder, fractions)
    _note_skipped(listing.not_videos, "not a video")
    _note_skipped(listing.without_view, "without ego or exo in the path")
    try:
        write_text(next_to_videos, listing.to_csv())
        table = next_to_videos
    except OSError:  # a read-only folder
        write_text(next_to_features, listing.to_csv())
        table = next_to_features
    counts = Counter(f"{video.split} {video.view}" for video in listing.videos)
    videos = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    note(f"videos: {videos}; listed in {table} (edit it to change splits or add events, then run again)")
    return read_own_videos(name, table, folder=folder)


def _parse_split(text: str) -> tuple[float, ...]:
    """Parse "0.6,0.2,0.2": fractions of train, val and test."""
    fractions = _parse_numbers(text)
    is_valid = len(fractions) == len(SPLITS) and min(fractions) >= 0 and fractions[0] > 0
    if not is_valid or abs(sum(fractions) - 1) > 1e-6:
        raise UsageError(
            f"--split {text}: expected fractions of train, val and test that add up to 1, such as 0.6,0.2,0.2."
        )
    return fractions


def _note_skipped(paths: Sequence[PurePath], reason: str) -> None:
    if paths:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        note(f"skipped ({reason}): {', '.join(map(str, paths[:3]))}{more}")


def main() -> None:
    cli_videos.keep_freed_memory()
    common.run(app)
