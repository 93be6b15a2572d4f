"""What the figures of a report are made of: the run's embeddings of one split, video by video."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import read_source
from byov.cache.features import Header, read_header
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import VIEWS, video_path
from byov.cache.manifest import Manifest
from byov.errors import CacheError
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment, segments
from byov.records import UNLABELED
from byov.report.spread import evenly

LOGGER = logging.getLogger(__name__)

MOST_VIDEOS = 60  # of each view; AE2's largest test split has fewer
SPLIT_ORDER = ("test", "val", "train")  # what to show, if there is a choice


@dataclass(frozen=True, eq=False)
class Material:
    """Videos are named by their index in the split."""

    runs_dir: Path
    features_dir: Path
    reader: RunEmbeddings
    split: str
    segments: tuple[Segment, ...]
    frames: Frames

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def feature_folder(self) -> Path:
        """Of the encoder that the run was trained on."""
        return self.features_dir / self.reader.run.dataset / self.reader.run.encoder_folder

    def feature_file(self, video: int) -> Path:
        entry = self.segments[video].video
        return video_path(self.feature_folder, entry.view, entry.id)

    def feature_header(self, video: int) -> Header:
        """Of the file that the run's embeddings of a video were made from; raises CacheError if it has changed."""
        path, segment = self.feature_file(video), self.segments[video]
        header, run = read_header(path), self.reader.run
        embedded = read_source(self.reader.path(segment))
        ours, theirs = header.provenance, (embedded.encoder, embedded.encoder_sha256, embedded.preprocessing)
        same = (ours.encoder, ours.encoder_sha256, ours.preprocessing) == theirs
        if not same or read_digest(path, run.column) != embedded.column_sha256 or header.frames != len(segment):
            raise CacheError(f"{path}: not the features that {run.name} has embedded; {self.reader.remedy}")
        return header

    def embeddings(self, video: int) -> NDArray[np.float32]:
        """(T, D)"""
        first = self.frames.starts[video]
        return self.frames.embeddings[first : first + self.frames.lengths[video]]

    def by(self, reader: RunEmbeddings) -> "Material":
        """The same videos by another run; raises the evaluator's error if it has not embedded them."""
        return replace(self, reader=reader, frames=reader.frames_of(self.segments, self.split))

    def length(self, video: int) -> int:
        return len(self.segments[video])

    def of_view(self, view: str) -> list[int]:
        return [index for index, segment in enumerate(self.segments) if segment.video.view == view]

    def pts_seconds(self, video: int) -> NDArray[np.float64]:
        """(T,)"""
        return read_array(self.reader.path(self.segments[video]), "pts_seconds", remedy=self.reader.remedy)

    def labels(self, video: int) -> tuple[int, ...] | None:
        """The phase of each frame, or UNLABELED, if each is one of the dataset's."""
        labels, phases = self.segments[video].labels, len(self.reader.manifest.phases)
        if not labels or len(labels) != self.length(video) or min(labels) < UNLABELED or max(labels) >= phases:
            return None
        return labels

    def without_places(self, error: Exception) -> str:
        """What an error says, without the folders of this machine: a report is to be given away."""
        text = str(error)
        for folder, name in ((self.features_dir, "features"), (self.runs_dir, "runs")):
            if folder != Path():
                text = text.replace(f"{folder}{os.sep}", f"{name}{os.sep}")
        return text


def read_material(reader: RunEmbeddings, runs_dir: Path, features_dir: Path, split: str) -> Material:
    """Raises the evaluator's error if the embeddings are not there or not the run's."""
    everything = segments(reader.manifest, split)
    shown = some_of_each_view(everything)
    if len(shown) < len(everything):
        LOGGER.info(f"the figures are of {len(shown)} of the {len(everything)} {split} videos, evenly spread")
    return Material(runs_dir, features_dir, reader, split, tuple(shown), reader.frames_of(shown, split))


def some_of_each_view(everything: Sequence[Segment]) -> list[Segment]:
    """In their order; all of them but in the largest datasets, which would not fit in memory."""
    kept = set()
    for view in VIEWS:
        places = [place for place, segment in enumerate(everything) if segment.video.view == view]
        kept |= {places[index] for index in evenly(len(places), MOST_VIDEOS)}
    return [everything[place] for place in sorted(kept)]


def choose_split(manifest: Manifest, wanted: str | None) -> str:
    """The split that was asked for, or the first that has videos."""
    if wanted is not None:
        return wanted
    there = {video.split for video in manifest.videos if video.frames}
    chosen = next((split for split in SPLIT_ORDER if split in there), SPLIT_ORDER[0])
    if chosen != SPLIT_ORDER[0]:
        LOGGER.info(f"{manifest.dataset} has no {SPLIT_ORDER[0]} videos: the figures are of the {chosen} split")
    return chosen
