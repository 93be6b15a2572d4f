"""One run from beginning to end: what to train on, the model, the training, the embeddings."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from byov.cache.atomic import exclusive, remove_abandoned, write_text
from byov.cache.row_reader import read_digest
from byov.cache.runs import CONFIG_NAME, model_digest, read_config
from byov.errors import TrainError
from byov.progress import SILENT, Progress
from byov.text import size_text
from byov.train.checkpoint import model_bytes
from byov.train.embedding_pass import EmbeddingModel, embed_run
from byov.train.feature_store import FeatureStore, TrainingData
from byov.train.methods.method import Method
from byov.train.methods.method_registry import build_method
from byov.train.parallel import ALONE, Processes
from byov.train.sampling import BatchSource, Sampler
from byov.train.settings import TrainSettings
from byov.train.trainer import LAST_MODEL_NAME, MetricsLog, Trainer
from byov.train.validation import Validator

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """How to run; nothing here changes the numbers (on one kind of device)."""

    device: torch.device
    preload_bytes: int
    checkpoint_every: int  # epochs
    tensorboard: bool


def new_record(data: TrainingData, settings: TrainSettings) -> dict[str, Any]:
    """What config.json says of the training under "training"; see cache/runs.py for who reads it."""
    return {
        "dataset": data.dataset,
        "encoder": data.identity["encoder"],
        "encoder_revision": data.identity["revision"],
        "encoder_sha256": data.identity["weights"],
        "encoder_folder": data.folder.name,
        "preprocessing": data.identity["preprocessing"],
        "compute_dtype": data.identity["compute type"],
        "column": data.column,
        "recipe": settings.label,
        "seed": settings.seed,
        "untrained_sha256": _digest(build_method(data.width, settings)),
        "videos_sha256": _videos_digest(data),
        "validation": {},
        "versions": {"byov": version("byov"), "torch": torch.__version__},
    }


def train_run(
    folder: Path,
    data: TrainingData,
    settings: TrainSettings,
    machine: Machine,
    *,
    resume: bool = False,
    progress: Progress = SILENT,
    stop: Callable[[], bool] = lambda: False,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train into `folder`, then embed; returns a summary, of the process that leads.

    stop: asked after every step; once it says so, a checkpoint is left and Interrupted raised, and `resume` continues.
    processes: those that train this run together. Each calls this function; only the one that leads writes.
    """
    if processes.size > settings.batch_size:
        raise TrainError(
            f"--batch-size {settings.batch_size} is less than the {processes.size} processes; each takes its part of a "
            "batch"
        )
    method = build_method(data.width, settings)
    sampler = method.sampler(data.of("train"))
    with _alone(folder) if processes.leads else nullcontext():
        record: dict[str, Any] = {}
        if processes.leads:
            remove_abandoned(folder)
            record = _record_to_train(folder, data, settings, resume=resume)
        read = (*data.of("train"), *data.of("val")) if processes.leads else data.of("train")
        store = FeatureStore(data, read, machine.preload_bytes)
        if not store.preloaded:
            LOGGER.info(f"{size_text(store.size_bytes)} of features are read as they are needed (see --preload-gib)")
        trainer = _trainer(folder, data, machine, method, sampler, store, processes)
        if processes.leads:
            write_config(folder, method, record)  # the run exists from here on
        if resume:
            trainer.resume()
            if trainer.state.step == 0 and (folder / LAST_MODEL_NAME).exists():
                raise TrainError(
                    f"{folder.name} is finished and its checkpoints are gone; --embed-only writes its embeddings again"
                )
            LOGGER.info(f"resuming from step {trainer.state.step} of {trainer.total_steps}")
        trainer.train(stop, progress)
        processes.leave()
        if not processes.leads:
            return {}
        record["validation"] = trainer.state.best_metrics
        write_config(folder, method, record)
        files = _embed(folder, data, build_method(data.width, settings), store, machine.device, progress, stop)
    final = {k: v for k, v in trainer.state.records[-1].items() if k not in ("epoch", "step", "lr")}
    return {
        "run": folder.name,
        "dataset": data.dataset,
        "steps": trainer.state.step,
        "last": final,
        "validation": record["validation"],
        "embedding_files": files,
        "folder": str(folder),
    }


