"""Estimates of training time, based on a few training steps on this machine."""

import json
import time
from collections.abc import Collection, Sequence

import torch

from byov.device import Device, pick_device, torch_threads
from byov.evaluate.readers import read_manifest
from byov.progress import Progress, track
from byov.sweeps.grids import Folders, PlannedRun
from byov.text import format_duration, pluralize
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.methods.base import build_method, training_batches

STEPS = 3  # timed steps, after a warm-up step
# Settings that do not affect the time per step.
_NO_EFFECT = {"seed", "epochs", "steps", "lr", "weight_decay", "warmup", "mask_self", "mask_cross"}


def estimate_runs(
    runs: Sequence[PlannedRun], folders: Folders, device: Device, progress: Progress
) -> dict[str, tuple[float, str]]:
    """Map run names to the expected training time in seconds, 0 if unknown, and the reason why the
    run cannot be trained, if any.

    Runs that differ only in seed or dataset are measured once.
    """
    # rates: seconds per epoch and training video
    rates = dict[str, float]()
    problems = dict[tuple[str, str], str]()
    estimates = {}
    for run in track(runs, progress, "estimating times", unit="run", brief=True):
        settings = run.config.flat()
        decisive = {name: settings[name] for name in settings.keys() - _NO_EFFECT}
        kind = json.dumps([run.encoder_folder, decisive], sort_keys=True)
        if kind not in rates and (run.dataset, kind) not in problems:
            try:
                rates[kind] = _measure(run, folders, device)
            except Exception as error:  # the sweep reports it, too
                problems[run.dataset, kind] = str(error)
        optimizer = run.config.optimizer
        seen = (optimizer.steps or 0) * optimizer.batch_size  # training videos over all epochs
        if not optimizer.steps:
            videos = read_manifest(folders.features, run.dataset).videos
            seen = max(1, optimizer.epochs * sum(video.split == "train" for video in videos))
        problem = problems.get((run.dataset, kind), "")
        estimates[run.name] = (rates.get(kind, 0.0) * seen, problem)
    return estimates


def total_time(estimates: Collection[tuple[float, str]], workers: int) -> str:
    """Format the total as "; expected time: about 3 min with 2 workers"; return "" if no time is
    known.
    """
    known = [seconds for seconds, _ in estimates if seconds]
    if not known:
        return ""
    workers = min(workers, len(known))
    return (
        f"; expected time: about {format_duration(sum(known) / workers)} with "
        f"{pluralize(workers, 'worker')}"
    )


def _measure(run: PlannedRun, folders: Folders, device: Device) -> float:
    """Time a few training steps on one thread, as in a worker; return seconds per epoch and
    training video.
    """
    times = list[float]()
    with torch_threads(1):
        data = open_training_data(folders.features, run.dataset, run.encoder_folder, run.ratio)
        torch_device = pick_device(device)
        model = build_method(data.width, run.config).to(torch_device)
        videos = data.split("train")
        batches = training_batches(model, videos, FeatureStore(data, (), 0), run.config)
        for step in range(1 + STEPS):
            batch = tuple(clips.to(torch_device) for clips in batches.batch(step))
            loss = model(batch, torch.Generator())["loss"]
            loss.backward()
            loss.item()  # waits for the device
            times.append(time.monotonic())
    return (times[-1] - times[0]) / STEPS * batches.steps_per_epoch / len(videos)
