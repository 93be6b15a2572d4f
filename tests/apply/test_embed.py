"""Tests of byov-embed and byov-align on videos outside the run's dataset."""

import re
import shutil
import signal
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.apply.conftest import edit_config, rainbow, write_video
from tests.processes import signal_and_end

import byov
from byov.cache.digests import BLANK_SEAL, SEAL_NAME, file_sha256, seal
from byov.cache.embeddings import read_embedding
from byov.cache.hdf5 import read_array
from byov.cli.align import main as align_main
from byov.cli.embed import main as embed_main
from byov.cli.evaluate import main as evaluate_main
from byov.cli.report import main as report_main
from byov.cli.train import main as train_main
from byov.data.video import FrameReader

# Views of the videos the run was trained on.
VIEWS = {"one": "ego", "two": "exo", "three": "ego", "four": "exo"}


def test_the_videos_of_the_run_get_the_embeddings_of_the_run(byov_embed, videos, trained, tmp_path):
    ran = byov_embed(
        "--run", "toy", *(videos / f"{name}.mp4" for name in VIEWS), "-o", tmp_path / "out"
    )
    assert ran.code == 0, ran
    assert byov_embed(videos / "two.mp4", "-o", tmp_path / "alone.h5").code == 0
    for name, view in VIEWS.items():
        written = tmp_path / "out" / f"{name}.h5"
        original = trained / f"runs/toy/embeddings/{view}/{name}.h5"
        (embedding, source) = read_embedding(written)
        (expected, original_source) = read_embedding(original)
        assert embedding.tobytes() == expected.tobytes()
        np.testing.assert_array_equal(
            read_array(written, "pts_seconds"), read_array(original, "pts_seconds")
        )
        expected = {
            "dataset": "none",
            "view": "",
            "source_sha256": file_sha256(videos / f"{name}.mp4"),
            "times_sha256": "",
        }
        assert vars(source) == vars(original_source) | expected
    assert (tmp_path / "alone.h5").read_bytes() == (tmp_path / "out" / "two.h5").read_bytes()


def test_npz_files_have_arrays_and_texts(byov_embed, videos, trained, tmp_path):
    ran = byov_embed("--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.NPZ", "--view", "ego")
    assert ran.code == 0, ran
    expected, source = read_embedding(trained / "runs/toy/embeddings/ego/one.h5")
    with np.load(tmp_path / "a.NPZ", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["embedding"], expected)
        np.testing.assert_allclose(file["pts_seconds"], np.arange(12) / 10, atol=1e-9)
        texts = {name: str(file[name]) for name in file if name not in ("embedding", "pts_seconds")}
    assert texts.pop("source_sha256") == file_sha256(videos / "one.mp4")
    assert texts == {
        "view": "ego",
        "run": "toy",
        "model_sha256": source.model_sha256,
        "video": "one",
    }
    assert byov_embed(videos / "three.mp4", "-o", tmp_path, "--format", "npz").code == 0
    with np.load(tmp_path / "three.npz") as file:
        assert "view" not in file


def test_folders_and_views(byov_embed, videos, tmp_path):
    for name in ("a/one.mp4", "b/one.mov", "b/notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(videos / "one.mp4", tmp_path / "in" / name)
    ran = byov_embed(
        tmp_path / "in", videos / "three.mp4", "-o", tmp_path / "out", "--view", "exo", "--json"
    )
    written = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.h5")
    }
    assert written == {"exo/a/one.h5", "exo/b/one.h5", "exo/three.h5"}
    video = tmp_path / "in/a/one.mp4"
    file = tmp_path / "out/exo/a/one.h5"
    entry = {"video": str(video), "file": str(file), "frames": 12, "dimensions": 32}
    assert ran.json["files"][0] == entry
    assert ran.json.items() >= {"run": "toy", "view": "exo", "failures": {}}.items()
    with h5py.File(file) as opened:
        assert opened.attrs["view"] == b"exo"


def test_frame_arrays_get_the_embeddings_of_the_file(trained, videos):
    run = byov.load_run("toy", runs_dir=trained / "runs")
    frames = np.concatenate([block.pixels for block in FrameReader(videos / "two.mp4").blocks()])
    expected = run.embed(videos / "two.mp4")
    np.testing.assert_array_equal(run.embed(frames), expected)
    # Not contiguous in memory.
    np.testing.assert_array_equal(run.embed(frames[:, ::-1, ::-1][:, ::-1, ::-1]), expected)


