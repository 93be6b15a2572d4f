"""A run as one object: its model on any video or features, its embeddings, its scores."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import RunRecord, choose_run
from byov.data.dataset import Split, View
from byov.data.video import DecodingPolicy, OnCorrupt, OnTruncated
from byov.device import Device, pick_device
from byov.errors import ApplyError, VideoError
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.evaluation import Scope, evaluate, require_labels, tasks_of
from byov.evaluate.protocols import Protocol, ScoredSplit, segments
from byov.evaluate.table import Row
from byov.evaluate.tasks import EvaluationOptions
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never
from byov.text import pluralize
from byov.train.feature_store import FeatureStore
from byov.train.run import open_features
from byov.train.settings import DEFAULT_RATIO

if TYPE_CHECKING:  # torch takes seconds to import; embeddings and scores get by without it
    from torch import Tensor

    from byov.apply.embedder import EmbeddedVideo, RunEmbedder
    from byov.train.methods.base import Method
from byov.cache.runs import read_run
from byov.train.run import GivenRun, earlier_run, new_run
from byov.train.settings import CHECKPOINT_EVERY, PRELOAD_GIB


class VideoArrays(Mapping[str, NDArray[Any]]):
    """Video id → its (T, d) array, read from its file each time; `videos` has what is known of each.

    phases: the names of what the `labels` of a video count.
    """

    def __init__(
        self, manifest: Manifest, videos: Sequence[VideoEntry], read: Callable[[VideoEntry], NDArray[Any]]
    ) -> None:
        self.dataset, self.phases = manifest.dataset, manifest.phases
        self.videos = {video.id: video for video in videos}
        self._read = read

    def __getitem__(self, video: str) -> NDArray[Any]:
        return self._read(self.videos[video])

    def __iter__(self) -> Iterator[str]:
        return iter(self.videos)

    def __len__(self) -> int:
        return len(self.videos)

    def __repr__(self) -> str:
        return f"<arrays of {pluralize(len(self), 'video')} of {self.dataset}>"


def of_split(
    manifest: Manifest, videos: Sequence[VideoEntry], split: Split | None, view: View | None
) -> list[VideoEntry]:
    """Those of a split and a view, or of all; raises if there are none."""
    chosen = [video for video in videos if split in (None, video.split) and view in (None, video.view)]
    if not chosen:
        there = ", ".join(sorted({f"{video.split} {video.view}" for video in videos})) or "none at all"
        wanted = " ".join(part for part in (split, view) if part)
        raise ApplyError(f"{manifest.dataset}: no {wanted} videos; there are {there}")
    return chosen


def load_features(
    dataset: str | None = None,
    *,
    split: Split | None = None,
    view: View | None = None,
    encoder: str | None = None,
    ratio: float = DEFAULT_RATIO,
    features_dir: Folder = None,
) -> VideoArrays:
    """The cached features of a dataset's videos at an STM ratio, as (T, d) float16 arrays by video id.

    Dataset and encoder may be left out where the cache has only one. The features of a video are read when they are
    asked for, so that a dataset may be larger than the memory.

    >>> features = load_features("demo", split="test")
    >>> features["pour_ego_015"].shape
    (12, 128)
    >>> [(video.id, video.view, video.frames) for video in features.videos.values()]
    [('pour_ego_015', 'ego', 12), ('pour_exo_015', 'exo', 14)]
    """
    data = open_features(features_folder(features_dir), dataset, encoder, ratio)
    manifest, store = load_manifest(data.folder.parent / "manifest.json"), FeatureStore(data, (), 0)
    cached = {video.id: video for video in data.videos}
    entries = [entry for entry in manifest.videos if entry.id in cached]

    def read(entry: VideoEntry) -> NDArray[np.float16]:
        return store.read(cached[entry.id])

    return VideoArrays(manifest, of_split(manifest, entries, split, view), read)


class Run:
    """What byov-train has left in a folder. `record` has what it was trained on and how."""

    def __init__(
        self, record: RunRecord, features_dir: Path, device: Device = "auto", encoder: str | None = None
    ) -> None:
        self.record = record
        self._features_dir, self._device, self._encoder = features_dir, device, encoder

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.record.recipe} on {self.dataset}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def folder(self) -> Path:
        return self.record.folder

    @property
    def dataset(self) -> str:
        return self.record.dataset

    @cached_property
    def model(self) -> "Method":
        """The model that the run has kept, a torch.nn.Module."""
        from byov.train.methods.base import Method

        return Method.from_pretrained(self.folder, map_location=str(pick_device(self._device)))

    def embed(
        self,
        video_or_features: "str | os.PathLike[str] | NDArray[Any] | Tensor",
        *,
        on_truncated: OnTruncated = "error",
        on_corrupt: OnCorrupt = "error",
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> NDArray[np.float32]:
        """The (T, D) frame embeddings of a video file, or of the (T, d) features of one video from the cache.

        >>> run, features = load_run("demo-paper"), byov.load_features("demo")
        >>> run.embed(features["pour_ego_015"]).shape
        (12, 32)
        >>> run.embed("datasets/demo/test/ego/pour_ego_015.mp4").shape
        (12, 32)
        """
        if isinstance(video_or_features, (str, os.PathLike)):
            return self.embed_video(
                video_or_features, on_truncated=on_truncated, on_corrupt=on_corrupt, progress=progress, stop=stop
            ).embedding
        return self._embed_features(video_or_features)

    def embed_video(
        self,
        video: str | os.PathLike[str],
        *,
        on_truncated: OnTruncated = "error",
        on_corrupt: OnCorrupt = "error",
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> "EmbeddedVideo":
        """A video file through the run's own encoder and model: its embeddings and the times of its frames.

        The encoder is loaded with the first video. A video of the run's own dataset gets the run's own embeddings.

        >>> load_run("demo-paper").embed_video("datasets/demo/test/ego/pour_ego_015.mp4").pts_seconds[:3].tolist()
        [0.0, 0.1, 0.2]
        """
        path = Path(video)
        if not path.is_file():
            raise ApplyError(f"{path}: {'a folder, not a video' if path.is_dir() else 'no such file'}")
        with TemporaryDirectory(prefix="byov-", ignore_cleanup_errors=True) as scratch:
            policy, shown = DecodingPolicy(on_truncated, on_corrupt), Stoppable(progress, stop)
            failures, embedded = self._embedder.embed({"video": path}, Path(scratch), policy, shown)
            if failures:
                raise VideoError(failures["video"])
            return next(embedded)[1]

    def embeddings(self, split: Split = "test", *, view: View | None = None, untrained: bool = False) -> VideoArrays:
        """What the run made of its dataset's videos: (T, D) float32 arrays by video id.

        untrained: what its model made of them before it had learned anything.

        >>> load_run("demo-paper").embeddings("test", view="exo")["pour_exo_015"].shape
        (14, 32)
        """
        reader = self._reader(untrained=untrained)
        wanted = {segment.video.id: segment for segment in segments(reader.manifest, split)}
        videos = of_split(reader.manifest, [segment.video for segment in wanted.values()], split, view)
        reader.require_files([wanted[video.id] for video in videos], split)

        def read(video: VideoEntry) -> NDArray[np.float32]:
            return reader.rows(wanted[video.id])

        return VideoArrays(reader.manifest, videos, read)

    def evaluate(
        self,
        *tasks: str,
        split: ScoredSplit = "test",
        protocol: Protocol = "standard",
        untrained: bool = False,
        options: EvaluationOptions | None = None,
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> Row:
        """The run's scores in some tasks, or in all that its dataset has labels for (but few-shot).

        Shares, not percent. A score that cannot be given is None, with its reason in `scores[name].missing`.

        >>> row = load_run("demo-paper").evaluate("retrieval", "tau")
        >>> 0 <= row.value("retrieval/map@5/ego2exo") <= 1
        True
        >>> sorted(row.scores)[:2]
        ['kendalls_tau/all', 'kendalls_tau/ego-ego']
        """
        reader = self._reader(untrained=untrained)
        require_labels(reader.manifest, split, tasks)
        scope = Scope(split, (protocol,), tasks or tasks_of(reader.manifest), options or EvaluationOptions())
        return evaluate(reader, scope, Stoppable(progress, stop))[protocol]

    @cached_property
    def _embedder(self) -> "RunEmbedder":
        from byov.apply.embedder import RunEmbedder

        return RunEmbedder(self.record, self._encoder, self._device)

    def _reader(self, *, untrained: bool) -> RunEmbeddings:
        return RunEmbeddings(self.folder.parent, self._features_dir, self.name, untrained=untrained)

    def _embed_features(self, features: "NDArray[Any] | Tensor") -> NDArray[np.float32]:
        shape, width = tuple(features.shape), self.model.width
        if len(shape) != 2 or not shape[0] or shape[1] != width:
            raise ApplyError(f"features of shape {shape}; {self.name} takes (T, {width}), those of one video")
        if not isinstance(features, np.ndarray):
            features = features.to(next(self.model.parameters()).device)
        embedding: NDArray[np.float32] = self.model.embed(features).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise ApplyError(f"the embeddings of {self.name} are not finite; look at the features")
        return embedding


def load_run(
    run: str | None = None,
    *,
    device: Device = "auto",
    encoder: str | None = None,
    runs_dir: Folder = None,
    features_dir: Folder = None,
) -> Run:
    """A run by its name, or the newest.

    device: where its model, and for videos its encoder, works. encoder: where the run's encoder is, if it was a local
    folder. Folders that are left out are those of the environment (BYOV_RUNS, BYOV_FEATURES), else runs/ and features/;
    features are needed for `embeddings` and `evaluate` alone.

    >>> run = load_run("demo-paper")
    >>> run, run.folder.as_posix(), run.record.column
    (<run demo-paper: paper on demo>, 'runs/demo-paper', 'merged/0.3')
    """
    return Run(choose_run(runs_folder(runs_dir), run), features_folder(features_dir), device, encoder)


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
    progress: Progress = NO_PROGRESS,
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
    from byov.train import run as training  # torch takes seconds to import; mistakes are told without it

    preload_bytes = int(preload_gib * 2**30)
    machine = training.Machine(pick_device(device), preload_bytes, checkpoint_every, tensorboard, wandb)
    training.train_run(folder, data, chosen, machine, resume=resume, progress=progress, stop=stop)
    return Run(read_run(runs, folder.name), features, device)
