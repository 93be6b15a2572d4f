"""Training runs: start one, resume it, or embed the videos with its model again."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from byov import __version__
from byov.cache import runs
from byov.cache.atomic import exclusive, remove_abandoned, write_text
from byov.cache.digests import array_sha256, file_sha256, seal_json
from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.hdf5 import read_array
from byov.cache.layout import embedded_parts, prefix_lengths, run_name
from byov.device import Device, pick_device
from byov.errors import Diverged, Interrupted, TrainError
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import NO_PROGRESS, Progress, Stop, never, track
from byov.text import format_size
from byov.train.checkpoint import file_bytes
from byov.train.config import (
    CHECKPOINT_EVERY,
    DEFAULT_METHOD,
    DEFAULT_RATIO,
    PRELOAD_GIB,
    OptimizerConfig,
    RunConfig,
    checked,
)
from byov.train.distributed import SINGLE_PROCESS, Processes, connection_errors
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods.base import Method, build_method, check_sizes, training_batches
from byov.train.methods.byov import ByovConfig
from byov.train.registry import check_names, resolve, run_config
from byov.train.trainer import Trainer, check_installed, open_trackers
from byov.train.validation import (
    diagnose,
    explain_diagnostics,
    explain_selection,
    selection_metric,
    validate,
)

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Execution:
    """Where and how a run is executed, which does not change its results.

    Attributes:
        device: Device to train on: "auto", "cuda", "mps" or "cpu".
        preload_gib: Maximum size of features to preload into memory, in GiB.
        checkpoint_every: Epochs between checkpoints.
        trackers: Where else to log metrics: "tensorboard", "wandb".
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        runs_dir: Folder that contains the runs. Default: BYOV_RUNS, else runs/.
        progress: Receives progress updates for training and embedding.
        stop: Called after every step and before embedding a video; returns true to stop the run,
            which can be resumed.
        processes: Processes that train the run together; each of them calls the same function.
    """

    device: Device = "auto"
    preload_gib: float = PRELOAD_GIB
    checkpoint_every: int = CHECKPOINT_EVERY
    trackers: tuple[str, ...] = ()
    features_dir: Folder = None
    runs_dir: Folder = None
    progress: Progress = NO_PROGRESS
    stop: Stop = never
    processes: Processes = SINGLE_PROCESS


@dataclass
class _Job:
    """A run that is being trained or embedded."""

    folder: Path
    config: RunConfig
    data: TrainingData
    model: Method
    record: dict[str, Any]  # "training" in config.json
    device: torch.device
    execution: Execution


DEFAULT_EXECUTION = Execution()


def start_run(
    run: str | None = None,
    execution: Execution = DEFAULT_EXECUTION,
    *,
    method: str | None = None,
    dataset: str | None = None,
    encoder: str | None = None,
    ratio: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train a method on cached features, select the best model on the val split and embed all
    videos with it.

    Args:
        run: Name of the run. Default: DATASET-METHOD-rRATIO-sSEED.
        execution: Where and how to run.
        method: Name of the method. Default: "byov".
        dataset: Dataset in the cache. Default: the only one.
        encoder: Encoder in the cache. Default: the only one.
        ratio: STM ratio of the features. Default: 0.3.
        **settings: Settings of the method and its training.

    Returns:
        Summary of the run (empty except in the main process): "run", "dataset", "folder",
        "embedding_files", "steps", "last" (losses of the last epoch), "validation" (metrics of the
        saved model) and "findings" (sentences about what the saved model has learned, or not).

    Raises:
        TrainError: If the features, the settings or the run cannot be used.
        Interrupted: If `execution.stop` returned true.
        Diverged: If the loss or a weight is not finite.
        ProcessLost: If another process of `execution.processes` has ended.
    """
    with connection_errors():
        data = open_training_data(
            features_folder(execution.features_dir),
            dataset,
            encoder,
            DEFAULT_RATIO if ratio is None else ratio,
        )
        config = resolve(method or DEFAULT_METHOD, data.dataset, settings)
        ratio_text = data.column.removeprefix("merged/")
        if run is None:
            run = run_name(f"{data.dataset}-{config.method.label}-r{ratio_text}-s{config.seed}")
        folder = runs.run_folder(runs_folder(execution.runs_dir), run)
        device = execution.processes.device(pick_device(execution.device))
    model = build_method(data.width, config)
    items = model.sampler(data.split("train"))
    config = config.with_epochs(items.steps_per_epoch(config.optimizer.batch_size))
    job = _Job(folder, config, data, model, training_record(data, config, model), device, execution)
    with _training(job):
        is_main = execution.processes.is_main
        if is_main and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise TrainError(
                f"{folder} exists. Resume it with --run {folder.name} --resume or choose another "
                "name with --run."
            )
        size = config.method.depth if isinstance(config.method, ByovConfig) else 0
        if device.type == "cpu" and size >= ByovConfig.model_fields["depth"].default:
            LOGGER.info(
                "the paper's model is slow on a CPU; a smaller one takes minutes: "
                f"byov-train --dataset {data.dataset} --ratio {ratio_text} --size small"
            )
        return _train(job)


