"""Embed arbitrary videos with the encoder and the model of a run."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from byov.cache.atomic import replacing_file
from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.features import read_header
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.runs import RunRecord, check_model
from byov.data.dataset import Dataset, Video
from byov.data.video import STRICT, DecodingPolicy
from byov.device import Device
from byov.errors import ApplyError
from byov.extract.encoder_names import IMAGENET_PREFIX, RANDOM_PREFIX, EncoderName, Resize, parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.extraction import extract_jobs
from byov.extract.plan import ExtractionOptions, Job, make_plan
from byov.progress import NO_PROGRESS, Progress
from byov.train.methods.base import Method

LOGGER = logging.getLogger(__name__)
NO_DATASET = "none"  # dataset name in the provenance of these embeddings
_FOLDER_REVISION = "folder "  # prefix of the revision of an encoder that was loaded from a local folder


@dataclass(frozen=True)
class EmbeddedVideo:
    """Frame embeddings of a video file."""

    path: Path
    embedding: NDArray[np.float32]  # (T, D)
    pts_seconds: NDArray[np.float64]  # (T,) frame times
    source: EmbeddingProvenance

    def write(self, path: Path, view: str | None = None) -> None:
        """Write an .npz file, or an HDF5 file as in a run, depending on the suffix of the path."""
        if path.suffix.lower() != ".npz":
            source = replace(self.source, view=view or "")
            write_embedding(path, self.embedding, self.pts_seconds, source)
            return
        names = ("run", "model_sha256", "video", "source_sha256")
        texts: dict[str, Any] = {name: getattr(self.source, name) for name in names}
        if view is not None:
            texts["view"] = view
        with replacing_file(path) as file:
            np.savez(file, embedding=self.embedding, pts_seconds=self.pts_seconds, **texts)


class RunEmbedder:
    """The encoder and the model of a run.

    `encoder` is an encoder id or a local folder, by default the encoder recorded in the run. ApplyError is raised if it
    is not the one that the run was trained on.
    """

    def __init__(
        self, run: RunRecord, encoder: str | None = None, device: Device = "auto", progress: Progress = NO_PROGRESS
    ) -> None:
        self._run = run
        preprocessing = _recorded(run, "preprocessing")
        resize = preprocessing.partition(" ")[0]
        if resize not in get_args(Resize):
            raise ApplyError(f"{run.config}: unknown preprocessing {preprocessing!r}.")
        self._resize = cast(Resize, resize)
        self._name = _recorded_encoder(run) if encoder is None else parse_encoder(encoder)
        self._model_sha256 = check_model(run.folder, run.training).sha256
        self._encoder = load_encoder(self._name, resize=self._resize, device=device, progress=progress)
        for what, trained_on, loaded in (
            ("weights", _recorded(run, "encoder_sha256"), self._encoder.sha256),
            ("preprocessing", preprocessing, self._encoder.preprocessing.describe()),
        ):
            if trained_on != loaded:
                raise ApplyError(
                    f"{run.name} was trained on {run.encoder} with {what} {trained_on!r}, but {self._name.source} has "
                    f"{loaded!r}. Pass the encoder of the run with --encoder."
                )
        dtype, compute_dtype = str(self._encoder.dtype).removeprefix("torch."), run.training.get("compute_dtype")
        if compute_dtype != dtype:  # for example trained on a GPU and used on a robot
            LOGGER.warning(
                f"{run.name} was trained on features computed in {compute_dtype}, --device "
                f"{self._encoder.device.type} computes in {dtype}: the embeddings differ slightly from the run's own"
            )
        self._model = Method.from_pretrained(run.folder, map_location=str(self._encoder.device))

    def embed(
        self,
        videos: Mapping[str, Path],
        scratch: Path,
        policy: DecodingPolicy = STRICT,
        progress: Progress = NO_PROGRESS,
    ) -> tuple[dict[str, str], Iterator[tuple[str, EmbeddedVideo]]]:
        """Embed video files, given by name.

        Returns the error messages of failed videos by name, and an iterator over (name, embeddings) of the others. Keep
        `scratch`, an empty folder for temporary features, until the iterator is exhausted.
        """
        # View and split do not change the features.
        listed = tuple(Video(name, view="ego", split="test", path=path) for name, path in videos.items())
        dataset = Dataset(NO_DATASET, scratch, listed)
        options = ExtractionOptions(self._resize, policy=policy)
        plan = make_plan(dataset, scratch, self._name, options, ratios=(self._run.ratio,))
        failures = extract_jobs(self._encoder, plan, plan.jobs, options, progress).failures
        embedded = ((job.video.id, self._embed(job)) for job in plan.jobs if job.video.id not in failures)
        return failures, embedded

    def _embed(self, job: Job) -> EmbeddedVideo:
        run = self._run
        features = torch.from_numpy(read_array(job.path, run.column)).to(self._encoder.device)
        embedding: NDArray[np.float32] = self._model.embed(features).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise ApplyError(f"{job.video.path}: the embeddings of {run.name} are not finite. Use another run.")
        source = EmbeddingProvenance(
            run=run.name,
            model_sha256=self._model_sha256,
            dataset=NO_DATASET,
            view="",
            video=job.video.path.stem,
            encoder=run.encoder,
            encoder_revision=_recorded(run, "encoder_revision"),
            encoder_sha256=self._encoder.sha256,
            preprocessing=self._encoder.preprocessing.describe(),
            column=run.column,
            column_sha256=read_digest(job.path, run.column),
            first_frame=0,
            source_sha256=read_header(job.path).provenance.source_sha256,
        )
        return EmbeddedVideo(job.video.path, embedding, read_array(job.path, "pts_seconds"), source)


def _recorded(run: RunRecord, key: str) -> str:
    value = run.training.get(key)
    if not isinstance(value, str):
        raise ApplyError(f"{run.config}: {key} is {value!r}; it is needed to load the run's encoder.")
    return value


def _recorded_encoder(run: RunRecord) -> EncoderName:
    revision = _recorded(run, "encoder_revision")
    if revision.startswith(_FOLDER_REVISION):
        raise ApplyError(
            f"{run.name} was trained on the encoder {run.encoder!r} from a local folder. Pass it with --encoder FOLDER."
        )
    if run.encoder.startswith((RANDOM_PREFIX, IMAGENET_PREFIX)):
        return parse_encoder(run.encoder)
    # An id on the Hub: a local folder of that name must not be loaded instead.
    if run.encoder.startswith((".", "/", "~")) or Path(run.encoder).is_dir():
        raise ApplyError(
            f"{run.name} was trained on {run.encoder!r}, which is also a local folder. Pass --encoder to use that."
        )
    return parse_encoder(run.encoder, revision or None)
