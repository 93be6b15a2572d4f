"""One run from beginning to end: what to train on, the model, the training, the embeddings."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from byov import __version__
from byov.cache.atomic import exclusive, remove_abandoned, write_text
from byov.cache.digests import blank_seal, sealed
from byov.cache.runs import (
    CONFIG_NAME,
    FILES_KEY,
    LAST_MODEL_NAME,
    LOCK_NAME,
    METRICS_NAME,
    MODEL_NAME,
    RunRecord,
    list_runs,
    model_digest,
    read_config,
    read_progress,
    read_run,
    run_folder,
)
from byov.errors import CacheError, TrainError
from byov.progress import NO_PROGRESS, Progress, Stop, never
from byov.text import format_size, pluralize
from byov.train.checkpoint import model_bytes
from byov.train.distributed import ALONE, Processes
from byov.train.embedding_pass import EmbeddingModel, embed_run
from byov.train.feature_store import CachedVideo, FeatureStore, TrainingData, open_training_data
from byov.train.methods import build_method
from byov.train.methods.base import Method
from byov.train.sampling import BatchSource, Sampler
from byov.train.settings import (
    DEFAULT_METHOD,
    DEFAULT_RATIO,
    TrainSettings,
    check_names,
    checked,
    differences,
    resolve_settings,
    settings_of,
)
from byov.train.trackers import Board, open_boards
from byov.train.trainer import MetricsLog, Trainer
from byov.train.validation import Validator

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """How to run; nothing here changes the numbers (on one kind of device)."""

    device: torch.device
    preload_bytes: int
    checkpoint_every: int  # epochs
    tensorboard: bool = False
    wandb: bool = False


def new_record(data: TrainingData, untrained: Method) -> dict[str, Any]:
    """What config.json says of the training under "training"; see cache/runs.py for who reads it."""
    settings = untrained.settings
    record = {
        "dataset": data.dataset,
        "encoder": data.identity["encoder"],
        "encoder_revision": data.identity["revision"],
        "encoder_sha256": data.identity["weights"],
        "encoder_folder": data.folder.name,
        "preprocessing": data.identity["preprocessing"],
        "compute_dtype": data.identity["compute type"],
        "column": data.column,
        "recipe": settings.label,
        "title": settings.title,
        "seed": settings.seed,
        "untrained_sha256": hashlib.sha256(model_bytes(untrained)).hexdigest(),
        "videos_sha256": _videos_digest(data),
        "validation": {},
        "versions": {"byov": __version__, "torch": torch.__version__},
    }
    return record | {"identity": _identity(record, data.width, settings)}


def train_run(
    folder: Path,
    data: TrainingData,
    settings: TrainSettings,
    machine: Machine,
    *,
    resume: bool = False,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train into `folder`, then embed; returns a summary, of the process that leads.

    stop: asked after every step; once it says so, a checkpoint is left and Interrupted raised, and `resume` continues.
    processes: those that train this run together. Each calls this function; only the one that leads writes.
    """
    method = build_method(data.width, settings)
    _refuse_sharing(processes, method)
    sampler = method.sampler(data.of("train"))
    method.reset_training_state(len(sampler.videos))
    with _boards(folder, data, settings, machine) as boards, _alone(folder) if processes.leads else nullcontext():
        record = _begin(folder, data, method, resume=resume) if processes.leads else {}
        known = read_config(folder)["training"] if resume else record
        store = _open_store(data, machine, leads=processes.leads)
        log, carried = MetricsLog(folder, boards), _carried(known, settings)
        trainer = _trainer(folder, data, machine, method, sampler, store, processes, log, carried)
        if resume:
            _resume(trainer, folder)
        if processes.leads:
            write_config(folder, method, record)  # the run exists from here on
        trainer.train(stop, progress)
        processes.leave()
        if not processes.leads:
            return {}
        record |= {"validation": trainer.state.best_metrics, FILES_KEY: _file_digests(folder)}
        write_config(folder, method, record)
        untrained = build_method(data.width, settings)
        files = _embed(folder, data, untrained, record, store, machine.device, progress, stop)
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
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> dict[str, Any]:
    """The embedding pass alone, of a run that has a model."""
    with _alone(folder):
        remove_abandoned(folder)
        untrained = build_method(data.width, settings)
        record = _earlier_record(folder, new_record(data, untrained))
        write_config(folder, untrained, record)
        store = FeatureStore(data, (), 0)
        files = _embed(folder, data, untrained, record, store, machine.device, progress, stop)
    return {"run": folder.name, "dataset": data.dataset, "embedding_files": files, "folder": str(folder)}


