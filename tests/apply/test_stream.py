"""Tests of live video: streams compared with prefixes of videos, and the example script."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.apply.conftest import FRAMES, rainbow, write_video

import byov
from byov.apply.embedder import frame_features
from byov.cli.export import main as export_main
from byov.data.video import FrameReader
from byov.errors import ApplyError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's exporter emits warnings


def decode(path):
    return np.concatenate([block.pixels.copy() for block in FrameReader(path).blocks()])


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Folder with labeled videos, their features and `live`, a run of `timeline --online`."""
    root = tmp_path_factory.mktemp("live")
    lines = ["path,view,split,events"]
    for index, view in enumerate(("ego", "exo", "ego", "exo")):
        write_video(root / f"{index}.mp4", rainbow(24 + index, index))
        lines.append(f"{index}.mp4,{view},train,0.8 pour;1.6 put down")
    (root / "mine.csv").write_text("\n".join(lines) + "\n")
    folders = {"features_dir": root / "features", "runs_dir": root / "runs"}
    byov.extract_features(
        manifest=root / "mine.csv", encoder="random/tiny", features_dir=root / "features"
    )
    byov.train_run("live", method="timeline", online=True, epochs=40, frames=16, clips=4, **folders)
    return root


def load(root, name, **options):
    return byov.load_run(name, runs_dir=root / "runs", features_dir=root / "features", **options)


def features_of(run, frames):
    return frame_features(run.frame_encoder(), [frames], run.record.ratio)


@pytest.mark.parametrize("window", [None, 5])
def test_a_frame_is_embedded_as_the_last_one_so_far(live, window):
    run = load(live, "live")
    frames = decode(live / "2.mp4")
    stream = run.stream(window)
    assert stream.window == (window or 27)
    pushed = [stream.push(frame).embedding for frame in frames]
    for count in (1, 2, 5, 12, 26):
        features = features_of(run, frames[:count])[-stream.window :]
        np.testing.assert_allclose(pushed[count - 1], run.embed(features)[-1], atol=2e-3)
    stream.reset()
    np.testing.assert_array_equal(stream.push(frames[0]).embedding, pushed[0])


def test_an_online_model_embeds_a_frame_without_the_later_ones(live):
    run = load(live, "live")
    frames = decode(live / "1.mp4")
    features = np.tile(features_of(run, frames).numpy(), (30, 1))[:700]
    whole = run.embed(features)
    for count in (1, 9, 511, 513, 650):
        np.testing.assert_allclose(run.embed(features[:count]), whole[:count], atol=1e-4)


def test_progress_and_phase_of_a_training_video(live, caplog):
    stream = load(live, "live").stream()
    streamed = [stream.push(frame) for frame in decode(live / "1.mp4")]
    assert "--method timeline --online" not in caplog.text
    progress = np.array([frame.progress for frame in streamed])
    assert np.abs(progress - np.linspace(0, 1, len(progress))).mean() < 0.2
    assert (streamed[2].phase, streamed[-3].phase) == ("start", "put down")


def test_without_labels_progress_comes_from_aligned_videos(trained, caplog):
    stream = load(trained, "toy").stream()
    assert "--method timeline --online" not in caplog.text  # the model has no positional encodings
    assert stream.window == max(FRAMES.values())
    streamed = [stream.push(frame) for frame in decode(trained / "videos" / "two.mp4")]
    assert {frame.phase for frame in streamed} == {None}
    assert streamed[-1].progress > streamed[0].progress + 0.3


def test_a_method_that_needs_whole_videos_says_so(live, caplog):
    folders = {"features_dir": live / "features", "runs_dir": live / "runs"}
    byov.train_run("whole", method="timeline", epochs=1, frames=16, clips=4, **folders).stream()
    assert caplog.text.count("--method timeline --online") == 1


@pytest.mark.parametrize(
    ("frame", "fact"),
    [
        (np.zeros((48, 64, 3)), "float64"),
        (np.zeros((48, 64), np.uint8), "(48, 64)"),
        ([1, 2], "(2,)"),
        (np.zeros((64, 48, 3), np.uint8), "(48, 64, 3)"),
    ],
)
def test_bad_frames_are_one_line(live, frame, fact):
    stream = load(live, "live").stream()
    stream.push(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(ApplyError) as error:
        stream.push(frame)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)
    stream.push(np.zeros((48, 64, 3), np.uint8))  # the stream still works
    for window in (1, 2.5, "ten"):
        with pytest.raises(ApplyError, match=f"window is {window!r}"):
            load(live, "live").stream(window)


def use_folders(monkeypatch, root):
    monkeypatch.setenv("BYOV_RUNS", str(root / "runs"))
    monkeypatch.setenv("BYOV_FEATURES", str(root / "features"))


@pytest.mark.slow
def test_the_page_on_live_video(live, tmp_path, monkeypatch, call):
    """Run the code in docs/live.md: a stream, and the same embeddings computed with ONNX files."""
    pytest.importorskip("onnxruntime")
    use_folders(monkeypatch, live)
    monkeypatch.chdir(tmp_path)
    assert (
        call(export_main, "byov-export", "live", "model.onnx", "--frames", "encoder.onnx").code == 0
    )
    frames = decode(live / "1.mp4")
    namespace = {"byov": byov, "camera": frames, "frames": frames}
    page = (ROOT / "docs/live.md").read_text(encoding="utf-8")
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(snippet, namespace)
    assert namespace["phase"] == "put down"
    # Pillow's resizing differs by up to two gray levels.
    np.testing.assert_allclose(namespace["embeddings"], load(live, "live").embed(frames), atol=0.1)


def example(monkeypatch, root, *arguments):
    use_folders(monkeypatch, root)
    monkeypatch.setattr(sys, "argv", ["live_progress.py", *map(str, arguments)])
    runpy.run_path(str(ROOT / "examples/live_progress.py"), run_name="__main__")


def test_the_example_draws_on_every_frame(live, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.mp4"
    preview = tmp_path / "now.jpg"
    example(
        monkeypatch,
        live,
        live / "1.mp4",
        "--run",
        "live",
        "-o",
        out,
        "--preview",
        preview,
        "--fast",
    )
    drawn = decode(out)
    original = decode(live / "1.mp4")
    assert drawn.shape == original.shape
    # A progress bar was drawn.
    assert np.abs(drawn[-1, -3:].astype(int) - original[-1, -3:]).max() > 50
    assert preview.stat().st_size
    assert "put down" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such run"):
        example(monkeypatch, live, live / "1.mp4", "--run", "none")
