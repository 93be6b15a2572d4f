"""What byov-embed has left: the embeddings of one video in a file, .npz or .h5, or a folder of such files."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import read_embedding, read_view
from byov.cache.layout import VIEWS
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import EvaluationError
from byov.evaluate.embedding_readers import EmbeddingReader
from byov.evaluate.npz import naming_the_file, read_array
from byov.evaluate.protocols import Segment
from byov.text import counted

ENDINGS = (".npz", ".h5")
MARK = "embedding.npy"  # of an .npz: what no file of many videos has
LONGEST_TEXT = 300  # characters


@dataclass(frozen=True)
class EmbeddedFile:
    """One file: whose embeddings, of which video, by which model."""

    path: Path
    video: str
    view: str | None  # None: neither the file nor its folder says it
    run: str
    model_sha256: str
    embedding: NDArray[np.float32]  # (T, D)


class EmbeddedFiles(EmbeddingReader):
    """The files as a dataset of their own, all test videos without labels; or, with the manifest of a dataset in the
    cache, as videos of that dataset, which are found by their names."""

    kind = "npz"

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.name, self.remedy = path.name, "embed it again with byov-embed"
        files = [_read(file) for file in _files(path)]
        _refuse_other_models(files)
        self._origin = {"files": path.name, "run": files[0].run, "model_sha256": files[0].model_sha256}
        known = None if manifest is None else {video.id: video for video in manifest.videos}
        videos = [(_own_entry(file) if known is None else _known_entry(file, known), file) for file in files]
        self._files = {(video.view, video.id): file for video, file in videos}
        if len(self._files) < len(files):
            first = next(file for video, file in videos if self._files[video.view, video.id] is not file)
            raise EvaluationError(f"{path}: two files of {first.view or 'the'} video {first.video!r}; keep one")
        entries = tuple(video for video, _ in videos)
        self.manifest = Manifest("embedded", (), (), entries) if manifest is None else replace(manifest, videos=entries)

    def path(self, segment: Segment) -> Path:
        return self._files[segment.video.view, segment.video.id].path

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        file = self._files[segment.video.view, segment.video.id]
        if len(file.embedding) != len(segment):
            theirs = f"{self.manifest.dataset} has {counted(len(segment), 'frame')} of it"
            raise EvaluationError(f"{file.path}: {counted(len(file.embedding), 'embedding')}, {theirs}; {self.remedy}")
        return file.embedding

    def origin(self) -> dict[str, Any]:
        return self._origin


def is_embedded(path: Path) -> bool:
    """Is it what byov-embed leaves, not an .npz of many videos?"""
    if path.is_dir() or path.suffix.lower() == ".h5":
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return MARK in archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return False


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not found:
        raise EvaluationError(f"{path}: no files of byov-embed in it, which end in {' or '.join(ENDINGS)}")
    return found


def _read(path: Path) -> EmbeddedFile:
    if path.suffix.lower() == ".h5":
        embedding, source = read_embedding(path)
        return EmbeddedFile(
            path, source.video, _view(path, read_view(path)), source.run, source.model_sha256, embedding
        )
    with naming_the_file(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        missing = [key for key in ("embedding", "video", "run", "model_sha256") if key not in members]
        if missing:
            raise EvaluationError(f"no {', '.join(missing)}; not a file of byov-embed")
        text = {
            key: _text(read_array(archive, members[key], key, "U"), key)
            for key in ("video", "run", "model_sha256", "view")
            if key in members
        }
        embedding = np.ascontiguousarray(read_array(archive, members["embedding"], "embedding", "f"), np.float32)
        if embedding.ndim != 2 or not embedding.size:
            raise EvaluationError(f"embedding: shape {embedding.shape}, expected frames x dimensions")
    return EmbeddedFile(
        path, text["video"], _view(path, text.get("view")), text["run"], text["model_sha256"], embedding
    )


def _text(array: NDArray[Any], key: str) -> str:
    if array.shape != () or array.dtype.itemsize > 4 * LONGEST_TEXT:
        raise EvaluationError(f"{key}: expected a text")
    return str(array)


def _view(path: Path, said: str | None) -> str | None:
    """As the file says, or the folder that it lies in."""
    if said is not None and said not in VIEWS:
        raise EvaluationError(f"{path}: view {said[:20]!r}, expected {' or '.join(VIEWS)}")
    return said or (path.parent.name if path.parent.name in VIEWS else None)


def _refuse_other_models(files: list[EmbeddedFile]) -> None:
    first = files[0]
    for file in files:
        if file.model_sha256 != first.model_sha256:
            raise EvaluationError(
                f"{file.path} is of the run {file.run} and {first.path} of {first.run}; embeddings of two models have "
                "nothing in common, score each alone"
            )


def _own_entry(file: EmbeddedFile) -> VideoEntry:
    if file.view is None:
        raise EvaluationError(
            f"{file.path}: it does not say its view; embed with --view ego or exo, or give --dataset if it is of one"
        )
    view = cast(Literal["ego", "exo"], file.view)
    return VideoEntry(file.video, view, "test", len(file.embedding), None, None, None)


def _known_entry(file: EmbeddedFile, known: Mapping[str, VideoEntry]) -> VideoEntry:
    video = known.get(file.video)
    if video is None or file.view not in (None, video.view):
        view = f"{file.view} " if file.view else ""
        raise EvaluationError(f"{file.path}: the dataset has no {view}video {file.video!r}; leave --dataset out")
    return video
