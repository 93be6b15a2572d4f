"""Training run: find the features, resolve the settings, train a model and embed all videos."""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from byov import __version__
from byov.cache import runs
from byov.cache.atomic import exclusive, remove_abandoned, write_text
from byov.cache.digests import file_sha256, seal_json
from byov.cache.layout import run_name
from byov.device import Device, pick_device
from byov.errors import TrainError
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import NO_PROGRESS, Progress, Stop, never
from byov.text import format_size
from byov.train import settings as shared
from byov.train.checkpoint import file_bytes
from byov.train.diagnostics import Diagnostics, explain_diagnostics, explain_selection
from byov.train.distributed import SINGLE_PROCESS, Processes, connection_errors
from byov.train.embedding_pass import embed_videos
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods import METHODS, build_method
from byov.train.methods.base import Method, check_sizes
from byov.train.methods.byov import ByovSettings
from byov.train.sampling import BatchSource
from byov.train.settings import TrainSettings, checked
from byov.train.trackers import check_installed, open_trackers
from byov.train.trainer import Trainer
from byov.train.validation import Validator

LOGGER = logging.getLogger(__name__)
PAPER_DEPTH = ByovSettings.model_fields["depth"].default


def train_run(
    run: str | None = None,
    *,
    method: str | None = None,
    dataset: str | None = None,
    encoder: str | None = None,
    ratio: float | None = None,
    resume: bool = False,
    embed_only: bool = False,
    device: Device = "auto",
    preload_gib: float = shared.PRELOAD_GIB,
    checkpoint_every: int = shared.CHECKPOINT_EVERY,
    tensorboard: bool = False,
    wandb: bool = False,
    features_dir: Folder = None,
    runs_dir: Folder = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
    processes: Processes = SINGLE_PROCESS,
    **settings: Any,
) -> dict[str, Any]:
    """Train a method on cached features, select the best model on the val split and embed all
    videos with it.

    Args:
        run: Name of the run. Default: DATASET-METHOD-rRATIO-sSEED, or the newest run with `resume`
            or `embed_only`.
        method: Name of the method. Default: "byov".
        dataset: Dataset in the cache. Default: the only one.
        encoder: Encoder in the cache. Default: the only one.
        ratio: STM ratio of the features. Default: 0.3.
        resume: Resume an interrupted run. Options and settings must match those it was started
            with, except that `epochs` may be larger if the schedule is constant.
        embed_only: Skip training and rewrite the embeddings of an existing run.
        device: Device to train on: "auto", "cuda", "mps" or "cpu".
        preload_gib: Maximum size of features to preload into memory, in GiB.
        checkpoint_every: Epochs between checkpoints.
        tensorboard: Also log to TensorBoard.
        wandb: Also log to Weights & Biases.
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        runs_dir: Folder that contains the runs. Default: BYOV_RUNS, else runs/.
        progress: Receives progress updates for training and embedding.
        stop: Called after every step and before embedding a video; returns true to stop the run,
            which can be resumed.
        processes: Processes that train the run together; each of them calls this function.
        **settings: Method settings.

    Returns:
        Summary of the run (empty except in the main process): "run", "dataset", "folder",
        "embedding_files" and, after training, "steps", "last" (losses of the last epoch),
        "validation" (metrics of the saved model) and "findings" (sentences about what the saved
        model has learned, or not).

    Raises:
        TrainError: If the features, the settings or the run cannot be used.
        Interrupted: If `stop` returned true.
        Diverged: If the loss or a weight is not finite.
        ProcessLost: If another process of `processes` has ended.
    """
    features_path = features_folder(features_dir)
    runs_path = runs_folder(runs_dir)
    record = None
    with connection_errors():
        if resume or embed_only:
            record = runs.read_run(
                runs_path, processes.broadcast(lambda: runs.choose_run(runs_path, run).name)
            )
            options = {"dataset": dataset, "encoder": encoder, "ratio": ratio, "method": method}
            chosen = _recorded_settings(record, options, settings, may_extend=resume)
            folder = record.folder
            dataset = record.dataset
            encoder = record.encoder_folder
            ratio = record.ratio
        data = open_training_data(
            features_path, dataset, encoder, shared.DEFAULT_RATIO if ratio is None else ratio
        )
        if record is None:
            chosen = shared.resolve_settings(
                method or shared.DEFAULT_METHOD, data.dataset, settings
            )
            ratio_text = data.column.removeprefix("merged/")
            name = f"{data.dataset}-{chosen.label}-r{ratio_text}-s{chosen.seed}"
            folder = runs.run_folder(runs_path, run_name(name) if run is None else run)
        torch_device = processes.device(pick_device(device))
    if record is not None and embed_only:
        runs.check_model(folder, record.training)
    # Check sizes before allocating the model.
    if record is not None and (folder / runs.MODEL_NAME).exists():
        check_sizes(folder / runs.MODEL_NAME, METHODS[chosen.method], data.width, chosen)
    summary: dict[str, Any] = {"run": folder.name, "dataset": data.dataset, "folder": str(folder)}
    model = build_method(data.width, chosen)
    if record is not None:
        training = _check_features(record, training_record(data, model), same_labels=resume)
    if embed_only:
        with _locked(folder):
            _write_config(folder, model, training)
            store = FeatureStore(data, (), 0)
            files = embed_videos(
                folder, chosen, training, data, store, torch_device, progress, stop
            )
        return summary | {"embedding_files": files}

    if processes.world_size > chosen.batch_size:
        raise TrainError(
            f"--batch-size {chosen.batch_size} is less than the number of processes, "
            f"{processes.world_size}."
        )
    if processes.world_size > 1 and model.needs_whole_batch:
        raise TrainError(
            f"{chosen.method} cannot be trained in several processes: {model.needs_whole_batch}."
        )
    sampler = model.sampler(data.of("train"))
    if record is None:
        model.settings = chosen = chosen.with_epochs(sampler.steps_per_epoch(chosen.batch_size))
        training = training_record(data, model)
        if (
            torch_device.type == "cpu"
            and isinstance(chosen, ByovSettings)
            and chosen.depth >= PAPER_DEPTH
        ):
            command = (
                f"byov-train --dataset {data.dataset} --ratio "
                f"{data.column.removeprefix('merged/')} --size small"
            )
            LOGGER.info(
                f"the paper's model is slow on a CPU; a smaller one takes minutes: {command}"
            )
    trackers = [
        name for name, is_used in (("tensorboard", tensorboard), ("wandb", wandb)) if is_used
    ]
    check_installed(trackers)
    lost = (
        "another process of this run has ended; resume with byov-train --run "
        f"{folder.name} --resume"
    )
    with connection_errors(lost), _locked(folder) if processes.is_main else nullcontext():
        if (
            processes.is_main
            and record is None
            and any(not path.name.startswith(".") for path in folder.iterdir())
        ):
            raise TrainError(
                f"{folder} exists. Resume it with --run {folder.name} --resume or choose another "
                "name with --run."
            )
        val = data.of("val") if processes.is_main else []
        store = FeatureStore(data, (*data.of("train"), *val), int(preload_gib * 2**30))
        if not store.preloaded:
            LOGGER.info(
                f"reading {format_size(store.size_bytes)} of features during training (see "
                "--preload-gib)"
            )
        model.start_training(sampler.videos, store.read)
        batches = BatchSource(model, sampler, store, processes.local_items)
        diagnose = Diagnostics(batches, torch_device)
        select = _selection_metric(data, chosen.select)
        trainer = Trainer(
            model,
            batches,
            folder=folder,
            device=torch_device,
            validate=Validator(data.dataset, val, store, torch_device) if val else None,
            select=select,
            checkpoint_every=checkpoint_every,
            diagnose=diagnose,
            processes=processes,
            metadata={
                "identity": training.get("identity"),
                "method": chosen.method,
                "seed": chosen.seed,
            },
        )
        if record is not None:
            _resume(trainer, record, validated=bool(data.of("val")))
        if processes.is_main:
            if record is not None and chosen.epochs > record.settings["epochs"]:
                # This file marks a finished run.
                (folder / runs.LAST_MODEL_NAME).unlink(missing_ok=True)
            training.pop(runs.FILES_KEY, None)
            _write_config(folder, model, training)  # from here on, the run exists
        config = {
            "dataset": data.dataset,
            "encoder": data.identity["encoder"],
            "column": data.column,
        }
        config |= chosen.model_dump(mode="json")
        first_step = trainer.state.step + 1 if trainer.state.step else 0
        with open_trackers(
            trackers if processes.is_main else [], folder, config, first_step
        ) as trainer.trackers:
            trainer.train(stop, progress)
        processes.shutdown()
        if not processes.is_main:
            return {}
        names = (runs.MODEL_NAME, runs.LAST_MODEL_NAME, runs.METRICS_NAME)
        model.load_state_dict(load_file(folder / runs.MODEL_NAME))
        diagnostics = diagnose(model)
        training |= {"validation": trainer.state.best_metrics, "diagnostics": diagnostics}
        training |= {runs.FILES_KEY: {name: file_sha256(folder / name) for name in names}}
        _write_config(folder, model, training)
        files = embed_videos(folder, chosen, training, data, store, torch_device, progress, stop)
    record_of_last = trainer.state.records[-1].items()
    last = {
        name: value
        for name, value in record_of_last
        if name not in ("epoch", "step", "lr") and not name.startswith(runs.DIAGNOSTICS_PREFIX)
    }
    return summary | {
        "steps": trainer.state.step,
        "last": last,
        "validation": training["validation"],
        "findings": explain_diagnostics(diagnostics)
        + explain_selection(trainer.state.records, select),
        "embedding_files": files,
    }


