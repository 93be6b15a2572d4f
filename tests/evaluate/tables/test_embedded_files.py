"""What byov-embed leaves, scored: alone by tau, and by all tasks with the labels of a dataset in the cache."""

import shutil

import numpy as np
import pytest

from byov.cache.embeddings import read_embedding
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embedding_files import EmbeddedFiles, evaluate_own, is_embedded
from byov.evaluate.embeddings import RunEmbeddings, TimeOnly
from byov.evaluate.evaluation import evaluate
from byov.evaluate.table import tables
from byov.evaluate.task import EvaluationOptions

OPTIONS = EvaluationOptions()


@pytest.fixture
def embedded(write_run, runs_dir):
    """A run's own embeddings, which are of the same kind."""
    write_run("first")
    return runs_dir / "first" / "embeddings"


@pytest.fixture
def as_npz(embedded, tmp_path):
    """as_npz(with_view=..., split=..., **changes): the same as .npz files, without folders that say the view."""

    def write(*, with_view=True, split="", **changes):
        folder = tmp_path / "npz"
        folder.mkdir(exist_ok=True)
        for path in sorted(embedded.rglob(f"{split}*.h5")):
            embedding, source = read_embedding(path)
            texts = {"run": source.run, "model_sha256": source.model_sha256, "video": source.video}
            texts |= {"view": path.parent.name} if with_view else {}
            arrays = {name: np.array(text) for name, text in texts.items()} | {"embedding": embedding} | changes
            np.savez(folder / f"{path.stem}.npz", **{key: value for key, value in arrays.items() if value is not None})
        return folder

    return write


def scores(comparison):
    return comparison.rows["standard"][0].nested_scores()


def test_with_a_dataset_they_score_as_the_run_does(embedded, as_npz, manifest, runs_dir, features_dir, caplog):
    expected = evaluate(RunEmbeddings(runs_dir, features_dir, "first"))
    for path in (embedded, as_npz(with_view=False)):
        with caplog.at_level("INFO"):
            comparison = evaluate_own(path, None, OPTIONS, manifest=manifest)
        assert scores(comparison) == expected.nested_scores()
        row, time_only = comparison.rows["standard"]
        assert (row.name, time_only.name) == (path.name, "Time only")
        assert time_only.nested_scores() == evaluate(TimeOnly(features_dir, "tea")).nested_scores()
        assert row.origin == {"files": path.name, "run": "first", "model_sha256": expected.origin["model_sha256"]}
        assert "left out: 4 val videos" in caplog.text


def test_alone_they_are_scored_by_tau(as_npz, caplog):
    path = as_npz(split="test")
    with caplog.at_level("INFO"):
        comparison = evaluate_own(path, None, OPTIONS)
    assert comparison.scope.tasks == ("tau",)
    assert comparison.counts["standard"]["ego"] == comparison.counts["standard"]["exo"] == 3
    assert "no phase labels (--dataset NAME takes them from a dataset in the cache)" in caplog.text
    with pytest.raises(EvaluationError, match=r"no phase labels \(--dataset NAME"):
        evaluate_own(path, ["retrieval"], OPTIONS)
    with pytest.raises(EvaluationError, match="no training videos among the files, which classification needs"):
        evaluate_own(path, ["classification"], OPTIONS)


def test_some_of_the_test_videos_are_enough(as_npz, manifest, caplog):
    path = as_npz(split="test_e")
    for name in ("test_ego_0", "test_exo_2"):
        (path / f"{name}.npz").unlink()
    with caplog.at_level("INFO"):
        comparison = evaluate_own(path, None, OPTIONS, manifest=manifest)
    assert set(comparison.scope.tasks) == {"retrieval", "tau"}
    assert comparison.counts["standard"]["videos"] == 4
    assert comparison.rows["standard"][1].nested_scores().keys() == scores(comparison).keys()
    assert "no training videos among the files: classification, progression are left out" in caplog.text


def test_one_file_is_read_too(as_npz):
    path = as_npz(split="test") / "test_ego_0.npz"
    assert is_embedded(path)
    comparison = evaluate_own(path, ["tau"], OPTIONS)
    assert scores(comparison)["kendalls_tau"] is None  # there is no pair
    assert "(1 video, 1 ego and 0 exo, 46 frames)" in tables(comparison)[0].title


def test_a_file_of_many_videos_is_not_of_this_kind(golden):
    assert not is_embedded(golden / "three_phases.npz")
    assert not is_embedded(golden / "nothing.npz")


MISTAKES = [
    ({"view": np.array("top")}, "view 'top', expected ego or exo"),
    ({"view": None}, "does not say its view; embed with --view ego or exo"),
    ({"run": None}, "no run; not a file of byov-embed"),
    ({"video": np.array(["a", "b"])}, "video: expected a text"),
    ({"video": np.array("../a")}, "cannot be a file name"),
    ({"video": np.array("a")}, "two files of ego video 'a'"),
    ({"embedding": np.zeros(3, np.float32)}, r"embedding: shape \(3,\)"),
    ({"embedding": np.full((3, 2), np.nan, np.float32)}, "NaN or infinite values"),
    ({"embedding": np.array([None])}, "array of Python objects"),
    ({"embedding": np.arange(4)}, "embedding: int64, expected floating-point numbers"),
]


def test_files_that_cannot_be_used_are_named(as_npz):
    for changes, message in MISTAKES:
        path = as_npz(split="test", **changes)
        with pytest.raises((EvaluationError, CacheError), match=message) as error:
            evaluate_own(path, ["tau"], OPTIONS)
        assert "\n" not in str(error.value)


def test_embeddings_of_two_models_are_not_mixed(as_npz):
    path = as_npz(split="test")
    as_npz(split="test_ego_0", model_sha256=np.array("cd" * 32), run=np.array("second"))  # in its place
    with pytest.raises(EvaluationError, match="embeddings of two models have nothing in common"):
        EmbeddedFiles(path)


def test_videos_that_the_dataset_does_not_have_are_named(as_npz, manifest):
    path = as_npz(split="test_ego_0", video=np.array("other"))
    with pytest.raises(EvaluationError, match=r"test_ego_0.npz: the dataset has no ego video 'other'"):
        EmbeddedFiles(path, manifest)
    path = as_npz(split="test_ego_0", embedding=np.zeros((3, 2), np.float32))
    with pytest.raises(EvaluationError, match="3 embeddings, tea has 46 frames of it"):
        EmbeddedFiles(path, manifest).frames("test")


def test_the_view_is_that_of_the_file_or_of_its_folder(embedded, tmp_path):
    name = "test_ego_0.h5"
    shutil.copy(embedded / "ego" / name, tmp_path / name)
    with pytest.raises(EvaluationError, match="does not say its view"):
        EmbeddedFiles(tmp_path / name)
    assert EmbeddedFiles(embedded / "ego" / name).manifest.videos[0].view == "ego"
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvaluationError, match="no files of byov-embed in it"):
        EmbeddedFiles(tmp_path / "empty")
