"""Tests of byov-export: outputs of exported files compared with PyTorch, and error messages."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import byov
from byov.apply import export
from byov.apply.references import read_training_frames
from byov.evaluate.transfer import ReferenceFrames
from byov.train.methods.base import build_method
from byov.train.registry import resolve

onnxruntime = pytest.importorskip("onnxruntime")
# PyTorch's exporter uses deprecated PyTorch functions.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.slow
def test_onnx_files_have_the_outputs_of_the_run(byov_export, trained, tmp_path):
    out = tmp_path / "model.onnx"
    frames = tmp_path / "encoder.onnx"
    ran = byov_export("toy", out, "--frames", frames, "--json")
    assert ran.code == 0, ran
    assert set(ran.json["max_error"]) == {str(out), str(frames)}
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "encoder.onnx"}
    run = byov.load_run("toy", runs_dir=trained / "runs", device="cpu")
    features = np.random.default_rng(0).normal(size=(23, 128)).astype(np.float32)
    session = onnxruntime.InferenceSession(out)
    np.testing.assert_allclose(
        session.run(None, {"features": features})[0], run.embed(features), atol=1e-4
    )
    assert session.get_modelmeta().custom_metadata_map["run"] == "toy"
    images = np.random.default_rng(0).integers(0, 256, (5, 128, 128, 3), np.uint8)
    tokens = run.frame_encoder().encode(torch.from_numpy(images).permute(0, 3, 1, 2))[0]
    session = onnxruntime.InferenceSession(frames)
    np.testing.assert_allclose(session.run(None, {"frames": images})[0], tokens.numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("timeline", {}),
        ("timeline", {"online": True}),
        ("carl", {}),
        ("tcc", {}),
        ("byov", {"attention_window": 5}),
        ("byov", {"position": "normalized"}),
        ("byov", {"recipe": "bottleneck"}),
    ],
)
def test_every_backbone_can_be_exported(method, settings, tmp_path):
    small = {"latent": 32, "depth": 1, "heads": 4, "decoder_depth": 1} if method == "byov" else {}
    run = byov.Run.__new__(byov.Run)
    run.model = build_method(16, resolve(method, "mine", settings | small)).eval()
    module = export._Embedder(run)
    inputs = [torch.randn(length, 16) for length in export.LENGTHS]
    for suffix in export.SUFFIXES:
        error = export._export(
            module, tmp_path / f"m{suffix}", ("features", "frames", "embeddings"), inputs, {}
        )
        assert error < 1e-4


def test_pt2_files_take_any_length(byov_export, trained, tmp_path):
    assert byov_export("toy", tmp_path / "model.pt2").code == 0
    run = byov.load_run("toy", runs_dir=trained / "runs", device="cpu")
    program = torch.export.load(tmp_path / "model.pt2").module()
    features = torch.randn(70, 128)
    torch.testing.assert_close(program(features), torch.from_numpy(run.embed(features)))


@pytest.mark.parametrize("suffix", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_progress_is_that_of_the_nearest_training_frames(byov_export, trained, tmp_path, suffix):
    out = tmp_path / f"model.{suffix}"
    ran = byov_export("toy", out, "--progress", "--features-dir", trained / "features", "--json")
    assert ran.code == 0, ran
    folders = {"runs_dir": trained / "runs", "features_dir": trained / "features"}
    run = byov.load_run("toy", device="cpu", **folders)
    features = np.random.default_rng(0).normal(size=(23, 128)).astype(np.float32)
    if suffix == "onnx":
        session = onnxruntime.InferenceSession(out)
        assert [output.name for output in session.get_outputs()] == ["embeddings", "progress"]
        embeddings, progress = session.run(None, {"features": features})
    else:
        outputs = torch.export.load(out).module()(torch.from_numpy(features))
        embeddings, progress = (output.detach() for output in outputs)
    np.testing.assert_allclose(embeddings, run.embed(features), atol=1e-4)
    expected = read_training_frames(run).frames.predict_progress(run.embed(features))
    np.testing.assert_allclose(progress, expected, atol=1e-4)


def test_progress_is_not_compared_where_neighbors_are_tied():
    run = byov.Run.__new__(byov.Run)
    run.model = SimpleNamespace(embed=lambda features: features)
    embeddings = np.array([[0.0], [1.0], [2.0]], np.float32)
    references = ReferenceFrames(embeddings, np.array([0.0, 0.5, 1.0]), neighbors=1)
    module = export._ProgressEstimator(run, references)
    queries = torch.tensor([[0.2], [0.5], [1.5 + 1e-7], [1.8]])
    progress = module.reference(queries)[1]
    np.testing.assert_allclose(progress, [0, np.nan, np.nan, 1])
    np.testing.assert_allclose(module(queries)[1][[0, 3]], [0, 1])


def test_mistakes_are_one_line(byov_export, tmp_path, monkeypatch):
    progress = byov_export("toy", tmp_path / "a.pt2", "--progress", "--features-dir", tmp_path)
    assert str(tmp_path) in progress.error()
    assert "no such run" in byov_export("none", tmp_path / "a.onnx").error()
    assert ".onnx or .pt2" in byov_export("toy", tmp_path / "a.tflite").error()
    (tmp_path / "a.onnx").write_text("mine")
    assert "--overwrite" in byov_export("toy", tmp_path / "a.onnx").error()
    monkeypatch.setattr(export, "PACKAGES", ("onnx_that_is_not_installed",))
    assert "byov-egoexo[onnx]" in byov_export("toy", tmp_path / "b.onnx").error()
    monkeypatch.undo()


def test_a_model_that_cannot_be_exported_or_differs_is_one_line(
    byov_export, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    earlier = tmp_path / "a.pt2"
    earlier.write_text("mine")
    ran = byov_export("toy", earlier, "--overwrite", "--runs-dir", trained / "runs")
    assert "differs from PyTorch" in ran.error()
    assert earlier.read_text() == "mine", "a file is only replaced by one that was checked"
    earlier.unlink()
    monkeypatch.setattr(
        export._Embedder, "forward", lambda _, features: features[: int(features.sum())]
    )
    assert "cannot be exported" in byov_export("toy", tmp_path / "a.pt2").error()
    assert list(tmp_path.iterdir()) == []