def resume_run(
    run: str | None = None, execution: Execution = DEFAULT_EXECUTION, **requested: Any
) -> dict[str, Any]:
    """Resume an interrupted run, by default the newest, or extend a run to more epochs.

    The other arguments of `start_run` may be given again, with the values that the run was started
    with, except that `epochs` may be larger if the schedule is constant. None means not given.
    Result and errors are those of `start_run`.
    """
    stored, job = _open_run(run, execution, requested, resume=True)
    with _training(job):
        return _train(job, stored)


def embed_run(
    run: str | None = None, execution: Execution = DEFAULT_EXECUTION, **requested: Any
) -> dict[str, Any]:
    """Embed all videos again with the model of a run, by default the newest.

    The other arguments of `start_run` may be given again. Returns "run", "dataset", "folder" and
    "embedding_files".
    """
    _, job = _open_run(run, execution, requested, resume=False)
    with _locked(job.folder):
        _write_config(job)
        return _embed(job, FeatureStore(job.data, (), 0))


def _open_run(
    run: str | None, execution: Execution, requested: Mapping[str, Any], *, resume: bool
) -> tuple[runs.RunRecord, _Job]:
    """Open an existing run; raise TrainError if its features or the requested settings differ."""
    runs_dir = runs_folder(execution.runs_dir)
    with connection_errors():
        name = execution.processes.broadcast(lambda: runs.choose_run(runs_dir, run).name)
        stored = runs.read_run(runs_dir, name)
        config = _recorded_config(stored, requested, may_extend=resume)
        data = open_training_data(
            features_folder(execution.features_dir),
            stored.dataset,
            stored.encoder_folder,
            stored.ratio,
        )
        device = execution.processes.device(pick_device(execution.device))
    if not resume:
        runs.check_model(stored.folder, stored.training)
    if (stored.folder / runs.MODEL_NAME).exists():  # before allocating the model
        check_sizes(stored.folder / runs.MODEL_NAME, data.width, config)
    model = build_method(data.width, config)
    current = training_record(data, config, model)
    decisive = {
        "encoder_sha256": "encoder",
        "preprocessing": "preprocessing",
        "compute_dtype": "compute type",
        "features_sha256": "features or list of train and val videos",
    }
    if resume:
        decisive["labels_sha256"] = "labels, pairs or order of train and val videos"
    for key, what in decisive.items():
        if stored.training.get(key) != current[key]:
            raise TrainError(
                f"The {what} of {stored.dataset} changed since {stored.name} was started. Start "
                "another run."
            )
    record = {key: value for key, value in stored.training.items() if key != "settings"}
    record["untrained_sha256"] = current["untrained_sha256"]
    return stored, _Job(stored.folder, config, data, model, record, device, execution)


def _recorded_config(
    stored: runs.RunRecord, requested: Mapping[str, Any], *, may_extend: bool
) -> RunConfig:
    """Return the config of a run, possibly with more epochs; raise TrainError if the requested
    settings differ.
    """
    config = run_config(stored)
    is_folder = requested.get("encoder") == stored.encoder_folder
    data = {
        "dataset": stored.dataset,
        "encoder": stored.encoder_folder if is_folder else stored.encoder,
        "ratio": stored.ratio,
    }
    given = {name: value for name, value in requested.items() if value is not None}
    if given.get("method", config.method.name) == config.method.name:
        check_names(
            config.method.name,
            {name: value for name, value in given.items() if name not in (*data, "method")},
        )
    changes = {"epochs": given.get("epochs", 1), "steps": None}
    longer = checked(OptimizerConfig, **(dict(config.optimizer) | changes))
    if may_extend and longer.epochs > config.optimizer.epochs:
        if config.optimizer.schedule != "constant":
            raise TrainError(
                f"{stored.name} cannot be extended: the learning rates of its "
                f"{config.optimizer.schedule} schedule depend on the number of epochs, "
                f"{config.optimizer.epochs}. Start another run with --epochs "
                f"{longer.epochs}."
            )
        config = config.model_copy(update={"optimizer": longer})
    actual = config.flat() | data
    changed = [
        f"{name} {actual[name]!r}, not {value!r}"
        for name, value in given.items()
        if name in actual and value != actual[name]
    ]
    if changed:
        raise TrainError(
            f"{stored.name} was started with {'; '.join(changed)}. Omit these options or start "
            "another run."
        )
    return config