def _recorded_settings(
    record: runs.RunRecord, options: dict[str, Any], given: dict[str, Any], *, may_extend: bool
) -> TrainSettings:
    """Return the settings of a run, possibly with more epochs; raise TrainError if the given ones
    differ.
    """
    recorded = shared.settings_of(record)
    started = {
        "dataset": record.dataset,
        "encoder": record.encoder,
        "ratio": record.ratio,
        "method": recorded.method,
    }
    if options["encoder"] == record.encoder_folder:
        started["encoder"] = record.encoder_folder
    changed = [
        f"{name} {started[name]!r}, not {value!r}"
        for name, value in options.items()
        if value not in (None, started[name])
    ]
    if not changed:
        shared.check_names(recorded.method, given)
        requested = checked(type(recorded), **(recorded.model_dump() | given))
        if may_extend and requested.epochs > recorded.epochs:
            if recorded.schedule != "constant":
                raise TrainError(
                    f"{record.name} cannot be extended: the learning rates of its "
                    f"{recorded.schedule} schedule depend "
                    f"on the number of epochs, {recorded.epochs}. Start another run with --epochs "
                    f"{requested.epochs}."
                )
            recorded = recorded.model_copy(update={"epochs": requested.epochs, "steps": None})
        changed = shared.differences(requested, recorded, given)
    if changed:
        raise TrainError(
            f"{record.name} was started with {'; '.join(changed)}. Omit these options or start "
            "another run."
        )
    return recorded


