"""A run as one object: its model on any video or features, its embeddings, its scores."""

import os
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from byov.apply.video_arrays import VideoArrays, of_split
from byov.cache.manifest import VideoEntry
from byov.cache.runs import RunRecord, choose_run
from byov.data.dataset import Split, View
from byov.data.video import DecodingPolicy, OnCorrupt, OnTruncated
from byov.device import Device, pick_device
from byov.errors import ApplyError, VideoError
from byov.evaluate.embedding_readers import RunEmbeddings
from byov.evaluate.evaluation import evaluate, refuse_missing_labels
from byov.evaluate.protocols import Protocol, ScoredSplit, segments
from byov.evaluate.scores import Row
from byov.evaluate.task import EvaluationOptions
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import SILENT, Progress
from byov.stopping import Stop, Stoppable, never

if TYPE_CHECKING:  # torch takes seconds to import; embeddings and scores get by without it
    from torch import Tensor

    from byov.apply.run_embedder import EmbeddedVideo, RunEmbedder
    from byov.train.methods.method import Method


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
        from byov.train.methods.method import Method

        return Method.from_pretrained(self.folder, map_location=str(pick_device(self._device)))

    def embed(
        self,
        video_or_features: "str | os.PathLike[str] | NDArray[Any] | Tensor",
        *,
        on_truncated: OnTruncated = "error",
        on_corrupt: OnCorrupt = "error",
        progress: Progress = SILENT,
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
        progress: Progress = SILENT,
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

        untrained: what its model made of them before it had learnt anything.

        >>> load_run("demo-paper").embeddings("test", view="exo")["pour_exo_015"].shape
        (14, 32)
        """
        reader = self._reader(untrained=untrained)
        wanted = {segment.video.id: segment for segment in segments(reader.manifest, split)}
        videos = of_split(reader.manifest, [segment.video for segment in wanted.values()], split, view)
        reader.refuse_absent([wanted[video.id] for video in videos], split)

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
        progress: Progress = SILENT,
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
        refuse_missing_labels(reader.manifest, split, tasks)
        return evaluate(
            reader,
            split=split,
            protocol=protocol,
            tasks=tasks or None,
            options=options,
            progress=Stoppable(progress, stop),
        )

    @cached_property
    def _embedder(self) -> "RunEmbedder":
        from byov.apply.run_embedder import RunEmbedder

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