@contextmanager
def _training(job: _Job) -> Iterator[None]:
    """Check that a run can be trained by these processes, and hold its lock."""
    processes = job.execution.processes
    batch_size = job.config.optimizer.batch_size
    if processes.world_size > batch_size:
        raise TrainError(
            f"--batch-size {batch_size} is less than the number of processes, "
            f"{processes.world_size}."
        )
    if processes.world_size > 1 and job.model.needs_whole_batch:
        raise TrainError(
            f"{job.config.method.name} cannot be trained in several processes: "
            f"{job.model.needs_whole_batch}."
        )
    check_installed(job.execution.trackers)
    lost = (
        "another process of this run has ended; resume with byov-train --run "
        f"{job.folder.name} --resume"
    )
    with connection_errors(lost), _locked(job.folder) if processes.is_main else nullcontext():
        yield


def _train(job: _Job, stored: runs.RunRecord | None = None) -> dict[str, Any]:
    """Train, continuing a `stored` run if given, embed all videos with the selected model, and
    return a summary.
    """
    execution = job.execution
    processes = execution.processes
    train = job.data.split("train")
    val = job.data.split("val") if processes.is_main else []
    store = FeatureStore(job.data, (*train, *val), int(execution.preload_gib * 2**30))
    if not store.preloaded:
        LOGGER.info(
            f"reading {format_size(store.size_bytes)} of features during training (see "
            "--preload-gib)"
        )
    trainer = Trainer(
        job.model,
        training_batches(job.model, train, store, job.config, processes.local_items),
        job.config,
        folder=job.folder,
        device=job.device,
        validate=partial(validate, dataset=job.data.dataset, videos=val, store=store)
        if val
        else None,
        select=selection_metric(job.data, job.config.selection.select),
        checkpoint_every=execution.checkpoint_every,
        processes=processes,
        metadata={
            "identity": job.record.get("identity"),
            "method": job.config.method.name,
            "seed": job.config.seed,
        },
    )
    if stored:
        _restore(trainer, stored, job)
    job.record.pop(runs.FILES_KEY, None)
    if processes.is_main:
        _write_config(job)  # from here on, the run exists
    with open_trackers(
        execution.trackers if processes.is_main else (),
        job.folder,
        {name: job.record[name] for name in ("dataset", "encoder", "column")} | job.config.flat(),
        trainer.state.step + 1 if trainer.state.step else 0,
    ) as trainer.trackers:
        trainer.train(execution.stop, execution.progress)
    processes.shutdown()
    if not processes.is_main:
        return {}
    job.model.load_state_dict(load_file(job.folder / runs.MODEL_NAME))
    diagnostics = diagnose(job.model, trainer.batches)
    validation = trainer.state.best_metrics
    names = (runs.MODEL_NAME, runs.LAST_MODEL_NAME, runs.METRICS_NAME)
    job.record |= {
        "validation": validation,
        "diagnostics": diagnostics,
        runs.FILES_KEY: {name: file_sha256(job.folder / name) for name in names},
    }
    _write_config(job)
    last = {
        name: value
        for name, value in trainer.state.records[-1].items()
        if name not in ("epoch", "step", "lr") and not name.startswith(runs.DIAGNOSTICS_PREFIX)
    }
    return _embed(job, store) | {
        "steps": trainer.state.step,
        "last": last,
        "validation": validation,
        "findings": explain_diagnostics(diagnostics)
        + explain_selection(trainer.state.records, trainer.select),
    }


def _restore(trainer: Trainer, stored: runs.RunRecord, job: _Job) -> None:
    """Restore the last checkpoint; raise TrainError if the run cannot reach its number of
    epochs.
    """
    if runs.FILES_KEY in stored.training and (stored.folder / runs.MODEL_NAME).exists():
        # Check the model before its digest is replaced.
        runs.check_model(stored.folder, stored.training)
    trainer.resume()
    if trainer.state.step == 0 and (stored.folder / runs.LAST_MODEL_NAME).exists():
        raise TrainError(
            f"{stored.name} is finished and has no checkpoints. Use --embed-only to write its "
            "embeddings again."
        )
    epochs = stored.settings["epochs"]
    validate_every = job.config.selection.validate_every
    is_extended = job.config.optimizer.epochs > epochs
    is_trained = any(line["epoch"] == epochs for line in trainer.state.records)
    if is_extended and is_trained and job.data.split("val") and epochs % validate_every:
        # This validation may have selected a model that a longer run would not select.
        raise TrainError(
            f"The run cannot be extended: it was validated after epoch {epochs}, which is not a "
            f"multiple of --validate-every {validate_every}. Start another run."
        )
    LOGGER.info(f"resuming from step {trainer.state.step} of {trainer.total_steps}")
    if is_extended and job.execution.processes.is_main:
        (job.folder / runs.LAST_MODEL_NAME).unlink(missing_ok=True)  # marks a finished run


