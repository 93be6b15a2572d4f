"""Frame embeddings of any videos, by a run's own encoder and model: what the stages do, for videos of no dataset."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from byov.cache.atomic import replacing_file
from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.runs import RunRecord, model_digest
from byov.data.dataset import Dataset, Video
from byov.data.video import STRICT, DecodingPolicy
from byov.device import Device
from byov.errors import ApplyError
from byov.extract.encoder_names import IMAGENET_PREFIX, RANDOM_PREFIX, EncoderName, Resize, parse_encoder
from byov.extract.encoders import FrameEncoder, load_encoder
from byov.extract.extraction import ExtractionOptions, extract_jobs
from byov.extract.plan import Job, Plan, make_plan
from byov.progress import NO_PROGRESS, Progress
from byov.train.methods.base import Method

LOGGER = logging.getLogger(__name__)
NO_DATASET = "none"  # what the embeddings of a video outside all datasets say of theirs
_OF_A_FOLDER = "folder "  # how the revision of an encoder from a local folder begins


@dataclass(frozen=True)
class EmbeddedVideo:
    """A video's (T, D) frame embeddings, the times of its frames, and what they were made by."""

    path: Path
    embedding: NDArray[np.float32]
    pts_seconds: NDArray[np.float64]
    source: EmbeddingProvenance

    def write(self, path: Path, view: str | None = None) -> None:
        """As the path's ending says: .npz for those who have NumPy only, else HDF5 as in a run."""
        if path.suffix.lower() != ".npz":
            write_embedding(path, self.embedding, self.pts_seconds, self.source, view=view)
            return
        texts = {"run": self.source.run, "model_sha256": self.source.model_sha256, "video": self.source.video}
        texts |= {} if view is None else {"view": view}
        arrays: dict[str, Any] = {name: np.array(text) for name, text in texts.items()}  # read without allow_pickle
        arrays |= {"embedding": self.embedding, "pts_seconds": self.pts_seconds}
        with replacing_file(path) as file:
            np.savez(file, **arrays)


class RunEmbedder:
    """A run's encoder and model, checked to be the run's.

    encoder: where to find the run's encoder, if it is not where the run's record says.
    """

    def __init__(
        self, run: RunRecord, encoder: str | None = None, device: Device = "auto", progress: Progress = NO_PROGRESS
    ) -> None:
        self._run, self._encoder = run, recorded_encoder(run, encoder)
        self._model_sha256 = model_digest(run.folder, run.training)
        self._frame_encoder = load_encoder(
            self._encoder.name, resize=self._encoder.resize, device=device, progress=progress
        )
        self._encoder.refuse_other(run, self._frame_encoder)
        self._model = _load_model(run, self._frame_encoder)

    def embed(
        self,
        videos: Mapping[str, Path],
        scratch: Path,
        policy: DecodingPolicy = STRICT,
        progress: Progress = NO_PROGRESS,
    ) -> tuple[dict[str, str], Iterator[tuple[str, EmbeddedVideo]]]:
        """Videos by names of one's own: those that failed with their reasons, and the others, one at a time.

        scratch: an empty folder for the features in between, to be kept until the last video is read.
        """
        plan = self._plan(videos, scratch)
        options = ExtractionOptions(policy=policy)
        failures = extract_jobs(self._frame_encoder, plan, plan.jobs, options, progress).failures
        done = (job for job in plan.jobs if job.video.id not in failures)
        return failures, ((job.video.id, self._embed(job)) for job in done)

    def _plan(self, videos: Mapping[str, Path], scratch: Path) -> Plan:
        # Neither view nor split changes how a video is seen.
        listed = tuple(Video(name, view="ego", split="test", path=path) for name, path in videos.items())
        return make_plan(
            Dataset(NO_DATASET, scratch, listed),
            scratch,
            self._encoder.name,
            resize=self._encoder.resize,
            ratios=(self._encoder.ratio,),
        )

    def _embed(self, job: Job) -> EmbeddedVideo:
        features = torch.from_numpy(read_array(job.path, self._run.column)).to(self._frame_encoder.device)
        embedding: NDArray[np.float32] = self._model.embed(features).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise ApplyError(f"{job.video.path}: the embeddings of {self._run.name} are not finite; use another run")
        return EmbeddedVideo(job.video.path, embedding, read_array(job.path, "pts_seconds"), self._source(job))

    def _source(self, job: Job) -> EmbeddingProvenance:
        return EmbeddingProvenance(
            run=self._run.name,
            model_sha256=self._model_sha256,
            dataset=NO_DATASET,
            video=job.video.path.stem,
            encoder=self._run.encoder,
            encoder_revision=self._encoder.revision,
            encoder_sha256=self._encoder.sha256,
            preprocessing=self._encoder.preprocessing,
            column=self._run.column,
            column_sha256=read_digest(job.path, self._run.column),
            first_frame=0,
        )


