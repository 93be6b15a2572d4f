"""Tests of embedding files: .npz files with many videos, and files written by byov-embed."""

import os
import pickle
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.evaluate.conftest import GOLDEN

from byov.cache.embeddings import read_embedding
from byov.errors import CacheError, EvaluationError
from byov.evaluate.compare import compare_file, score
from byov.evaluate.embedding_files import is_embedded, open_embeddings, read_npz
from byov.evaluate.readers import RunEmbeddings, TimeOnly
from byov.evaluate.scope import choose_scope

TRAIN = ("train_embeddings", "train_labels", "train_lengths", "train_is_ego")


@pytest.fixture
def write(tmp_path):
    """Return a function that writes an .npz file with several videos; arrays given as None are left
    out.
    """

    def save(**changes):
        arrays = {
            "train_embeddings": np.arange(20, dtype=np.float32).reshape(10, 2),
            "train_labels": np.repeat([0, 1], 5),
            "train_lengths": np.array([4, 6]),
            "train_is_ego": np.array([1, 0]),
            "test_embeddings": np.arange(6, dtype=np.float32).reshape(3, 2),
            "test_labels": np.array([0, 1, 1]),
            "test_lengths": np.array([1, 2]),
            "test_is_ego": np.array([True, False]),
        } | changes
        np.savez(
            tmp_path / "own.npz",
            **{key: value for key, value in arrays.items() if value is not None},
        )
        return tmp_path / "own.npz"

    return save


def test_arrays_become_frames(write):
    embeddings = np.asfortranarray(np.arange(6, dtype=">f8").reshape(3, 2))
    reader = read_npz(write(test_embeddings=embeddings, test_labels=np.array([0, 1, 1], np.uint8)))
    train = reader.frames("train")
    test = reader.frames("test")
    assert train.lengths.tolist() == [4, 6]
    assert (test.is_ego.tolist(), test.labels.tolist()) == ([True, False], [0, 1, 1])
    assert test.embeddings.dtype == np.float32
    np.testing.assert_array_equal(test.embeddings, embeddings)


def test_labels_and_training_videos_are_optional(write):
    assert read_npz(write(test_labels=None)).frames("test").labels is None
    assert read_npz(write(test_labels=np.array([-1, -1, -1]))).frames("test").labels is None
    assert read_npz(write(test_labels=np.array([0, -1, -1]))).frames(
        "test"
    ).has_labels.tolist() == [True, False]
    assert {video.split for video in read_npz(write(**dict.fromkeys(TRAIN))).manifest.videos} == {
        "test"
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_lengths": np.array([1, 3])}, r"lengths .* \(not 4\)"),
        (
            {"test_lengths": np.array([2**63 - 1, 2**63 - 1, 5])},
            r"lengths .* \(not 18446744073709551619\)",
        ),
        ({"test_lengths": np.array([3, 0])}, "lengths must be positive"),
        (
            {"test_label": np.zeros(3)},
            "unknown array 'test_label'; expected {train,test}_{embeddings",
        ),
        (
            {"test_lengths": None},
            "an array is missing: 'test_lengths'; it has .*; expected {train,test}_{embeddings",
        ),
        ({"test_labels": np.array([0, 1])}, r"test_labels \(2,\)"),
        ({"test_labels": np.array([0, -2, 1])}, "labels from -2 to 1"),
        ({"test_labels": np.array([0, 10**12, 1])}, "labels from 0 to 1000000000000"),
        ({"test_labels": np.array([0.0, 1, 1])}, "test_labels is float64, expected integers"),
        ({"test_is_ego": np.array([1, 2])}, r"1 \(ego\) or 0 \(exo\)"),
        ({"test_is_ego": np.array([1])}, r"test_is_ego \(1,\)"),
        ({"test_embeddings": np.zeros(3, np.float32)}, "expected 2 dimensions"),
        ({"test_embeddings": np.zeros((3, 5), np.float32)}, "differ in width: 2, 5"),
    ],
)
def test_arrays_that_do_not_fit_are_rejected(write, changes, message):
    with pytest.raises(EvaluationError, match=f"own.npz: .*{message}"):
        open_embeddings(write(**changes))