def _embed(job: _Job, store: FeatureStore) -> dict[str, Any]:
    """Embed all videos, plus sub-clips and prefixes of val and test videos, with the trained and
    the untrained model.

    Embeddings of videos that are no longer in the dataset are deleted. Raises Diverged if an
    embedding is not finite, and Interrupted if `stop` returns true.
    """
    data = job.data
    digest = runs.check_model(job.folder, job.record).sha256  # before loading, for clearer errors
    trained = Method.from_pretrained(job.folder)
    initial = build_method(data.width, trained.config)
    if trained.standardization == "dataset":
        initial.feature_mean.copy_(trained.feature_mean)
        initial.feature_deviation.copy_(trained.feature_deviation)
    models = [
        (False, digest, trained.to(job.device).eval()),
        (True, job.record["untrained_sha256"], initial.to(job.device).eval()),
    ]
    written: set[Path] = set()
    for video in track(data.videos, job.execution.progress, "embedding", unit="video"):
        if job.execution.stop():
            raise Interrupted(
                "stopped while embedding; continue with byov-train --run "
                f"{job.folder.name} --embed-only"
            )
        features = torch.from_numpy(store.read(video)).to(job.device)
        pts_seconds = read_array(video.path, "pts_seconds")
        times_sha256 = array_sha256(pts_seconds)
        parts = embedded_parts(data.dataset, video.view, video.id, video.split, video.frames)
        for (untrained, model_sha256, model), (protocol, clip) in product(models, parts):
            start, end = clip or (0, video.frames)
            if protocol == "online":  # embed each prefix and keep its last frame
                lengths = prefix_lengths(video.frames)
                frames = np.array(lengths) - 1
                embedded = torch.stack([model.embed(features[:length])[-1] for length in lengths])
            else:
                frames = np.arange(start, end)
                embedded = model.embed(features[start:end])
            if not embedded.isfinite().all():
                raise Diverged(
                    f"The embeddings of {video.id} are not finite; the model is unusable."
                )
            provenance = EmbeddingProvenance(
                run=job.folder.name,
                model_sha256=model_sha256,
                dataset=data.dataset,
                view=video.view,
                video=video.id,
                encoder=data.identity["encoder"],
                encoder_revision=data.identity["revision"],
                encoder_sha256=data.identity["weights"],
                preprocessing=data.identity["preprocessing"],
                column=data.column,
                column_sha256=video.sha256,
                first_frame=start,
                times_sha256=times_sha256,
            )
            folder = runs.embeddings_folder(job.folder, protocol, untrained=untrained)
            path = runs.embedding_path(folder, video.view, video.id, clip)
            write_embedding(path, embedded.cpu().numpy(), pts_seconds[frames], provenance)
            written.add(path)
    for outdated in set(job.folder.glob("embeddings*/*/*.h5")) - written:
        outdated.unlink(missing_ok=True)
    return {
        "run": job.folder.name,
        "dataset": data.dataset,
        "folder": str(job.folder),
        "embedding_files": len(written),
    }


def training_record(data: TrainingData, config: RunConfig, untrained: Method) -> dict[str, Any]:
    """Return the "training" section of config.json, which later stages read (cache/runs.py)."""
    features = {
        "dataset": data.dataset,
        "encoder_sha256": data.identity["weights"],
        "preprocessing": data.identity["preprocessing"],
        "compute_dtype": data.identity["compute type"],
        "column": data.column,
        **data.digests,
    }
    # With a constant learning rate, a longer run continues a shorter one, so they share an
    # identity.
    without = {"epochs", "steps"} if config.optimizer.schedule == "constant" else {"steps"}
    settings = {name: value for name, value in config.flat().items() if name not in without}
    decisive = features | {"width": data.width, "settings": settings}
    return features | {
        "encoder": data.identity["encoder"],
        "encoder_revision": data.identity["revision"],
        "encoder_folder": data.folder.name,
        "recipe": config.method.label,
        "title": config.title,
        "seed": config.seed,
        "untrained_sha256": hashlib.sha256(file_bytes(untrained.state_dict())).hexdigest(),
        "validation": {},
        "versions": {"byov": __version__, "torch": torch.__version__},
        # Digest of everything that determines the results of the run, independent of its name and
        # the machine.
        "identity": hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest(),
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, and remove temporary files left by killed processes."""
    busy = f"{folder}: another process is training this run. Wait for it, or stop it first."
    with exclusive(folder / runs.LOCK_NAME, busy=TrainError(busy)):
        remove_abandoned(folder)
        yield


def _write_config(job: _Job) -> None:
    contents = seal_json(job.model.describe(job.config, job.record))
    write_text(job.folder / runs.CONFIG_NAME, contents.decode())
    write_text(job.folder / "README.md", str(job.model.generate_model_card()))
