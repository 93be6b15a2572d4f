"""The training as one call: from cached features to a run; what byov-train does, without its terminal."""

from typing import Any

from byov.apply.loaded_run import Run
from byov.cache.runs import read_run
from byov.device import Device, pick_device
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import SILENT, Progress
from byov.stopping import Stop, never
from byov.train.run_choices import GivenRun, earlier_run, new_run
from byov.train.settings import CHECKPOINT_EVERY, PRELOAD_GIB


def train_run(
    run: str | None = None,
    *,
    method: str | None = None,
    dataset: str | None = None,
    encoder: str | None = None,
    ratio: float | None = None,
    resume: bool = False,
    device: Device = "auto",
    preload_gib: float = PRELOAD_GIB,
    checkpoint_every: int = CHECKPOINT_EVERY,
    tensorboard: bool = False,
    wandb: bool = False,
    features_dir: Folder = None,
    runs_dir: Folder = None,
    progress: Progress = SILENT,
    stop: Stop = never,
    **settings: Any,
) -> Run:
    """Train a method on cached features, keep the best model on val, embed all videos; no video is read.

    run: its name; of a new one DATASET-METHOD-rRATIO-sSEED if left out, with `resume` the newest. Dataset and encoder
    may be left out where the cache has only one; method "byov" and ratio 0.3 are the paper's. `settings` are those of
    the method: the options of byov-train, with _ for - (`byov-train --help`; docs/training.md).

    `stop` is asked after every step; then a checkpoint is left and Interrupted raised, and the same call with `resume`
    goes on to the same numbers.

    >>> run = train_run("tiny", latent=32, depth=1, decoder_depth=1, heads=4, frames=8, epochs=2)
    >>> run
    <run tiny: paper on demo>
    >>> sorted(path.name for path in run.folder.glob("*.safetensors"))
    ['model-last.safetensors', 'model.safetensors']
    """
    features, runs = features_folder(features_dir), runs_folder(runs_dir)
    given = GivenRun(run, method, dataset, encoder, ratio, settings)
    folder, data, chosen = (earlier_run if resume else new_run)(features, runs, given)
    from byov.train import train_run as training  # torch takes seconds to import; mistakes are told without it

    preload_bytes = int(preload_gib * 2**30)
    machine = training.Machine(pick_device(device), preload_bytes, checkpoint_every, tensorboard, wandb)
    training.train_run(folder, data, chosen, machine, resume=resume, progress=progress, stop=stop)
    return Run(read_run(runs, folder.name), features, device)
