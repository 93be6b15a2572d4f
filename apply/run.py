"""Runs: training, loading, applying and evaluating them."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from byov.apply.annotated_videos import AnnotatedVideo, AnnotatedVideos, list_videos
from byov.apply.arrays import VideoArrays
from byov.apply.embedder import EmbeddedVideo, check_frames, frame_features, load_run_encoder
from byov.apply.stream import Stream
from byov.cache.digests import array_sha256, file_sha256
from byov.cache.embeddings import EmbeddingProvenance
from byov.cache.runs import RunRecord, check_model, choose_run, read_run
from byov.data.own_videos import read_labels
from byov.data.video import (
    BLOCK_FRAMES,
    MAX_PIXELS,
    DecodingPolicy,
    FrameReader,
    OnDamage,
    estimated_frames,
)
from byov.device import Device, pick_device, usable_cores
from byov.errors import ApplyError
from byov.evaluate.compare import score
from byov.evaluate.protocols import Protocol, ScoredSplit, Segment, segments
from byov.evaluate.readers import RunEmbeddings
from byov.evaluate.scope import ALL, choose_scope
from byov.evaluate.table import Row
from byov.evaluate.tasks import EvaluationOptions
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never
from byov.records import Split, View, check_choice
from byov.train import runs
from byov.train.config import CHECKPOINT_EVERY, PRELOAD_GIB
from byov.train.methods.base import Method

if TYPE_CHECKING:  # importing transformers takes seconds
    from byov.extract.encoders import FrameEncoder


class Run:
    """Trained run with its model, embeddings and scores. Create it with `load_run` or `train_run`.

    Attributes:
        record: Contents of config.json: data, settings and training state.
        name: Name of the run.
        folder: Folder with the files of the run.
        dataset: Dataset that the run was trained on.
        features_dir: Folder of the feature cache.
        device: Device for the model and the encoder, such as "auto".
        encoder: Local folder of the encoder, or None for its original source.
    """

    def __init__(
        self,
        record: RunRecord,
        features_dir: Path,
        device: Device = "auto",
        encoder: str | None = None,
    ) -> None:
        check_choice("device", device, Device)
        self.record = record
        self.name = record.name
        self.folder = record.folder
        self.dataset = record.dataset
        self.features_dir = features_dir
        self.device = device
        self.encoder = encoder
        self._frame_encoder: FrameEncoder | None = None

    def __repr__(self) -> str:
        return f"<run {self.name} of {self.dataset}: {self.record.title or self.record.recipe}>"

    @cached_property
    def model(self) -> Method:
        """Saved model, a `torch.nn.Module`."""
        return Method.from_pretrained(self.folder, map_location=str(pick_device(self.device)))

    def embed(
        self, video: str | os.PathLike[str] | NDArray[Any] | Tensor, **options: Any
    ) -> NDArray[np.float32]:
        """Embed the frames of one video.

        Args:
            video: Path of a video file, (T, H, W, 3) uint8 RGB frames as a NumPy array, or (T, d)
                features from the encoder that the run was trained on.
            **options: Further arguments of `embed_video`, if `video` is a path.

        Returns:
            Frame embeddings (T, D).

        >>> run, features = load_run("demo-byov"), byov.load_features("demo")
        >>> embedding = run.embed(features["test_ego_00"])
        >>> embedding.shape == (len(features["test_ego_00"]), run.record.settings["latent"])
        True
        >>> bool((run.embed("datasets/demo/test/ego/test_ego_00.mp4") == embedding).all())
        True
        """
        if isinstance(video, (str, os.PathLike)):
            return self.embed_video(video, **options).embedding
        shape = tuple(getattr(video, "shape", ()))
        kind = getattr(getattr(video, "dtype", None), "kind", "f")
        if isinstance(video, np.ndarray) and len(shape) == 4:
            check_frames(video)
            blocks = (
                video[first : first + BLOCK_FRAMES] for first in range(0, len(video), BLOCK_FRAMES)
            )
            return self._embed(frame_features(self.frame_encoder(), blocks, self.record.ratio))
        if len(shape) != 2 or not shape[0] or shape[1] != self.model.width or kind not in "fiu":
            what = (
                f"a {video.dtype} array of shape {shape}" if shape else f"a {type(video).__name__}"
            )
            raise ApplyError(
                f"Cannot embed {what}: {self.name} takes a path, (T, H, W, 3) frames, or "
                f"(T, {self.model.width}) features, one video at a time."
            )
        return self._embed(video)

    def embed_video(
        self,
        video: str | os.PathLike[str],
        *,
        on_truncated: OnDamage = "error",
        on_corrupt: OnDamage = "error",
        max_pixels: int = MAX_PIXELS,
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> EmbeddedVideo:
        """Embed a video file with the encoder and model of the run, and return embeddings and frame
        times.

        The encoder is loaded on first use.

        Args:
            video: Path of the video file.
            on_truncated: "error", or "keep" to embed the decodable frames of a truncated video.
            on_corrupt: "error", or "keep" to embed frames that FFmpeg marks as corrupt.
            max_pixels: Maximum number of pixels per frame.
            progress: Receives progress updates.
            stop: Called between blocks of frames; if it returns True, Interrupted is raised.

        >>> video = load_run("demo-byov").embed_video("datasets/demo/test/ego/test_ego_00.mp4")
        >>> len(video.embedding) == len(video.pts_seconds)
        True
        """
        path = Path(video)
        record = self.record
        encoder = self.frame_encoder(progress)  # fails if it is not the one in the record
        if not path.is_file():
            raise ApplyError(f"{path} is not a file.")
        policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
        pts_seconds = list[NDArray[np.float64]]()

        def blocks() -> Iterator[NDArray[np.uint8]]:
            reader = FrameReader(path, threads=usable_cores(), policy=policy)
            with Stoppable(progress, stop).bar(
                "frames", unit="frame", total=estimated_frames(path)
            ) as bar:
                for block in reader.blocks():
                    pts_seconds.append(block.pts_seconds)
                    yield block.pixels
                    bar.advance(len(block.pixels))

        features = frame_features(encoder, blocks(), record.ratio)
        source = EmbeddingProvenance(
            run=self.name,
            model_sha256=check_model(self.folder, record.training).sha256,
            dataset="none",
            view="",
            video=path.stem,
            **record.model_dump(
                include={"encoder", "encoder_revision", "encoder_sha256", "preprocessing", "column"}
            ),
            column_sha256=array_sha256(features.cpu().numpy()),
            first_frame=0,
            source_sha256=file_sha256(path),
        )
        return EmbeddedVideo(path, self._embed(features), np.concatenate(pts_seconds), source)

    def annotate(
        self,
        videos: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        labels: str | os.PathLike[str] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        repeat: bool = False,
        progress: Progress = NO_PROGRESS,
        stop: Stop = never,
    ) -> list[AnnotatedVideo]:
        """Annotate videos with progress, phases and events; phases come from labeled videos.

        Args:
            videos: Video files or folders of videos.
            labels: CSV with the columns path and events. Default: the labels of the training
                videos, if there are any.
            cache_dir: Folder to keep the features of the videos in.
            repeat: Find all occurrences of the action in long recordings.
            progress: Receives progress updates.
            stop: Called between batches; if it returns True, Interrupted is raised.

        Raises:
            ApplyError: A video cannot be read.

        >>> (video,) = load_run("demo-byov").annotate("datasets/demo/test/ego/test_ego_00.mp4")
        >>> (annotation,) = video.annotations  # the video shows the action once
        >>> len(annotation.progress) == len(annotation.phases) == len(video.seconds)
        True
        """
        paths = [videos] if isinstance(videos, (str, os.PathLike)) else videos
        listed = list_videos([Path(path) for path in paths])
        given = None if labels is None else read_labels(Path(labels), Path(labels).parent)
        with TemporaryDirectory() as temporary:
            annotated = AnnotatedVideos(
                self,
                listed,
                Path(cache_dir or temporary),
                labels=given,
                repeat=repeat,
                progress=progress,
                stop=stop,
            )
            for reason in annotated.failures.values():
                raise ApplyError(reason)
            return list(annotated)

    def stream(self, window: int | None = None) -> Stream:
        """Open a stream for live video; its `push` method returns the embedding, progress and phase
        of a frame.

        Args:
            window: Number of most recent frames to use. Default: the length of the longest training
                video.

        >>> stream = load_run("demo-byov").stream()
        >>> for frame in np.zeros((2, 240, 320, 3), np.uint8):
        ...     embedding, progress, phase = stream.push(frame)
        >>> 0 <= progress <= 1
        True
        """
        return Stream(self, window)

    def frame_encoder(self, progress: Progress = NO_PROGRESS) -> "FrameEncoder":
        """Return the frozen vision model that the run was trained with; it is loaded on the first
        call.
        """
        if self._frame_encoder is None:
            self._frame_encoder = load_run_encoder(self.record, self.encoder, self.device, progress)
        return self._frame_encoder

    def _embed(self, features: NDArray[Any] | Tensor) -> NDArray[np.float32]:
        if not isinstance(features, np.ndarray):
            features = features.to(next(self.model.parameters()).device)
        embedding: NDArray[np.float32] = self.model.embed(features).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise ApplyError(
                f"The embeddings of {self.name} are not finite. Check the features, or use another "
                "run."
            )
        return embedding

    def embeddings(
        self, split: Split = "test", *, view: View | None = None, untrained: bool = False
    ) -> VideoArrays:
        """Open the embeddings of the dataset as a mapping from video ids to (T, D) float32 arrays.

        Args:
            split: Restrict the videos to this split.
            view: Restrict the videos to this view.
            untrained: Open the embeddings of the untrained model instead.

        >>> embeddings = load_run("demo-byov").embeddings("test", view="exo")
        >>> len(embeddings["test_exo_00"]) == embeddings.videos["test_exo_00"].frames
        True
        """
        reader = RunEmbeddings(
            self.folder.parent, self.features_dir, self.name, untrained=untrained
        )
        entries = [segment.video for segment in segments(reader.manifest, split)]
        arrays = VideoArrays(
            reader.manifest,
            entries,
            lambda video: reader.rows(Segment(video)),
            split=split,
            view=view,
        )
        reader.require_files([Segment(video) for video in arrays.videos.values()], split)
        return arrays

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
        """Score the run's embeddings.

        Args:
            *tasks: Task names. Default: all tasks that the dataset has labels for, except few-shot.
            split: "val" or "test".
            protocol: "standard", "trimmed" (sub-clips embedded on their own) or "online" (no later
                frames).
            untrained: Score the untrained model instead.
            options: Task options.
            progress: Receives progress updates.
            stop: Called between tasks; if it returns True, Interrupted is raised.

        Returns:
            Scores as fractions, not percentages. A score that cannot be computed is None, and
            `scores[name].missing` gives the reason.

        >>> row = load_run("demo-byov").evaluate("retrieval", "tau")
        >>> 0 <= row.value("retrieval/map@5/ego2exo") <= 1
        True
        >>> sorted(row.scores)[:2]
        ['kendalls_tau/all', 'kendalls_tau/ego-ego']
        """
        reader = RunEmbeddings(
            self.folder.parent, self.features_dir, self.name, untrained=untrained
        )
        check_choice("split", split, ScoredSplit)
        scope = choose_scope(
            reader.manifest, tasks or (ALL,), split=split, protocol=protocol, options=options
        )
        return score(reader, scope, progress=Stoppable(progress, stop))[protocol]


def load_run(
    run: str | None = None,
    *,
    device: Device = "auto",
    encoder: str | None = None,
    runs_dir: Folder = None,
    features_dir: Folder = None,
) -> Run:
    """Load a run.

    Args:
        run: Name of the run. Default: the newest.
        device: Device for the model and the encoder.
        encoder: Local folder of the run's encoder, if it is not on the Hugging Face Hub.
        runs_dir: Folder that contains the runs. Default: BYOV_RUNS, else runs/.
        features_dir: Feature cache, needed for `embeddings` and `evaluate`. Default: BYOV_FEATURES,
            else features/.

    >>> run = load_run("demo-byov")
    >>> run, run.record.column
    (<run demo-byov of demo: BYOV, paper>, 'merged/0.3')
    """
    return Run(
        choose_run(runs_folder(runs_dir), run), features_folder(features_dir), device, encoder
    )


def train_run(
    run: str | None = None,
    *,
    device: Device = "auto",
    features_dir: Folder = None,
    runs_dir: Folder = None,
    resume: bool = False,
    embed_only: bool = False,
    tensorboard: bool = False,
    wandb: bool = False,
    preload_gib: float = PRELOAD_GIB,
    checkpoint_every: int = CHECKPOINT_EVERY,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
    **options: Any,
) -> Run:
    """Train a method on cached features, select the best model on the val split and embed all
    videos with it.

    Args:
        run: Name of the run. Default: DATASET-METHOD-rRATIO-sSEED, or the newest run with `resume`
            or `embed_only`.
        device: Device to train on: "auto", "cuda", "mps" or "cpu".
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        runs_dir: Folder that contains the runs. Default: BYOV_RUNS, else runs/.
        resume: Resume an interrupted run, with the same result as an uninterrupted one. Options
            must match those it was started with, except that `epochs` may be larger if the schedule
            is constant.
        embed_only: Skip training and rewrite the embeddings of an existing run.
        tensorboard: Also log to TensorBoard.
        wandb: Also log to Weights & Biases.
        preload_gib: Maximum size of features to preload into memory, in GiB.
        checkpoint_every: Epochs between checkpoints.
        progress: Receives progress updates for training and embedding.
        stop: Called after every step and before embedding a video; if it returns True, Interrupted
            is raised, and the run can be resumed.
        **options: `method` (default: "byov"), `dataset` and `encoder` (default: the only one),
            `ratio` (default: 0.3) and settings, which are the options of byov-train with
            underscores.

    >>> run = train_run("tiny", latent=32, depth=1, decoder_depth=1, heads=4, frames=8, epochs=2)
    >>> run
    <run tiny of demo: BYOV, paper>
    >>> sorted(path.name for path in run.folder.glob("*.safetensors"))
    ['model-last.safetensors', 'model.safetensors']
    """
    execution = runs.Execution(
        device=device,
        preload_gib=preload_gib,
        checkpoint_every=checkpoint_every,
        trackers=("tensorboard",) * tensorboard + ("wandb",) * wandb,
        features_dir=features_dir,
        runs_dir=runs_dir,
        progress=progress,
        stop=stop,
    )
    execute = runs.embed_run if embed_only else runs.resume_run if resume else runs.start_run
    summary = execute(run, execution, **options)
    return Run(
        read_run(runs_folder(runs_dir), summary["run"]), features_folder(features_dir), device
    )