def test_a_video_that_fails_is_named_and_the_others_are_written(byov_embed, videos, tmp_path):
    (tmp_path / "text.mp4").write_text("not a video")
    whole = (videos / "two.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    bad = (tmp_path / "text.mp4", tmp_path / "cut.mp4")
    ran = byov_embed(*bad, videos / "one.mp4", "-o", tmp_path / "out", "--json")
    assert ran.code == 1
    assert [Path(entry["file"]).name for entry in ran.json["files"]] == ["one.h5"]
    assert set(ran.json["failures"]) == {str(path) for path in bad}
    assert all(str(path) in ran.err for path in bad)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one.h5"]


def test_inputs_are_never_overwritten(byov_embed, videos, tmp_path):
    shutil.copy(videos / "three.mp4", tmp_path / "odd.h5")
    byov_embed(tmp_path / "odd.h5", "-o", tmp_path / "odd.h5", "--overwrite").error()
    assert (tmp_path / "odd.h5").read_bytes() == (videos / "three.mp4").read_bytes()
    shutil.copy(videos / "one.mp4", tmp_path / "one.mov")
    assert (
        "one.h5"
        in byov_embed(videos / "one.mp4", tmp_path / "one.mov", "-o", tmp_path / "out").error()
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("one.mp4", "two.mp4", "-o", "a.h5"), "2 videos"),
        (("one.mp4", "-o", "a.h5", "--format", "npz"), "--format npz"),
        (("one.mp4", "-o", "a.npy"), ".h5 or .npz"),
        (("one.mp4", "-o", "a.parquet"), ".h5 or .npz"),
        (("one.mp4", "two.mp4", "-o", "a.parquet"), ".h5 or .npz"),
        (("none.mp4", "-o", "a.h5"), "none.mp4"),
        ((".", "-o", "a.h5"), "4 videos"),
        (("empty", "-o", "out"), "no videos"),
        (("one.mp4", "-o", "one.mp4/deep"), "one.mp4"),
        (("one.mp4", "-o", "a.h5", "--run", "other"), "toy"),
        (("one.mp4", "-o", "a.h5", "--run", "../runs/toy"), "cannot be a file name"),
        (("one.mp4", "-o", "a.h5", "--runs-dir", "nowhere"), "nowhere"),
        (("one.mp4", "-o", "a.h5", "--encoder", "./nowhere"), "nowhere"),
        (("one.mp4", "-o", "a.h5", "--encoder", "random/resnet-50"), "Omit --encoder"),
    ],
)
def test_mistakes_are_one_line(byov_embed, videos, monkeypatch, options, fact, tmp_path):
    folder = tmp_path / "videos"
    shutil.copytree(videos, folder)
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    assert fact in byov_embed(*options).error()
    assert sorted(folder.rglob("*")) == before


def test_an_encoder_from_a_folder_must_be_given(byov_embed, videos, runs, tmp_path):
    edit_config(runs / "toy", encoder="my-vit", encoder_revision="folder 0123456789abcdef")
    given = ("--runs-dir", runs, videos / "one.mp4", "-o", tmp_path / "a.h5")
    assert "--encoder FOLDER" in byov_embed(*given).error()
    # This encoder has the same weights.
    assert byov_embed(*given, "--encoder", "random/tiny").code == 0
    embedding, source = read_embedding(tmp_path / "a.h5")
    np.testing.assert_array_equal(embedding, read_embedding(runs / "toy/embeddings/ego/one.h5")[0])
    assert (source.encoder, source.encoder_revision) == ("my-vit", "folder 0123456789abcdef")