def write_config(folder: Path, model: Method, record: dict[str, Any]) -> None:
    """config.json and the model card; the weights come from the trainer."""
    model.record.clear()
    model.record.update(record)
    content = json.dumps(blank_seal() | model.config, indent=1) + "\n"
    write_text(folder / CONFIG_NAME, sealed(content.encode()).decode())
    write_text(folder / "README.md", str(model.generate_model_card()))


def _refuse_sharing(processes: Processes, method: Method) -> None:
    """Raise if a step cannot be shared among so many processes."""
    settings = method.settings
    if processes.size > settings.batch_size:
        raise TrainError(
            f"--batch-size {settings.batch_size} is less than the {processes.size} processes; each takes its part of a "
            "batch"
        )
    if processes.size > 1 and method.needs_whole_batch:
        raise TrainError(f"{settings.method} is trained by one process: {method.needs_whole_batch}")


def _boards(
    folder: Path, data: TrainingData, settings: TrainSettings, machine: Machine
) -> AbstractContextManager[Sequence[Board]]:
    said = {"dataset": data.dataset, "encoder": data.identity["encoder"], "column": data.column}
    said |= settings.model_dump(mode="json")
    return open_boards(folder, said, tensorboard=machine.tensorboard, wandb=machine.wandb)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes must not train one run."""
    with ExitStack() as lock:
        try:
            lock.enter_context(exclusive(folder / LOCK_NAME, wait=False))
        except BlockingIOError:
            raise TrainError(f"{folder}: another process is at work on this run") from None
        yield


def _begin(folder: Path, data: TrainingData, untrained: Method, *, resume: bool) -> dict[str, Any]:
    """The record of the run, for as long as its files change."""
    remove_abandoned(folder)
    record = _record_to_train(folder, data, untrained, resume=resume)
    record.pop(FILES_KEY, None)
    return record


def _record_to_train(folder: Path, data: TrainingData, untrained: Method, *, resume: bool) -> dict[str, Any]:
    """The record of a new run, or that of the run to resume, if all that it depends on is still the same."""
    ours = new_record(data, untrained)
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


def _open_store(data: TrainingData, machine: Machine, *, leads: bool) -> FeatureStore:
    """The features of the training videos, and, for the process that validates, of the val videos."""
    videos = (*data.of("train"), *(data.of("val") if leads else ()))
    store = FeatureStore(data, videos, machine.preload_bytes)
    if not store.preloaded:
        LOGGER.info(f"{format_size(store.size_bytes)} of features are read as they are needed (see --preload-gib)")
    return store


def _resume(trainer: Trainer, folder: Path) -> None:
    trainer.resume()
    if trainer.state.step == 0 and (folder / LAST_MODEL_NAME).exists():
        raise TrainError(
            f"{folder.name} is finished and its checkpoints are gone; --embed-only writes its embeddings again"
        )
    LOGGER.info(f"resuming from step {trainer.state.step} of {trainer.total_steps}")


def _trainer(
    folder: Path,
    data: TrainingData,
    machine: Machine,
    method: Method,
    sampler: Sampler,
    store: FeatureStore,
    processes: Processes,
    log: MetricsLog,
    identity: dict[str, Any],
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
            local_items=processes.own,
        ),
        folder=folder,
        device=machine.device,
        validate=Validator(data.dataset, val, store, machine.device) if val else None,
        select=_selection(data, settings),
        checkpoint_every=machine.checkpoint_every,
        log=log,
        processes=processes,
        identity=identity,
    )


def _selection(data: TrainingData, settings: TrainSettings) -> str:
    """The metric that chooses the model: the one that was asked for, or what the val split allows."""
    val, wanted = data.of("val"), settings.select
    if not val:
        if wanted != "last":
            LOGGER.info("no val videos: the last model is kept")
        return "last"
    labeled = {video.view for video in val if video.labels is not None}
    if wanted in ("retrieval", "trimmed", "both") and len(labeled) < 2:
        LOGGER.info(
            f"--select {wanted} needs val videos of both views with phase labels: the model is chosen by tau instead"
        )
        return "tau"
    return wanted


def _embed(
    folder: Path,
    data: TrainingData,
    untrained: Method,
    record: dict[str, Any],
    store: FeatureStore,
    device: torch.device,
    progress: Progress,
    stop: Stop,
) -> int:
    """The embedding pass of the model that the run has kept, and of the one that it began with."""
    digest = model_digest(folder, record)  # first: it says best what is wrong with a model
    models = (
        EmbeddingModel(Method.from_pretrained(folder), digest, untrained=False),
        EmbeddingModel(untrained, record["untrained_sha256"], untrained=True),
    )
    return embed_run(folder, models, data, store, device, progress, stop)


def _videos_digest(data: TrainingData) -> str:
    """Of what the batches and the choice of the model depend on."""
    facts = [
        (video.split, video.view, video.id, video.labels, video.sha256, *_pair_of(video))
        for video in data.videos
        if video.split in ("train", "val")
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _identity(record: dict[str, Any], width: int, settings: TrainSettings) -> str:
    """Of a run, whatever its name and machine: all that decides its numbers."""
    names = ("dataset", "encoder_sha256", "preprocessing", "compute_dtype", "column", "videos_sha256")
    facts = {name: record[name] for name in names} | {"width": width, "settings": settings.model_dump(mode="json")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _carried(record: dict[str, Any], settings: TrainSettings) -> dict[str, Any]:
    """What a run's models and checkpoints say of it; {} of a run of byov 0.2 or before, which has no identity."""
    if "identity" not in record:
        return {}
    return {"identity": record["identity"], "method": settings.method, "seed": settings.seed}