def test_files_larger_than_memory_are_not_loaded(write, monkeypatch):
    path = write()
    monkeypatch.setattr(os, "sysconf", lambda _: 10)
    with pytest.raises(EvaluationError, match=r"own\.npz: .* more than the memory of this machine"):
        open_embeddings(path)


def test_infinite_values_are_rejected(write):
    for value in (np.nan, 1e300):
        reader = read_npz(write(test_embeddings=np.array([[0.0, 0], [1, 1], [value, 1]])))
        with pytest.raises(EvaluationError, match="exo/test-1: NaN or infinite values in 1 of 2"):
            reader.frames("test")


def test_objects_are_never_unpickled(write, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    with pytest.raises(EvaluationError, match=r"own\.npz"):
        read_npz(write(test_labels=np.array([Trap()] * 3, dtype=object)))
    (tmp_path / "own.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(EvaluationError, match=r"own\.npz"):
        read_npz(tmp_path / "own.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00", None])
def test_other_files_are_rejected(tmp_path, content):
    path = tmp_path / "own.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        EvaluationError, match=r"own\.npz: (not a readable \.npz file|no such file)"
    ):
        read_npz(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)",
        "{'descr': '<f4'\n'",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (3, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 10**99)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "(" * 5000,
        "-" * 5000 + "1",
    ],
)
def test_malformed_array_headers_are_rejected(tmp_path, header):
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("test_embeddings.npy", content)
    with pytest.raises(EvaluationError, match=r"own\.npz: not a readable \.npz file"):
        read_npz(path)


def test_flipped_bytes_are_an_error_or_harmless(write):
    path = write()
    intact = read_npz(path).frames("test").embeddings
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            frames = read_npz(path).frames("test")
        except EvaluationError:
            continue
        np.testing.assert_array_equal(frames.embeddings, intact)


def test_tasks_follow_from_what_a_file_has(write, caplog):
    caplog.set_level("INFO")
    bare = compare_file(read_npz(write(test_labels=None, train_labels=None)))
    assert bare.scope.tasks == ("tau",)
    assert "no phase labels for any test video, needed by retrieval" in caplog.text
    untrained = compare_file(read_npz(write(**dict.fromkeys(TRAIN))))
    assert untrained.scope.tasks == ("retrieval", "tau")
    row, time = untrained.rows["standard"]
    assert time.scores.keys() == row.scores.keys()
    for task, message in (("retrieval", "no phase labels"), ("actions", "no action labels")):
        with pytest.raises(EvaluationError, match=message):
            compare_file(read_npz(write(test_labels=None)), [task])


@pytest.fixture
def embedded(write_run, runs_dir):
    """Folder with a run's embeddings, which has the same layout as the output of byov-embed."""
    write_run("first")
    return runs_dir / "first" / "embeddings"


@pytest.fixture
def as_npz(embedded, tmp_path):
    """Return a function that converts the embeddings to .npz files in one folder; arrays given as
    None are left out.
    """

    def write(*, with_view=True, pattern="*", **changes):
        folder = tmp_path / "npz"
        folder.mkdir(exist_ok=True)
        for path in sorted(embedded.rglob(f"{pattern}.h5")):
            embedding, source = read_embedding(path)
            texts = {"run": source.run, "model_sha256": source.model_sha256, "video": source.video}
            texts |= {"view": path.parent.name} if with_view else {}
            arrays = (
                {name: np.array(text) for name, text in texts.items()}
                | {"embedding": embedding}
                | changes
            )
            np.savez(
                folder / f"{path.stem}.npz",
                **{key: value for key, value in arrays.items() if value is not None},
            )
        return folder

    return write


def test_files_of_a_dataset_score_as_the_run_does(
    embedded, as_npz, manifest, runs_dir, features_dir
):
    scope = choose_scope(manifest, protocol="standard")
    expected = score(RunEmbeddings(runs_dir, features_dir, "first"), scope)["standard"]
    time = score(TimeOnly(manifest), scope)["standard"]
    for path in (embedded, as_npz(with_view=False)):
        row, time_row = compare_file(open_embeddings(path, manifest)).rows["standard"]
        assert row.nested_scores() == expected.nested_scores()
        assert (row.name, time_row.name) == (path.name, "Time only")
        assert time_row.nested_scores() == time.nested_scores()
        assert row.origin == {
            "files": path.name,
            "run": "first",
            "model_sha256": expected.origin["model_sha256"],
        }
    of_pour_liquid = open_embeddings(embedded, replace(manifest, dataset="pour_liquid"))
    assert compare_file(of_pour_liquid, ["progression"]).rows["standard"][0].time_column