def embed_again(
    folder: Path,
    data: TrainingData,
    settings: TrainSettings,
    machine: Machine,
    *,
    progress: Progress = SILENT,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The embedding pass alone, of a run that has a model."""
    with _alone(folder):
        remove_abandoned(folder)
        record = _earlier_record(folder, new_record(data, settings))
        write_config(folder, build_method(data.width, settings), record)
        store = FeatureStore(data, (), 0)
        files = _embed(folder, data, build_method(data.width, settings), store, machine.device, progress, stop)
    return {"run": folder.name, "dataset": data.dataset, "embedding_files": files, "folder": str(folder)}


def write_config(folder: Path, model: Method, record: dict[str, Any]) -> None:
    """config.json and the model card; the weights come from the trainer."""
    model.record.update(record)
    write_text(folder / CONFIG_NAME, json.dumps(model.config, indent=1) + "\n")
    write_text(folder / "README.md", str(model.generate_model_card()))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes must not train one run."""
    with ExitStack() as lock:
        try:
            lock.enter_context(exclusive(folder / ".lock", wait=False))
        except BlockingIOError:
            raise TrainError(f"{folder}: another process is at work on this run") from None
        yield


def _record_to_train(folder: Path, data: TrainingData, settings: TrainSettings, *, resume: bool) -> dict[str, Any]:
    """The record of a new run, or that of the run to resume, if all that it depends on is still the same."""
    ours = new_record(data, settings)
    if not resume:
        if (folder / CONFIG_NAME).exists():  # begun by another process since the name was chosen
            raise TrainError(f"{folder} exists; choose another name with --run")
        return ours
    theirs = _earlier_record(folder, ours)
    if theirs.get("videos_sha256") != ours["videos_sha256"]:
        # They would give other batches, and another choice of the model, than those before the interruption.
        raise TrainError(
            f"{folder.name} was started with other train or val videos, features or labels than {data.folder} has "
            "now; start another run, or embed with this one by --embed-only"
        )
    return theirs


def _earlier_record(folder: Path, ours: dict[str, Any]) -> dict[str, Any]:
    """What the run was started with, if the features are of the same kind."""
    theirs: dict[str, Any] = read_config(folder)["training"]
    recorded = {"compute_dtype": ours["compute_dtype"]} | theirs  # which 0.1.0 did not record
    for name in ("dataset", "encoder_folder", "column", "encoder_sha256", "preprocessing", "compute_dtype"):
        if recorded.get(name) != ours[name]:
            raise TrainError(f"{folder.name} was trained on {name} {recorded.get(name)!r}, this is {ours[name]!r}")
    theirs.pop("settings", None)  # which 0.2.0 kept here
    return theirs | {"untrained_sha256": ours["untrained_sha256"]}


def _trainer(
    folder: Path,
    data: TrainingData,
    machine: Machine,
    method: Method,
    sampler: Sampler,
    store: FeatureStore,
    processes: Processes,
) -> Trainer:
    settings, val = method.settings, data.of("val")
    return Trainer(
        method,
        BatchSource(
            sampler,
            store,
            seed=settings.seed,
            batch_size=settings.batch_size,
            prepare=method.prepare,
            own=processes.own,
        ),
        folder=folder,
        device=machine.device,
        validate=Validator(data.dataset, val, store, machine.device) if val else None,
        select=_selection(data, settings),
        checkpoint_every=machine.checkpoint_every,
        log=MetricsLog(folder, tensorboard=machine.tensorboard),
        processes=processes,
    )


def _selection(data: TrainingData, settings: TrainSettings) -> str:
    """The metric that chooses the model: the one that was asked for, or what the val split allows."""
    val, wanted = data.of("val"), settings.select
    if not val:
        if wanted != "last":
            LOGGER.info("no val videos: the last model is kept")
        return "last"
    labelled = {video.view for video in val if video.labels is not None}
    if wanted in ("retrieval", "trimmed", "both") and len(labelled) < 2:
        LOGGER.info(
            f"--select {wanted} needs val videos of both views with phase labels: the model is chosen by tau instead"
        )
        return "tau"
    return wanted


def _embed(
    folder: Path,
    data: TrainingData,
    untrained: Method,
    store: FeatureStore,
    device: torch.device,
    progress: Progress,
    stop: Callable[[], bool],
) -> int:
    """The embedding pass of the model that the run has kept, and of the one that it began with."""
    digest = model_digest(folder)
    models = (
        EmbeddingModel(Method.from_pretrained(folder), digest, untrained=False),
        EmbeddingModel(untrained, _digest(untrained), untrained=True),
    )
    return embed_run(folder, models, data, store, device, progress, stop)


def _videos_digest(data: TrainingData) -> str:
    """Of what the batches and the choice of the model depend on."""
    facts = [
        (video.split, video.view, video.id, video.labels, read_digest(video.path, data.column))
        for video in data.videos
        if video.split in ("train", "val")
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _digest(model: Method) -> str:
    return hashlib.sha256(model_bytes(model)).hexdigest()