def _file_digests(folder: Path) -> dict[str, str]:
    """Of what a finished run leaves beside its config.json; its metrics are their owner's to delete."""
    paths = (folder / name for name in (MODEL_NAME, LAST_MODEL_NAME, METRICS_NAME))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.exists()}


def _pair_of(video: CachedVideo) -> tuple[str, ...]:
    """Nothing where there is none, as before there were any."""
    return () if video.pair is None else (video.pair,)


Agree = Callable[[Callable[[], str]], str]  # Processes.agree: what one of them chooses counts for all


@dataclass(frozen=True)
class GivenRun:
    """What was said of a run; None where nothing was."""

    name: str | None
    method: str | None
    dataset: str | None
    encoder: str | None
    ratio: float | None
    settings: Mapping[str, Any]


class ChosenRun(NamedTuple):
    """Where it lies, or will lie, what it is trained on, and how."""

    folder: Path
    data: TrainingData
    settings: TrainSettings


def new_run(features_dir: Path, runs_dir: Path, given: GivenRun, agree: Agree = ALONE.agree) -> ChosenRun:
    """A run that there is not yet; what is left out is the paper's, or the only one in the cache."""
    method = given.method or DEFAULT_METHOD
    resolve_settings(method, given.dataset or "", given.settings)  # mistakes first, before anything is read
    named = None if given.name is None else _agreed(runs_dir, given.name, agree)  # before more is asked for
    ratio = DEFAULT_RATIO if given.ratio is None else given.ratio
    data = open_features(features_dir, given.dataset, given.encoder, ratio)
    settings = resolve_settings(method, data.dataset, given.settings)
    return ChosenRun(named or _agreed(runs_dir, _usual_name(data, settings), agree), data, settings)


