"""byov-extract: run the frozen vision model over every frame and leave merged tokens in the cache."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from byov.cache.atomic import remove_abandoned
from byov.cli import command
from byov.cli.allocator import keep_freed_memory
from byov.cli.command import BARS, interruptible, note
from byov.data.dataset import Dataset
from byov.data.demo import write_demo
from byov.data.own_videos import read_own_videos
from byov.data.registry import READERS, open_dataset
from byov.data.video import OnTruncated
from byov.device import Device
from byov.extract.encoder_name import DEFAULT_ENCODER, Resize, parse_encoder
from byov.extract.manifest_update import update_manifest
from byov.extract.plan import OnMismatch, Plan, make_plan, pinned_revision, refuse_conflicts
from byov.extract.weight_wheels import IMAGENET_PREFIX, WHEELS
from byov.text import size_text

# torch and transformers take seconds to import; a run that finds nothing to do gets by without them.
if TYPE_CHECKING:
    from byov.extract.extraction import Outcome

DEMO_ENCODER = "random/tiny"  # the demo must need no download
DEFAULT_RATIOS = "0.1,0.2,0.3,0.4,0.5,1.0"  # the ratios of the paper's ablation; 1.0 = no selection

app = command.new_app()


@app.command()
def extract(
    dataset: Annotated[str | None, typer.Option(help=f"One of {', '.join(READERS)}.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="Your own videos: a CSV of path,view,split[,id,events].")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name for your own videos; the CSV's name if left out.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"HuggingFace id, local folder, {IMAGENET_PREFIX}{' | '.join(WHEELS)}, or random/ARCHITECTURE. "
            f"Default {DEFAULT_ENCODER}; for the demo {DEMO_ENCODER}."
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch of the encoder.")] = None,
    ratios: Annotated[str, typer.Option(help="STM ratios, each above 0 and at most 1.")] = DEFAULT_RATIOS,
    resize: Annotated[Resize, typer.Option(help="Stretch the whole frame, or crop it as CLIP does.")] = "squash",
    device: Annotated[Device, typer.Option(help="Where the encoder runs.")] = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Run the encoder through torch.compile.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Frames per batch. Default 32; on CUDA 256.")] = None,
    decoders: Annotated[int | None, typer.Option(min=1, help="Videos decoded at once. Default: one per core.")] = None,
    shard: Annotated[str, typer.Option(help="i/n: do the i-th of n parts of the dataset, i from 1.")] = "1/1",
    on_truncated: Annotated[
        OnTruncated,
        typer.Option(help="A file that breaks off: fail it, or keep the frames before the break."),
    ] = "error",
    on_mismatch: Annotated[
        OnMismatch,
        typer.Option(help="Frames and labels differ in number: fail the video, or trim to the shorter."),
    ] = "error",
    check: Annotated[
        bool, typer.Option("--check", help="Show the plan and look at every video; extract nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Extract again what is cached.")] = False,
    as_json: command.Json = False,
    datasets_dir: command.DatasetsDir = Path("datasets"),
    features_dir: command.FeaturesDir = Path("features"),
    _version: command.Version = False,
) -> None:
    """Run the frozen vision model over every frame of a dataset; resume where an earlier run stopped."""
    started = time.monotonic()
    wanted_ratios, wanted_shard = _parse_ratios(ratios), _parse_shard(shard)
    chosen = parse_encoder(encoder or (DEMO_ENCODER if dataset == "demo" else DEFAULT_ENCODER), revision)
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
    )
    if check:
        _check(plan, features_dir, as_json=as_json)
        return
    refuse_conflicts(plan)
    remove_abandoned(plan.folder.parent)
    jobs = plan.in_state("missing", "stale")
    outcome = None
    if jobs:
        from byov.extract.extraction import ExtractionOptions, run_plan

        for job in [] if overwrite else plan.in_state("stale"):
            note(f"{job.video.id}: to be extracted again ({job.reason})")
        options = ExtractionOptions(resize, device, compile_model, batch_size, decoders, on_truncated, on_mismatch)
        stopped = "interrupted; finished videos are kept, run the same command to resume"
        try:
            outcome = interruptible(lambda: run_plan(plan, jobs, options, BARS), stopped)
        except OSError:  # a disk that is full or gone; what command.run says of it comes last
            note("stopped; finished videos are kept, run the same command to resume")
            raise
    update_manifest(plan, features_dir, outcome.failures if outcome else {})
    _summarise(plan, outcome, time.monotonic() - started, as_json=as_json)
    raise typer.Exit(command.FAILED if outcome and outcome.failures else 0)


def _open(dataset: str | None, manifest: Path | None, name: str | None, datasets_dir: Path) -> Dataset:
    if manifest is not None:
        if dataset is not None:
            raise command.UsageMistake("give --dataset or --manifest, not both")
        own = name or manifest.stem
        if own in READERS:
            raise command.UsageMistake(f"{own!r} is the name of a known dataset; choose another with --name")
        return read_own_videos(own, manifest)
    if dataset is None:
        raise command.UsageMistake(
            f"which dataset? --dataset {' | '.join(READERS)}, or your own videos with --manifest"
        )
    if name is not None:
        raise command.UsageMistake("--name goes with --manifest")
    if dataset == "demo" and not (datasets_dir / "demo").exists():
        _render_demo(datasets_dir / "demo")
    return open_dataset(dataset, datasets_dir)


def _render_demo(root: Path) -> None:
    note(f"rendering the demo videos into {root}")
    with tqdm(desc="rendering", unit="video", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        write_demo(root, progress=progress)


def _parse_ratios(text: str) -> tuple[float, ...]:
    try:
        ratios = tuple(float(part) for part in text.split(","))
    except ValueError:
        ratios = ()
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise command.UsageMistake(f"--ratios {text}: expected numbers above 0 and at most 1, like {DEFAULT_RATIOS}")
    return tuple(sorted(set(ratios)))


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise command.UsageMistake(f"--shard {text}: expected i/n with i from 1 to n, like 2/4")
    return int(index), int(count)


def _check(plan: Plan, features_dir: Path, *, as_json: bool) -> None:
    from byov.extract import check
    from byov.extract.encoders import encoder_shape

    checks = check.check_videos(plan, BARS)
    shape = encoder_shape(plan.encoder)
    ratios = max((len(job.ratios) for job in plan.jobs), default=0)
    per_frame = check.bytes_per_frame(ratios, shape.tokens, shape.width, has_cls=shape.has_cls)
    needed = check.bytes_needed(checks, per_frame)
    if as_json:
        summary = {
            "dataset": plan.dataset.name,
            "encoder": plan.encoder.id,
            "states": plan.count(),
            "needed_bytes": needed,
            "free_bytes": check.free_bytes(features_dir),
            "videos": [video.as_dict() for video in checks],
        }
        print(json.dumps(summary, indent=1))
    else:
        from byov.cli.check_table import print_checks

        print_checks(plan, checks, needed, features_dir)


def _summarise(plan: Plan, outcome: "Outcome | None", seconds: float, *, as_json: bool) -> None:
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
    rate = f" at {outcome.frames / outcome.seconds:.0f} frames/s" if outcome and outcome.frames else ""
    print(
        f"{plan.dataset.name}: {done} videos extracted ({frames:,} frames{rate}, {size_text(size)}), "
        f"{cached} were cached, {len(failures)} failed; {seconds:.1f} s; {plan.folder}"
    )
    if failures:
        print(f"failed videos are tried again next time; reasons: {plan.folder / 'failures.json'}")


def main() -> None:
    keep_freed_memory()
    command.run(app)