def _resume(trainer: Trainer, record: runs.RunRecord, *, validated: bool) -> None:
    """Restore the last checkpoint; raise TrainError if the run cannot reach its number of
    epochs.
    """
    if runs.FILES_KEY in record.training and (record.folder / runs.MODEL_NAME).exists():
        # Check the model before its digest is replaced.
        runs.check_model(record.folder, record.training)
    trainer.resume()
    if trainer.state.step == 0 and (record.folder / runs.LAST_MODEL_NAME).exists():
        raise TrainError(
            f"{record.name} is finished and has no checkpoints. Use --embed-only to write its "
            "embeddings again."
        )
    epochs = record.settings["epochs"]
    settings = trainer.method.settings
    is_trained = any(line["epoch"] == epochs for line in trainer.state.records)
    if settings.epochs > epochs and is_trained and validated and epochs % settings.validate_every:
        # This validation may have selected a model that a longer run would not select.
        raise TrainError(
            f"The run cannot be extended: it was validated after epoch {epochs}, which is not a "
            "multiple of "
            f"--validate-every {settings.validate_every}. Start another run."
        )
    LOGGER.info(f"resuming from step {trainer.state.step} of {trainer.total_steps}")


def training_record(data: TrainingData, untrained: Method) -> dict[str, Any]:
    """Return the "training" section of config.json, which later stages read (cache/runs.py)."""
    settings = untrained.settings
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
    without = {"epochs", "steps"} if settings.schedule == "constant" else {"steps"}
    decisive = features | {
        "width": data.width,
        "settings": settings.model_dump(mode="json", exclude=without),
    }
    return features | {
        "encoder": data.identity["encoder"],
        "encoder_revision": data.identity["revision"],
        "encoder_folder": data.folder.name,
        "recipe": settings.label,
        "title": settings.title,
        "seed": settings.seed,
        "untrained_sha256": hashlib.sha256(file_bytes(untrained.state_dict())).hexdigest(),
        "validation": {},
        "versions": {"byov": __version__, "torch": torch.__version__},
        # Digest of everything that determines the results of the run, independent of its name and
        # the machine.
        "identity": hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest(),
    }


def _check_features(
    run: runs.RunRecord, current: dict[str, Any], *, same_labels: bool
) -> dict[str, Any]:
    """Return the training record of an existing run; raise TrainError if its features have
    changed.
    """
    decisive = {
        "encoder_sha256": "encoder",
        "preprocessing": "preprocessing",
        "compute_dtype": "compute type",
    }
    decisive["features_sha256"] = "features or list of train and val videos"
    if same_labels:
        decisive["labels_sha256"] = "labels, pairs or order of train and val videos"
    for name, what in decisive.items():
        if run.training.get(name) != current[name]:
            raise TrainError(
                f"The {what} of {run.dataset} changed since {run.name} was started. Start another "
                "run."
            )
    kept = {name: value for name, value in run.training.items() if name != "settings"}
    return kept | {"untrained_sha256": current["untrained_sha256"]}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, and remove temporary files left by killed processes."""
    busy = TrainError(
        f"{folder}: another process is training this run. Wait for it, or stop it first."
    )
    with exclusive(folder / runs.LOCK_NAME, busy=busy):
        remove_abandoned(folder)
        yield


def _selection_metric(data: TrainingData, select: str) -> str:
    """Return the model-selection metric, falling back to one that the val split supports."""
    val = data.of("val")
    labeled_views = {video.view for video in val if video.labels is not None}
    if select == "last" or (val and select == "tau") or len(labeled_views) == 2:
        return select
    possible = "tau" if val else "last"
    LOGGER.info(
        f"--select {select} needs val videos of both views with phase labels; using --select "
        f"{possible}"
    )
    return possible


def _write_config(folder: Path, model: Method, training: dict[str, Any]) -> None:
    """Write config.json and the model card."""
    model.record = training
    write_text(folder / runs.CONFIG_NAME, seal_json(model.config).decode())
    write_text(folder / "README.md", str(model.generate_model_card()))
