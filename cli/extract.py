"""byov-extract: run a frozen vision model on every frame and cache the merged tokens."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import byov
from byov.cli import videos as cli_videos
from byov.cli.app import CONTEXT_SETTINGS, FAILED, App
from byov.cli.options import (
    Cluster,
    Config,
    Cpus,
    DatasetsDir,
    FeaturesDir,
    Gpus,
    Json,
    UsageError,
    Version,
    Workers,
    check_folder,
    parse_cluster,
    parse_numbers,
)
from byov.cli.signals import interruptible, run_stoppable
from byov.cli.terminal import PROGRESS, note, print_rows
from byov.data import READERS
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.data.video_folder import DEFAULT_SPLIT_FRACTIONS
from byov.device import Device
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET, Resize, parse_encoder
from byov.extract.plan import (
    DEFAULT_RATIOS,
    ExtractedFeatures,
    ExtractionOptions,
    OnMismatch,
    Plan,
    check_videos,
    estimate_size,
    make_plan,
)
from byov.extract.source import VideoSource
from byov.text import format_size, pluralize, printable
from byov.workers import ClusterOptions

RATIOS = ",".join(map(str, DEFAULT_RATIOS))
DEFAULT_SPLIT = ",".join(f"{fraction:g}" for fraction in DEFAULT_SPLIT_FRACTIONS)
RESUME = "finished videos are kept; run the same command to resume"

main = App()


# There are no arguments, but video files and dataset names are often passed as such.
@main.command(context_settings=CONTEXT_SETTINGS | {"allow_extra_args": True})
def extract(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(help=f"Dataset: {', '.join(READERS)}.", autocompletion=lambda: list(READERS)),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(help="CSV with path,view,split[,id,start,end,events,phases,pair]."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of your own videos; writes videos.csv.")
    ] = None,
    lerobot: Annotated[
        Path | None, typer.Option(help="Folder of a LeRobot dataset (v2.0, v2.1 or v3.0).")
    ] = None,
    ego: Annotated[
        str | None,
        typer.Option(help="Ego camera key in --lerobot, or path pattern in --folder: `*wrist*`."),
    ] = None,
    exo: Annotated[str | None, typer.Option(help="Exo camera key or path pattern.")] = None,
    task: Annotated[str | None, typer.Option(help="Task in --lerobot, if it has several.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Fractions of train, val and test videos for --folder or --lerobot.",
            show_default=DEFAULT_SPLIT,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Dataset name of your videos.", show_default="from the path")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"Hugging Face model id, local folder, {IMAGENET} or random/ARCHITECTURE.",
            show_default=f"{DEFAULT_ENCODER}; demo, metaworld: {IMAGENET}",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit, tag or branch of the encoder.")
    ] = None,
    ratios: Annotated[
        str, typer.Option("--ratios", "--ratio", help="STM ratios in (0, 1], comma-separated.")
    ] = RATIOS,
    resize: Annotated[
        Resize, typer.Option(help="Squash the whole frame, or crop it like CLIP.")
    ] = "squash",
    device: Annotated[Device, typer.Option(help="Device for the encoder.")] = "auto",
    compile_model: Annotated[
        bool, typer.Option("--compile", help="Compile the encoder with torch.compile.")
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Frames per batch.", show_default="32; CUDA: 256")
    ] = None,
    decoders: Annotated[
        int | None,
        typer.Option(min=1, help="Videos decoded in parallel.", show_default="CPU cores"),
    ] = None,
    shard: Annotated[str, typer.Option(help="Part i of n of the dataset, as i/n.")] = "1/1",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    on_mismatch: Annotated[
        OnMismatch,
        typer.Option(
            help="Handling of unequal frame and label counts: report an error or trim the longer."
        ),
    ] = "error",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check videos and labels and estimate disk space, without extracting."
        ),
    ] = False,
    verify_sources: Annotated[
        bool,
        typer.Option(
            "--verify-sources", help="Also compare the contents of videos that look unchanged."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Extract cached videos again.")
    ] = False,
    cluster: Cluster = None,
    workers: Workers = None,
    cpus_per_worker: Cpus = None,
    gpus_per_worker: Gpus = None,
    as_json: Json = False,
    datasets_dir: DatasetsDir = Path("datasets"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Run a frozen vision model on every frame of a dataset. Cached videos are skipped."""
    if context.args:
        raise UsageError(_describe_argument(context.args[0]))
    cli_videos.keep_freed_memory()
    started = time.monotonic()
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise UsageError(f"--shard {shard}: expected i/n with i from 1 to n, such as 2/4.")
    cluster_options = parse_cluster(cluster, workers, cpus_per_worker, gpus_per_worker, device)
    if cluster_options is not None and int(parts) > 1:
        raise UsageError("--cluster distributes the videos itself. Omit --shard.")
    fractions = None if split is None else parse_numbers("--split", split)
    source = VideoSource(dataset, manifest, folder, lerobot, ego, exo, task, fractions, name)
    options = ExtractionOptions(
        ratios=parse_numbers("--ratios", ratios),
        shard=(int(part), int(parts)),
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
    chosen = parse_encoder(encoder or source.default_encoder, revision)
    videos = source.open(datasets_dir, features_dir, PROGRESS)
    plan = make_plan(videos, features_dir, chosen, options)
    if encoder is None:
        note(f"encoder: {plan.encoder.id} (choose another with --encoder)")
    if check:
        raise typer.Exit(FAILED if _check(plan, as_json=as_json) else 0)

    try:
        extracted = _extract(plan, cluster_options)
    except OSError:  # for example, the disk is full; App prints the reason
        note(f"stopped; {RESUME}")
        raise
    _print_summary(extracted, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(FAILED if extracted.failures else 0)


def _describe_argument(text: str) -> str:
    """Describe which option a positional argument should have been passed to."""
    path = Path(text)
    if path.suffix.lower() == ".csv":
        option = f"--manifest {text}"
    elif text in READERS and not path.exists():
        option = f"--dataset {text}"
    elif path.is_dir():
        option = f"--folder {text}"
    else:
        option = f"--folder {path.parent}, which reads all videos in that folder"
    return f"unexpected argument {text!r}. Pass {option}."


def _extract(plan: Plan, cluster: ClusterOptions | None) -> ExtractedFeatures:
    if not plan.jobs_to_extract():
        return plan.finish([])  # extract_plan imports PyTorch, which takes seconds
    check_folder(plan.folder, "--features-dir")
    extract = partial(byov.extract_plan, plan, cluster=cluster, progress=PROGRESS)
    message = f"interrupted; {RESUME}"
    if cluster is None:
        return interruptible(extract, message)
    return run_stoppable(lambda stop: extract(stop=stop), message)


def _print_summary(extracted: ExtractedFeatures, seconds: float, *, as_json: bool) -> None:
    if as_json:
        summary = {
            "dataset": extracted.dataset,
            "encoder": extracted.encoder,
            "folder": str(extracted.folder),
            "extracted_videos": extracted.videos,
            "extracted_frames": extracted.frames,
            "written_bytes": extracted.written_bytes,
            "cached_before": extracted.cached,
            "failures": extracted.failures,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(summary, indent=1))
        return
    rate = f" at {extracted.frames / extracted.seconds:.0f} frames/s" if extracted.frames else ""
    size = format_size(extracted.written_bytes)
    print(
        f"{extracted.dataset}: {pluralize(extracted.videos, 'video')} extracted "
        f"({pluralize(extracted.frames, 'frame')}{rate}, {size}), {extracted.cached} already "
        f"cached, {len(extracted.failures)} failed; {seconds:.1f} s; {extracted.folder}"
    )
    if extracted.failures:
        print(f"Failed videos are retried next time. Reasons: {extracted.folder / 'failures.json'}")


def _check(plan: Plan, *, as_json: bool) -> bool:
    """Check all videos, print what would be extracted, and return whether there are problems."""
    checks = check_videos(plan, PROGRESS)
    states = plan.count()
    frames, disk_bytes = estimate_size(plan, checks)
    problems = [f"problem: {check['problem']}" for check in checks if check["problem"]]
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "states": states,
            "frames": frames,
            "disk_bytes": disk_bytes,
            "videos": checks,
        }
        print(json.dumps(summary, indent=1))
        return bool(problems)
    columns = ("id", "view", "split", "state", "frames", "labels", "events", "size", "fps")
    rows = [[str(check[name] or "-") for name in columns] for check in checks]
    print_rows([name.replace("state", "features") for name in columns], rows)
    for line in problems + plan.reasons():
        print(printable(line))
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    print(
        f"\n{plan.dataset.name} with {plan.encoder.id}: {pluralize(len(checks), 'video')}; "
        f"features: {counts}"
    )
    disk = f", about {format_size(disk_bytes)}" if disk_bytes else ""
    print(f"{pluralize(frames, 'frame')} to encode{disk}")
    return bool(problems)