def test_files_without_a_dataset_are_scored_by_tau(as_npz, caplog):
    caplog.set_level("INFO")
    path = as_npz(pattern="test_*")
    results = compare_file(open_embeddings(path))
    assert results.scope.tasks == ("tau",)
    assert results.counts["standard"] == {"videos": 6, "ego": 3, "exo": 3, "frames": 285}
    assert "--dataset NAME" in caplog.text
    for task, message in (
        ("retrieval", "no phase labels"),
        ("classification", "no training videos"),
    ):
        with pytest.raises(EvaluationError, match=message):
            compare_file(open_embeddings(path), [task])
    single = compare_file(open_embeddings(path / "test_ego_0.npz"), ["tau"])
    assert single.rows["standard"][0].value("kendalls_tau/all") is None


def test_some_of_the_test_videos_are_enough(as_npz, manifest):
    path = as_npz(pattern="test_*")
    for name in ("test_ego_0", "test_exo_2"):
        (path / f"{name}.npz").unlink()
    results = compare_file(open_embeddings(path, manifest))
    assert results.scope.tasks == ("retrieval", "tau")
    assert results.counts["standard"]["videos"] == 4
    with pytest.raises(EvaluationError, match="none of the files belongs to a test video of tea"):
        compare_file(open_embeddings(as_npz(pattern="train_*") / "train_ego_0.npz", manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"view": np.array("top")}, "view 'top', expected ego or exo"),
        ({"view": None}, "does not record its view; embed with --view ego or exo"),
        ({"run": None}, "array run is missing"),
        ({"video": np.array(["a", "b"])}, r"video has shape \(2,\)"),
        ({"video": np.array("../a")}, "cannot be a file name"),
        ({"video": np.array("a")}, "two files for ego video 'a'"),
        ({"embedding": np.zeros(3, np.float32)}, r"embedding has shape \(3,\)"),
        ({"embedding": np.arange(4)}, "embedding is int64, expected floating-point numbers"),
    ],
)
def test_unusable_files_are_rejected(as_npz, changes, message):
    path = as_npz(pattern="test_*", **changes)
    with pytest.raises((EvaluationError, CacheError), match=message) as error:
        open_embeddings(path)
    assert "\n" not in str(error.value)


def test_files_must_be_of_one_model_and_match_the_dataset(as_npz, manifest):
    path = as_npz(pattern="test_ego_0", video=np.array("other"))
    with pytest.raises(
        EvaluationError, match=r"test_ego_0.npz: its video matches none of the videos of tea"
    ):
        open_embeddings(path, manifest)
    both_views = [replace(manifest.videos[0], id="other", view=view) for view in ("ego", "exo")]
    assert open_embeddings(path, replace(manifest, videos=tuple(both_views))).manifest.videos == (
        both_views[0],
    )
    path = as_npz(pattern="test_ego_0", embedding=np.zeros((3, 2), np.float32))
    with pytest.raises(
        EvaluationError, match="3 embeddings for ego/test_ego_0, which has 40 frames in tea"
    ):
        open_embeddings(path, manifest).frames("test")
    as_npz(pattern="test_ego_1", model_sha256=np.array("cd" * 32), run=np.array("second"))
    with pytest.raises(EvaluationError, match="score them separately"):
        open_embeddings(path)


def test_view_is_that_of_the_file(embedded, tmp_path):
    shutil.copy(embedded / "ego" / "test_ego_0.h5", tmp_path / "test_ego_0.h5")
    assert open_embeddings(tmp_path / "test_ego_0.h5").manifest.videos[0].view == "ego"
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvaluationError, match="has no files written by byov-embed"):
        open_embeddings(tmp_path / "empty")
    assert not is_embedded(GOLDEN / "three_phases.npz")