@dataclass(frozen=True)
class RunEncoder:
    """The encoder that a run was trained on, as its config.json records it."""

    name: EncoderName
    resize: Resize
    ratio: float  # STM
    revision: str  # this and the rest: of the features that the run was trained on
    sha256: str
    preprocessing: str
    compute_dtype: str | None  # None: of a run that does not record it

    def refuse_other(self, run: RunRecord, loaded: FrameEncoder) -> None:
        """Raise unless the loaded encoder is the run's."""
        for what, theirs, ours in (
            ("encoder weights", self.sha256, loaded.sha256),
            ("preprocessing", self.preprocessing, loaded.preprocessing.describe()),
        ):
            if theirs != ours:
                raise ApplyError(
                    f"{run.name} was trained on {run.encoder} with {what} {theirs!r}, "
                    f"{self.name.source} has {ours!r}; give the run's own encoder with --encoder"
                )
        computed = str(loaded.dtype).removeprefix("torch.")
        if self.compute_dtype not in (None, computed):  # trained on a GPU and used on a robot: near enough, and said
            LOGGER.warning(
                f"{run.name} was trained on features computed in {self.compute_dtype}, --device {loaded.device.type} "
                f"computes in {computed}: its embeddings differ a little from the run's own"
            )


def recorded_encoder(run: RunRecord, given: str | None) -> RunEncoder:
    """given: where to find the run's encoder, if it is not where the record says."""
    revision, sha256, preprocessing = (
        _text(run, key) for key in ("encoder_revision", "encoder_sha256", "preprocessing")
    )
    return RunEncoder(
        name=_recorded_name(run, revision) if given is None else parse_encoder(given),
        resize=_resize(run, preprocessing),
        ratio=run.ratio,
        revision=revision,
        sha256=sha256,
        preprocessing=preprocessing,
        compute_dtype=_text(run, "compute_dtype") if "compute_dtype" in run.training else None,
    )


def _recorded_name(run: RunRecord, revision: str) -> EncoderName:
    if revision.startswith(_OF_A_FOLDER):
        raise ApplyError(
            f"{run.name} was trained on an encoder from a local folder named {run.encoder!r}; "
            "say where it is with --encoder FOLDER"
        )
    if run.encoder.startswith((RANDOM_PREFIX, IMAGENET_PREFIX)):
        return parse_encoder(run.encoder)
    # On the hub, then; a folder of that name would be loaded in its place.
    if run.encoder.startswith((".", "/", "~")) or Path(run.encoder).is_dir():
        raise ApplyError(f"{run.name} was trained on {run.encoder!r}, a folder's name; say --encoder if it is that")
    return parse_encoder(run.encoder, revision or None)


def _resize(run: RunRecord, preprocessing: str) -> Resize:
    word = preprocessing.partition(" ")[0]
    if word not in get_args(Resize):
        raise ApplyError(f"{run.config}: its preprocessing {preprocessing!r} is none that byov knows")
    return cast(Resize, word)


def _text(run: RunRecord, key: str) -> str:
    value = run.training.get(key)
    if not isinstance(value, str):
        raise ApplyError(f"{run.config}: {key} is {value!r}; without it the run's encoder is not known")
    return value


def _load_model(run: RunRecord, encoder: FrameEncoder) -> Method:
    """The model that the run has kept, where the encoder is."""
    model = Method.from_pretrained(run.folder, map_location=str(encoder.device))
    if model.width != encoder.shape.width:
        raise ApplyError(f"{run.name} takes features {model.width} wide, {run.encoder} gives {encoder.shape.width}")
    return model
