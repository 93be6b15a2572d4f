"""byov-extract: run the frozen vision model over every frame and leave merged tokens in the cache."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from byov.cache.atomic import remove_abandoned
from byov.cli import command
from byov.cli.allocator import keep_freed_memory
from byov.cli.cluster_options import (
    ClusterOption,
    CpusOption,
    GpusOption,
    WorkersOption,
    on_cluster,
    parse_cluster,
    refuse_without_gpus,
)
from byov.cli.command import BARS, interruptible, note
from byov.cli.decoding_options import MaxPixelsOption, OnCorruptOption, OnTruncatedOption
from byov.cli.extracted_again import why_again
from byov.cli.own_folder import DEFAULT_SPLIT, open_folder
from byov.cli.shares import refuse_percent
from byov.cluster.ray_session import ClusterOptions
from byov.data.dataset import Dataset
from byov.data.registry import READERS
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.device import Device
from byov.errors import EncoderError
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET_PREFIX, WHEELS, Resize, parse_encoder
from byov.extract.extract_features import DEFAULT_RATIOS, DEMO_ENCODER, open_videos, own_name, update_manifest
from byov.extract.plan import Job, OnMismatch, Plan, make_plan, pinned_revision, refuse_conflicts
from byov.text import format_duration, format_size, pluralize

# torch and transformers take seconds to import; a run that finds nothing to do gets by without them.
if TYPE_CHECKING:
    from byov.extract.extraction import ExtractionOptions, Outcome
    from byov.extract.plan import VideoCheck

RATIOS = ",".join(map(str, DEFAULT_RATIOS))

app = command.new_app()


@app.command()
def extract(
    dataset: Annotated[str | None, typer.Option(help=f"One of {', '.join(READERS)}.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="Your own videos: a CSV of path,view,split[,id,events,phases,pair].")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Your own videos: a folder with ego and exo below it, or in the names; its CSV is written."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help=f"Of --folder: shares of train, val and test, where no folder is called so. Default {DEFAULT_SPLIT}."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name for your own videos; that of the CSV or folder if left out.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"HuggingFace id, local folder, {IMAGENET_PREFIX}{' | '.join(WHEELS)}, or random/ARCHITECTURE. "
            f"Default {DEFAULT_ENCODER}; for the demo {DEMO_ENCODER}."
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch of the encoder.")] = None,
    ratios: Annotated[
        str, typer.Option("--ratios", "--ratio", help="STM ratios, each above 0 and at most 1.")
    ] = RATIOS,
    resize: Annotated[Resize, typer.Option(help="Stretch the whole frame, or crop it as CLIP does.")] = "squash",
    device: Annotated[Device, typer.Option(help="Where the encoder runs.")] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Run the encoder through torch.compile.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Frames per batch. Default 32; on CUDA 256.")] = None,
    decoders: Annotated[int | None, typer.Option(min=1, help="Videos decoded at once. Default: one per core.")] = None,
    shard: Annotated[str, typer.Option(help="i/n: do the i-th of n parts of the dataset, i from 1.")] = "1/1",
    on_truncated: OnTruncatedOption = "error",
    on_corrupt: OnCorruptOption = "error",
    max_pixels: MaxPixelsOption = MAX_PIXELS,
    on_mismatch: Annotated[
        OnMismatch,
        typer.Option(help="Frames and labels differ in number: fail the video, or trim to the shorter."),
    ] = "error",
    check: Annotated[
        bool,
        typer.Option("--check", help="Show the plan, look at every video, estimate disk and time; extract nothing."),
    ] = False,
    verify_sources: Annotated[
        bool,
        typer.Option(
            "--verify-sources", help="Compare all of every cached video's file, not a sample of those that changed."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Extract again what is cached.")] = False,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusOption = None,
    gpus_per_worker: GpusOption = None,
    as_json: command.Json = False,
    datasets_dir: command.DatasetsDir = Path("datasets"),
    features_dir: command.FeaturesDir = Path("features"),
    _version: command.Version = False,
) -> None:
    """Run the frozen vision model over every frame of a dataset; resume where an earlier run stopped."""
    started = time.monotonic()
    wanted_ratios, wanted_shard = _parse_ratios(ratios), _parse_shard(shard)
    wanted_cluster = parse_cluster(cluster, workers, cpus_per_worker, gpus_per_worker)
    _refuse_with_cluster(wanted_cluster, wanted_shard, device)
    chosen = parse_encoder(encoder or (DEMO_ENCODER if dataset == "demo" else DEFAULT_ENCODER), revision)
    if folder is not None:
        videos = _open_folder(folder, name, split, features_dir, other=dataset or manifest)
    elif split is not None:
        raise command.UsageMistake("--split goes with --folder; a CSV has a column for it")
    else:
        videos = _open(dataset, manifest, name, datasets_dir)
    if encoder is None:
        note(f"encoder: {chosen.id} (choose with --encoder)")
    plan = make_plan(
        videos,
        features_dir,
        chosen if overwrite else pinned_revision(videos, features_dir, chosen),
        resize=resize,
        ratios=wanted_ratios,
        device=device,
        on_mismatch=on_mismatch,
        shard=wanted_shard,
        overwrite=overwrite,
        verify_sources=verify_sources,
    )
    if check:
        found = _check(plan, features_dir, resize, device, as_json=as_json)
        raise typer.Exit(command.FAILED if found else 0)
    refuse_conflicts(plan)
    remove_abandoned(plan.folder.parent)
    jobs = plan.in_state("missing", "stale")
    outcome = None
    if jobs:
        from byov.extract.extraction import ExtractionOptions

        if not overwrite:
            for line in why_again(plan.in_state("stale")):
                note(line)
        policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
        options = ExtractionOptions(resize, device, compile_model, batch_size, decoders, policy, on_mismatch)
        stopped = "interrupted; finished videos are kept, run the same command to resume"
        try:
            outcome = _run(plan, jobs, options, wanted_cluster, stopped)
        except OSError:  # a disk that is full or gone; what command.run says of it comes last
            note("stopped; finished videos are kept, run the same command to resume")
            raise
    update_manifest(plan, features_dir, outcome.failures if outcome else {})
    _summarize(plan, outcome, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(command.FAILED if outcome and outcome.failures else 0)


def _run(
    plan: Plan, jobs: Sequence[Job], options: "ExtractionOptions", cluster: ClusterOptions | None, stopped: str
) -> "Outcome":
    """In this process, or on the workers of a cluster."""
    if cluster is None:
        from byov.extract.extraction import run_plan

        return interruptible(lambda: run_plan(plan, jobs, options, BARS), stopped)
    from byov.cluster.cluster_extraction import extract_on_cluster

    return on_cluster(lambda stop: extract_on_cluster(plan, jobs, options, cluster, BARS, stop), stopped)


def _refuse_with_cluster(cluster: ClusterOptions | None, shard: tuple[int, int], device: Device) -> None:
    if cluster is None:
        return
    if shard != (1, 1):
        raise command.UsageMistake("--cluster shares the videos out by itself; leave --shard out")
    refuse_without_gpus(cluster, device)


def _open_folder(folder: Path, name: str | None, split: str | None, features_dir: Path, *, other: object) -> Dataset:
    if other is not None:
        raise command.UsageMistake(f"give --folder {folder} alone, without --dataset and --manifest")
    return open_folder(folder, own_name(name or folder.resolve().name), split, features_dir)


def _open(dataset: str | None, manifest: Path | None, name: str | None, datasets_dir: Path) -> Dataset:
    if dataset is None and manifest is None:
        raise command.UsageMistake(
            f"which dataset? --dataset {' | '.join(READERS)}, or your own videos with --folder or --manifest"
        )
    return open_videos(dataset, manifest, name, datasets_dir, BARS)


def _parse_ratios(text: str) -> tuple[float, ...]:
    try:
        ratios = tuple(float(part) for part in text.split(","))
    except ValueError:
        ratios = ()
    for ratio in ratios:
        refuse_percent("--ratios", ratio)
    if not ratios:
        raise command.UsageMistake(f"--ratios {text}: expected numbers above 0 and at most 1, like {RATIOS}")
    return tuple(sorted(set(ratios)))


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise command.UsageMistake(f"--shard {text}: expected i/n with i from 1 to n, like 2/4")
    return int(index), int(count)


def _check(plan: Plan, features_dir: Path, resize: Resize, device: Device, *, as_json: bool) -> bool:
    """Look at the videos, say what is to be done; were there problems?"""
    from byov.cli import check_table
    from byov.extract import plan as check

    checks = check.check_videos(plan, BARS)
    frames = sum(seen.probe.packets for seen in checks if seen.probe and seen.job.state != "cached")
    if not as_json:
        check_table.print_checks(checks)  # before the hub is asked, which may take its time
    needed, rate = _cost(plan, checks, resize, device)
    seconds = frames / rate if rate else None
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "states": plan.count(),
            "frames": frames,
            "seconds": None if seconds is None else round(seconds, 1),
            "needed_bytes": needed,
            "free_bytes": check.free_bytes(features_dir),
            "videos": [video.as_dict() for video in checks],
        }
        print(json.dumps(summary, indent=1))
    else:
        check_table.print_plan(plan, needed, features_dir)
        if not frames:
            print("nothing to encode")
        elif seconds is not None:
            print(
                f"{pluralize(frames, 'frame')} to encode, about {format_duration(seconds)} here at {rate:.0f} frames/s"
            )
        else:
            print(f"{pluralize(frames, 'frame')} to encode; how fast is known once the encoder has been fetched")
    return any(seen.problem or seen.job.state == "conflict" for seen in checks)


def _cost(
    plan: Plan, checks: "Sequence[VideoCheck]", resize: Resize, device: Device
) -> tuple[int | None, float | None]:
    """Bytes of disk and frames per second; None where the encoder cannot be asked, as without the hub."""
    from byov.extract import plan as check
    from byov.extract.encoders import encoder_shape, frames_per_second

    try:
        shape = encoder_shape(plan.encoder)
        ratios = max((len(job.ratios) for job in plan.jobs), default=0)
        per_frame = check.bytes_per_frame(ratios, shape.tokens, shape.width, has_cls=shape.has_cls)
        work = plan.in_state("missing", "stale")
        rate = frames_per_second(plan.encoder, resize=resize, device=device) if work else None
        return check.bytes_needed(checks, per_frame), rate
    except EncoderError as error:
        note(f"disk and time are not known: {error}")
        return None, None


def _summarize(plan: Plan, outcome: "Outcome | None", seconds: float, *, as_json: bool) -> None:
    cached = len(plan.in_state("cached"))
    done, frames, size, failures = (
        (outcome.videos, outcome.frames, outcome.written_bytes, outcome.failures) if outcome else (0, 0, 0, {})
    )
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "folder": str(plan.folder),
            "extracted_videos": done,
            "extracted_frames": frames,
            "written_bytes": size,
            "cached_before": cached,
            "failures": failures,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(summary, indent=1))
        return
    encoded = pluralize(frames, "frame")
    rate = f" at {outcome.frames / outcome.seconds:.0f} frames/s" if outcome and outcome.frames else ""
    print(
        f"{plan.dataset.name}: {pluralize(done, 'video')} extracted ({encoded}{rate}, {format_size(size)}), "
        f"{cached} were cached, {len(failures)} failed; {seconds:.1f} s; {plan.folder}"
    )
    if failures:
        print(f"failed videos are tried again next time; reasons: {plan.folder / 'failures.json'}")


def main() -> None:
    keep_freed_memory()
    command.run(app)