def test_another_compute_type_is_a_warning(byov_embed, videos, runs, tmp_path):
    given = (
        "--runs-dir",
        runs,
        "--run",
        "toy",
        videos / "one.mp4",
        "--device",
        "cpu",
        "-o",
        tmp_path / "a.h5",
    )
    edit_config(runs / "toy", compute_dtype="float16")
    ran = byov_embed(*given)
    assert ran.code == 0, ran
    assert "float16" in ran.err


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"preprocessing": "squash 99 nearest"}, "squash 99 nearest"),
        ({"preprocessing": None}, "preprocessing"),
        ({"encoder_revision": ["\x1b[2J"]}, "encoder_revision"),
        ({"column": "merged/2.0"}, "merged/2.0"),
        ({"encoder": "no/such/model"}, "no/such/model"),
        ({"encoder": "../other", "encoder_revision": ""}, "../other"),
        ({"encoder": "models/vit"}, "models/vit"),
        ({"settings": {"depth": 1_000_000}}, "config.json"),
        ({"settings": {"latent": 64}}, "model.safetensors"),
    ],
    ids=str,
)
def test_a_hostile_config_is_one_line(
    byov_embed, videos, runs, tmp_path, monkeypatch, changes, fact
):
    (tmp_path / "models" / "vit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    edit_config(runs / "toy", **changes)
    message = byov_embed(
        "--runs-dir", runs, "--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.h5"
    ).error()
    assert fact in message
    assert "\x1b" not in message
    assert not (tmp_path / "a.h5").exists()


def test_a_damaged_or_missing_model_is_one_line(byov_embed, videos, runs, tmp_path):
    given = ("--runs-dir", runs, "--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.h5")
    model = runs / "toy/model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    assert str(model) in byov_embed(*given).error()
    model.unlink()
    assert "byov-train --run toy --resume" in byov_embed(*given).error()
    model.symlink_to("/dev/zero")
    assert "not a regular file" in byov_embed(*given).error()


def test_files_are_matched_to_a_dataset_by_content(byov_embed, call, tmp_path):
    """Use the same file names for both views, so that ids are prefixed with the view."""
    lines = ["path,view,split,id,events,pair"]
    for index, (view, name) in enumerate(
        (view, name) for view in ("ego", "exo") for name in ("001", "002")
    ):
        write_video(tmp_path / view / f"{name}.mp4", rainbow(20 + index, index))
        split = "train" if name == "001" else "test"
        lines.append(f"{view}/{name}.mp4,{view},{split},{view}-{name},0.5;1,{name}")
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    folder = {"features_dir": tmp_path / "features"}
    byov.extract_features(manifest=tmp_path / "mine.csv", encoder="random/tiny", **folder)
    score = (
        "--task",
        "retrieval",
        "--dataset",
        "mine",
        "--features-dir",
        folder["features_dir"],
        "--json",
    )
    for file_format in ("h5", "npz"):
        out = tmp_path / f"out-{file_format}"
        for view in ("ego", "exo"):
            given = (
                *(tmp_path / view).glob("*.mp4"),
                "-o",
                out,
                "--view",
                view,
                "--format",
                file_format,
            )
            assert byov_embed(*given).code == 0
        ran = call(evaluate_main, "byov-eval", "--embeddings", out, *score)
        assert ran.code == 0, ran
    other = write_video(tmp_path / "other" / "ego-002.mp4", rainbow(21, 7))
    assert byov_embed(other, "-o", tmp_path / "other", "--view", "ego").code == 0
    message = call(evaluate_main, "byov-eval", "--embeddings", tmp_path / "other", *score).error()
    assert "ego-002.h5: its video matches none of the videos of mine" in message


def test_a_truncated_video_is_kept_on_request(byov_embed, tmp_path):
    path = write_video(tmp_path / "long.mkv", rainbow(60))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran = byov_embed(path, "-o", tmp_path / "a.h5")
    assert (ran.code, ran.out) == (1, "")
    assert "--on-truncated keep" in ran.err
    assert byov_embed(path, "-o", tmp_path / "a.h5", "--on-truncated", "keep").code == 0
    assert 1 < len(read_embedding(tmp_path / "a.h5")[0]) < 60


@pytest.mark.slow
@pytest.mark.parametrize(("command", "out"), [("byov-embed", "out"), ("byov-align", "out.mp4")])
def test_ctrl_c_leaves_nothing_half_done(command, out, trained, start_paused, tmp_path):
    a, b = (write_video(tmp_path / f"{name}.mp4", rainbow(40)) for name in "ab")
    words = (
        Path(sys.executable).parent / command,
        a,
        b,
        "--runs-dir",
        trained / "runs",
        "-o",
        tmp_path / out,
    )
    process = start_paused(words, before=".mp4" if command == "byov-align" else ".h5")
    _, err = signal_and_end(process, signal.SIGINT)
    assert process.returncode == 128 + signal.SIGINT, err
    assert not list(tmp_path.rglob("*.partial*"))


COMMANDS = {
    "embed-only": (train_main, ("--embed-only",)),
    "embed": (embed_main, ("videos/one.mp4", "-o", "a.h5")),
    "align": (align_main, ("videos/one.mp4", "videos/two.mp4", "-o", "a.mp4")),
    "eval": (evaluate_main, ("--task", "tau")),
    "report": (report_main, ()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_the_model_of_another_run(
    trained, tmp_path, monkeypatch, call, command
):
    """Replace the model file of an unfinished run with one that has the same weights but is from
    another run.
    """
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "runs/toy/model.safetensors"
    content = re.sub(rb'(identity\\": \\")[0-9a-f]{64}', rb"\g<1>" + b"ab" * 32, model.read_bytes())
    content = re.sub(
        rb'(file_sha256\\": \\")[0-9a-f]{64}', rb"\g<1>" + BLANK_SEAL[SEAL_NAME].encode(), content
    )
    model.write_bytes(seal(content))
    edit_config(tmp_path / "runs/toy", files_sha256={})
    main, arguments = COMMANDS[command]
    ran = call(main, f"byov-{command}", "--run", "toy", *arguments)
    assert ran.code == 2, ran
    assert "another run" in ran.err.splitlines()[-1]
