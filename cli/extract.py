"""byov-extract: run a frozen vision model on every frame and cache the merged tokens."""

import inspect
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

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
from byov.data import READERS, dataset_names, folder_readers
from byov.data.reader import Choice
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.device import Device
from byov.errors import EncoderError
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET, Resize, parse_encoder
from byov.extract.plan import (
    DEFAULT_RATIOS,
    ExtractedFeatures,
    ExtractionOptions,
    OnMismatch,
    Plan,
    check_videos,
    estimate_size,
    hours_of_video,
    make_plan,
)
from byov.extract.source import choose_source, option_classes
from byov.text import format_duration, format_size, pluralize, printable
from byov.workers import ClusterOptions

RATIOS = ",".join(map(str, DEFAULT_RATIOS))
RESUME = "finished videos are kept; run the same command to resume"

main = App()


def with_source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace `**source_options` in the signature of a command with the options of all readers,
    after --name.
    """
    *parameters, _ = inspect.signature(function).parameters.values()
    index = [parameter.name for parameter in parameters].index("name") + 1
    readers = folder_readers()
    options = [_option(name, Path, reader.summary) for name, reader in readers.items()]
    types: dict[str, Any] = {}
    described: dict[str, dict[str, list[str]]] = {}  # by option and description, who has it
    for kind, record in (option_classes() | dict(READERS)).items():
        user = f"--dataset {kind}" if kind in dataset_names() else f"--{kind}"
        for name, field in record.model_fields.items():
            types[name] = field.annotation
            described.setdefault(name, {}).setdefault(field.description or "", []).append(user)
    for name, texts in described.items():
        parts = [f"{', '.join(users)}: {text}" for text, users in texts.items()]
        options.append(_option(name, types[name], " ".join(parts)))
    parameters[index:index] = options
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return function


def _option(name: str, kind: Any, description: str) -> inspect.Parameter:
    option = f"--{name.replace('_', '-')}"
    kinds = [each for each in get_args(kind) or (kind,) if each is not type(None)]
    is_numbers = get_origin(kinds[0]) in (tuple, Annotated)
    info = typer.Option(
        option,
        help=description,
        parser=(lambda text: parse_numbers(option, text)) if is_numbers else None,
        metavar="NUMBER,NUMBER,..." if is_numbers else None,
    )
    annotation = Annotated[(str if is_numbers else kinds[0]) | None, info]  # type: ignore[valid-type]
    return inspect.Parameter(
        name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


# There are no arguments, but video files and dataset names are often passed as such.
@main.command(context_settings=CONTEXT_SETTINGS | {"allow_extra_args": True})
@with_source_options
def extract(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(help=f"Dataset: {', '.join(dataset_names())}.", autocompletion=dataset_names),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="CSV with path,view,split[,id,start,end,events,segments,phases,group,pair]."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of your own videos; writes videos.csv.")
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
    drop_labels: Annotated[
        bool,
        typer.Option(
            "--drop-labels", help="Remove labels in the cache that the source does not have."
        ),
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
    **source_options: Any,
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
    places = {"dataset": dataset, "manifest": manifest, "folder": folder, "name": name}
    source = choose_source(places | source_options)
    if choices := source.choices():
        _print_choices(choices, as_json=as_json)
        return
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
        drop_labels=drop_labels,
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
    elif text in dataset_names() and not path.exists():
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


def _print_choices(choices: Sequence[Choice], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([choice._asdict() for choice in choices], indent=1))
        return
    rows = [
        [f"--{choice.option}", printable(choice.name), f"{choice.clips:,}", f"{choice.hours:.2f}"]
        for choice in choices
    ]
    print_rows(["option", "value", "clips", "hours"], rows)
    options = dict.fromkeys(f"--{choice.option}" for choice in choices)
    note(f"choose what to extract with {', '.join(options)}")


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


def _measure_speed(plan: Plan) -> float | None:
    try:
        return byov.measure_speed(plan, PROGRESS)
    except EncoderError as error:
        note(f"the time on this machine is unknown: {error}")
        return None


def _check(plan: Plan, *, as_json: bool) -> bool:
    """Check all videos, print what would be extracted, and return whether there are problems."""
    checks = check_videos(plan, PROGRESS)
    states = plan.count()
    frames, disk_bytes = estimate_size(plan, checks)
    speed = _measure_speed(plan) if frames else None
    problems = [f"problem: {check['problem']}" for check in checks if check["problem"]]
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "states": states,
            "frames": frames,
            "hours": hours_of_video(checks),
            "disk_bytes": disk_bytes,
            "frames_per_second": speed,
            "seconds": frames / speed if speed else 0.0 if not frames else None,
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
    print(f"{hours_of_video(checks):.2f} h of video; {pluralize(frames, 'frame')} to encode{disk}")
    if speed:
        duration = format_duration(frames / speed)
        print(f"about {duration} on this machine, at {speed:.0f} frames/s without decoding")
    return bool(problems)