def earlier_run(features_dir: Path, runs_dir: Path, given: GivenRun, agree: Agree = ALONE.agree) -> ChosenRun:
    """A run to go on with; what is given must be as it was begun."""
    record = read_run(runs_dir, agree(lambda: _newest_run(runs_dir) if given.name is None else given.name))
    settings = _same_settings(record, given.method, given.settings)
    return ChosenRun(record.folder, _same_data(features_dir, record, given), settings)


def open_features(features_dir: Path, dataset: str | None, encoder: str | None, ratio: float) -> TrainingData:
    """The features by name, or the only ones there; what was chosen is said."""
    data = open_training_data(features_dir, dataset, encoder, ratio)
    if dataset is None or encoder is None:
        LOGGER.info(f"features: {data.folder} at ratio {data.column.removeprefix('merged/')}")
    if data.absent:
        LOGGER.info(f"{pluralize(data.absent, 'video')} of {data.dataset} not in the cache; see byov-cache ls")
    return data


def _usual_name(data: TrainingData, settings: TrainSettings) -> str:
    """A run's name by what it is."""
    ratio = data.column.removeprefix("merged/")
    return f"{data.dataset}-{settings.label}-r{ratio}-s{settings.seed}"


def _agreed(runs_dir: Path, name: str, agree: Agree) -> Path:
    """The folder of a new run, for all processes that train it."""
    return run_folder(runs_dir, agree(lambda: _new_folder(runs_dir, name).name))


def _new_folder(runs_dir: Path, name: str) -> Path:
    """The folder of a run that there is not yet."""
    folder = run_folder(runs_dir, name)
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        if _is_finished(runs_dir, folder.name):
            raise TrainError(
                f"{folder} exists and is finished; choose another name with --run, "
                f"or score it with byov-eval --run {folder.name}"
            )
        raise TrainError(
            f"{folder} exists; resume it with --run {folder.name} --resume, or choose another name with --run"
        )
    return folder


def _is_finished(runs_dir: Path, name: str) -> bool:
    """Of what cannot be read as a run, --resume says more."""
    try:
        return read_progress(read_run(runs_dir, name)).state == "finished"
    except CacheError:
        return False


def _newest_run(runs_dir: Path) -> str:
    """The run to go on with where none is named; said."""
    runs = list_runs(runs_dir)
    if not runs:
        raise TrainError(f"{runs_dir}: no run here; start one with byov-train --ratio {DEFAULT_RATIO}")
    LOGGER.info(f"run: {runs[0]}, the newest (choose with --run)")
    return runs[0]


def _same_settings(record: RunRecord, method: str | None, given: Mapping[str, Any]) -> TrainSettings:
    """The run's own settings; what is given beside must not contradict them."""
    theirs = settings_of(record)
    if method not in (None, theirs.method):
        raise TrainError(f"{record.name} is a run of the method {theirs.method}, not of {method}")
    check_names(theirs.method, given)
    other = differences(checked(type(theirs), **(theirs.model_dump() | dict(given))), theirs)
    if other:
        raise TrainError(
            f"{record.name} was started with {'; '.join(other)}. Leave the option out, or start another run"
        )
    return theirs


def _same_data(features_dir: Path, record: RunRecord, given: GivenRun) -> TrainingData:
    """The features that the run was begun with; what is given must be the same."""
    encoder = record.encoder if given.encoder == record.encoder_folder else given.encoder
    for name, ours, their in (
        ("dataset", given.dataset, record.dataset),
        ("encoder", encoder, record.encoder),
        ("ratio", given.ratio, record.ratio),
    ):
        if ours is not None and ours != their:
            raise TrainError(f"{record.name} was started with {name} {their!r}, not {ours!r}")
    return open_features(features_dir, record.dataset, record.encoder_folder, record.ratio)
