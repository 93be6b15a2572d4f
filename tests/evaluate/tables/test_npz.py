import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from byov.errors import EvaluationError
from byov.evaluate.embedding_files import evaluate_own, read_npz
from byov.evaluate.task import EvaluationOptions


def arrays(**changes):
    values = {
        "train_embeddings": np.arange(20, dtype=np.float32).reshape(10, 2),
        "train_labels": np.repeat([0, 1], 5),
        "train_lengths": np.array([4, 6]),
        "train_is_ego": np.array([1, 0]),
        "test_embeddings": np.arange(6, dtype=np.float32).reshape(3, 2),
        "test_labels": np.array([0, 1, 1]),
        "test_lengths": np.array([1, 2]),
        "test_is_ego": np.array([True, False]),
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


@pytest.fixture
def write(tmp_path):
    def save(**changes) -> Path:
        np.savez(tmp_path / "own.npz", **arrays(**changes))
        return tmp_path / "own.npz"

    return save


def npy(shape: tuple[int, ...], content: bytes, descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def replace_member(path: Path, key: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in (kept | {f"{key}.npy": content}).items():
            archive.writestr(name, member)


def test_arrays_become_frames(write):
    frames = read_npz(write())
    assert frames["train"].embeddings.dtype == np.float32
    np.testing.assert_array_equal(frames["train"].lengths, [4, 6])
    np.testing.assert_array_equal(frames["test"].is_ego, [True, False])
    np.testing.assert_array_equal(frames["test"].labels, [0, 1, 1])


def test_other_number_types_and_column_order_are_read(write):
    embeddings = np.asfortranarray(np.arange(6, dtype=">f8").reshape(3, 2))
    path = write(test_embeddings=embeddings, test_labels=np.array([0, 1, 1], np.uint8))
    np.testing.assert_array_equal(read_npz(path)["test"].embeddings, embeddings)


def test_the_golden_files_are_read(golden):
    assert len(read_npz(golden / "three_phases.npz")["train"].lengths) == 13


def test_labels_may_be_absent(write):
    assert read_npz(write(test_labels=None))["test"].labels is None


def test_a_video_or_a_part_of_it_may_be_without_labels(write):
    assert read_npz(write(test_labels=np.array([0, -1, -1])))["test"].without_labels == ("test video 1",)
    assert read_npz(write(test_labels=np.array([-1, -1, -1])))["test"].labels is None
    partly = read_npz(write(test_labels=np.array([0, -1, 1])))["test"]
    assert partly.without_labels == ()
    assert partly.labeled_frames.embeddings.tolist() == [[0, 1], [4, 5]]


def test_frames_without_labels_are_left_out_and_counted(write):
    path = write(test_labels=np.array([0, -1, 1]), train_labels=np.array([-1, 0, 0, 1, -1, 0, 0, 1, 1, 1]))
    row = evaluate_own(path, None, EvaluationOptions()).rows["standard"][0]
    assert [note.partition(" have no")[0] for note in row.notes] == [
        "1 of 3 frames of labeled scored videos",
        "2 of 10 frames of labeled training videos",
    ]
    assert row.value("classification/regular") is not None


def test_without_training_videos_all_tasks_are_those_that_need_none(write, caplog):
    path = write(**{f"train_{part}": None for part in ("embeddings", "labels", "lengths", "is_ego")})
    with caplog.at_level("INFO"):
        comparison = evaluate_own(path, None, EvaluationOptions())
    assert set(comparison.scope.tasks) == {"retrieval", "tau"}
    row, time_only = comparison.rows["standard"]
    assert time_only.scores.keys() == row.scores.keys()
    assert "classification, progression are left out" in caplog.text


def test_only_the_wanted_splits_must_be_there(write):
    path = write(**dict.fromkeys(("train_embeddings", "train_labels", "train_lengths", "train_is_ego")))
    assert read_npz(path, splits=("test",)).keys() == {"test"}
    with pytest.raises(EvaluationError, match="no train_embeddings, train_lengths, train_is_ego"):
        read_npz(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_lengths": np.array([1, 3])}, "test_lengths add up to 4 frames, test_embeddings has 3"),
        ({"test_lengths": np.array([2**63 - 1, 2**63 - 1])}, "add up to 18446744073709551614"),
        ({"test_lengths": np.array([3, 0])}, "video 1 has 0 frames"),
        ({"test_lengths": np.array([[1, 2]])}, "one length for each video"),
        ({"test_label": np.zeros(3)}, "unknown key 'test_label'; expected test_embeddings"),
        ({"test_lengths": None}, "no test_lengths"),
        ({"test_labels": np.array([0, 1])}, r"test_labels: shape \(2,\), expected \(3,\)"),
        ({"test_labels": np.array([0, -2, 1])}, "phases count from 0"),
        ({"test_labels": np.array([0.0, 1, 1])}, "test_labels: float64, expected whole numbers"),
        ({"test_is_ego": np.array([1, 2])}, "1 for ego and 0 for exo"),
        ({"test_is_ego": np.array([1])}, "one for each video"),
        ({"test_embeddings": np.zeros(3, np.float32)}, "expected frames x dimensions"),
        ({"test_embeddings": np.zeros((3, 0), np.float32)}, "expected frames x dimensions"),
        ({"test_embeddings": np.array([[0.0], [1], [np.nan]])}, r"test video 1 .*NaN or infinite values in 1 of 2"),
        ({"test_embeddings": np.array([[1e300], [1], [1]])}, "test video 0 .*NaN or infinite"),
    ],
)
def test_what_does_not_fit_is_named(write, changes, message):
    with pytest.raises(EvaluationError, match=f"own.npz: .*{message}"):
        read_npz(write(**changes))


def test_objects_are_never_unpickled(write, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    with pytest.raises(EvaluationError, match="test_labels: an array of Python objects"):
        read_npz(write(test_labels=np.array([Trap()] * 3, dtype=object)))
    replace_member(write(), "test_labels", npy((3,), pickle.dumps([Trap()] * 3), "|O"))
    with pytest.raises(EvaluationError, match="never unpickled"):
        read_npz(tmp_path / "own.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("shape", [(3, 10**12), (10**9, 10**9, 10**9), (-3, 2), (4, 2)])
def test_a_declared_size_that_is_not_there_is_refused(write, shape):
    path = write()
    replace_member(path, "test_embeddings", npy(shape, bytes(24)))
    with pytest.raises(EvaluationError, match=r"own.npz: .*(which is not what it holds|not a readable)"):
        read_npz(path)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path):
    large = arrays(test_embeddings=np.zeros((70 << 18, 1), np.float32), test_lengths=np.array([70 << 18]))
    np.savez_compressed(tmp_path / "bomb.npz", **large)
    with pytest.raises(EvaluationError, match="too large to be read"):
        read_npz(tmp_path / "bomb.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(EvaluationError, match=r"own\.npz: not a readable \.npz file"):
        read_npz(tmp_path / "own.npz")


def test_damage_at_any_place_is_an_error_or_harmless(write):
    path = write()
    sound, whole = read_npz(path), path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            frames = read_npz(path)
        except EvaluationError:
            continue
        np.testing.assert_array_equal(frames["test"].embeddings, sound["test"].embeddings)


def test_a_key_that_is_there_twice_is_refused(write):
    path = write()
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("test_labels.npy", b"")
    with pytest.raises(EvaluationError, match="test_labels is there twice"):
        read_npz(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EvaluationError, match=r"none\.npz: no such file"):
        read_npz(tmp_path / "none.npz")


def test_a_compression_that_numpy_does_not_write_is_refused(write, tmp_path):
    with zipfile.ZipFile(write()) as plain, zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(EvaluationError, match="compressed in a way that numpy does not write"):
        read_npz(tmp_path / "x.npz")
