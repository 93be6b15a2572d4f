"""byov-embed as its users meet it."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from byov.cache.embeddings import read_embedding
from byov.cache.hdf5 import read_array

pytestmark = pytest.mark.usefixtures("nothing_left")

NAMES = {"one": "ego", "two": "exo", "three": "ego", "four": "exo"}  # the run's own videos and their views


def change_record(run: Path, **changes):
    config = json.loads((run / "config.json").read_text())
    config.pop("file_sha256", None)
    config["training"] |= changes
    (run / "config.json").write_text(json.dumps(config))


def test_the_run_s_own_videos_get_the_run_s_own_embeddings(byov_embed, videos, trained, tmp_path):
    ran = byov_embed("--run", "toy", *(videos / f"{name}.mp4" for name in NAMES), "-o", tmp_path / "out")
    assert ran.code == 0, ran
    for name, view in NAMES.items():
        written, ours = tmp_path / "out" / f"{name}.h5", trained / "runs" / "toy" / "embeddings" / view / f"{name}.h5"
        (embedding, source), (expected, their_source) = read_embedding(written), read_embedding(ours)
        assert embedding.tobytes() == expected.tobytes()
        np.testing.assert_array_equal(read_array(written, "pts_seconds"), read_array(ours, "pts_seconds"))
        assert source.dataset == "none"
        assert vars(source) | {"dataset": "mine"} == vars(their_source)


def test_alone_or_in_company_a_video_gets_the_same(byov_embed, videos, trained, tmp_path):
    for name in ("two", "three"):
        assert byov_embed(videos / f"{name}.mp4", "-o", tmp_path / f"{name}.h5").code == 0
        expected, _ = read_embedding(trained / "runs/toy/embeddings" / NAMES[name] / f"{name}.h5")
        np.testing.assert_array_equal(read_embedding(tmp_path / f"{name}.h5")[0], expected)


def test_a_line_for_each_file_says_what_is_in_it(byov_embed, videos, tmp_path):
    ran = byov_embed(videos / "one.mp4", videos / "three.mp4", "-o", tmp_path / "out")
    assert ran.out.splitlines() == [
        f"{tmp_path}/out/{name}.h5: {frames} x 32 from {videos}/{name}.mp4"
        for name, frames in (("one", "12 frames"), ("three", "1 frame"))
    ]
    assert ran.err.splitlines() == ["run: toy, the only one (choose with --run)", "loading the encoder random/tiny"]


def test_npz_holds_arrays_and_texts_and_no_pickle(byov_embed, videos, trained, tmp_path):
    ran = byov_embed("--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.NPZ", "--view", "ego")
    assert ran.code == 0, ran
    expected, source = read_embedding(trained / "runs/toy/embeddings/ego/one.h5")
    with np.load(tmp_path / "a.NPZ", allow_pickle=False) as file:
        assert set(file) == {"embedding", "pts_seconds", "view", "run", "model_sha256", "video"}
        np.testing.assert_array_equal(file["embedding"], expected)
        np.testing.assert_allclose(file["pts_seconds"], np.arange(12) / 10, atol=1e-9)
        texts = {name: str(file[name]) for name in ("view", "run", "model_sha256", "video")}
    assert texts == {"view": "ego", "run": "toy", "model_sha256": source.model_sha256, "video": "one"}


def test_npz_without_a_view_says_none(byov_embed, videos, tmp_path):
    assert byov_embed(videos / "three.mp4", "-o", tmp_path, "--format", "npz").code == 0
    with np.load(tmp_path / "three.npz") as file:
        assert "view" not in file
        assert file["embedding"].shape == (1, 32)


def test_with_a_view_files_lie_as_in_a_run_and_say_it(byov_embed, videos, tmp_path):
    ran = byov_embed(videos / "one.mp4", videos / "three.mp4", "-o", tmp_path / "out", "--view", "exo")
    assert ran.code == 0, ran
    for name in ("one", "three"):
        with h5py.File(tmp_path / "out" / "exo" / f"{name}.h5") as file:
            assert file.attrs["view"] == b"exo"
        assert read_embedding(tmp_path / "out" / "exo" / f"{name}.h5")[1].video == name


def test_a_video_that_fails_is_named_and_the_others_are_written(byov_embed, videos, tmp_path):
    (tmp_path / "text.mp4").write_text("not a video")
    whole = (videos / "two.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    given = (tmp_path / "text.mp4", videos / "one.mp4", tmp_path / "cut.mp4")
    ran = byov_embed(*given, "-o", tmp_path / "out", "--json")
    assert ran.code == 1
    assert [Path(entry["file"]).name for entry in ran.json["files"]] == ["one.h5"]
    assert set(ran.json["failures"]) == {str(given[0]), str(given[2])}
    for path in (given[0], given[2]):
        assert f"failed: {path}: " in ran.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one.h5"]


def test_json_says_what_was_written(byov_embed, videos, tmp_path):
    ran = byov_embed(videos / "one.mp4", "-o", tmp_path / "a.h5", "--json", "--view", "ego")
    assert ran.json["run"] == "toy"
    assert ran.json["view"] == "ego"
    assert ran.json["failures"] == {}
    entry = {"video": f"{videos}/one.mp4", "file": f"{tmp_path}/a.h5", "frames": 12, "dimensions": 32}
    assert ran.json["files"] == [entry]


def test_what_exists_is_replaced_only_if_told_so(byov_embed, one_line, videos, tmp_path):
    (tmp_path / "one.h5").write_text("mine")
    given = (videos / "three.mp4", videos / "one.mp4", "-o", tmp_path)
    assert one_line(byov_embed(*given)).startswith(f"{tmp_path}/one.h5 exists. Pass --overwrite")
    assert (tmp_path / "one.h5").read_text() == "mine"
    assert not (tmp_path / "three.h5").exists()
    assert byov_embed(*given, "--overwrite").code == 0
    assert len(read_embedding(tmp_path / "one.h5")[0]) == 12


def test_a_video_is_never_written_over(byov_embed, one_line, videos, tmp_path):
    shutil.copy(videos / "three.mp4", tmp_path / "odd.h5")
    message = one_line(byov_embed(tmp_path / "odd.h5", "-o", tmp_path / "odd.h5", "--overwrite"))
    assert "is one of the input videos" in message
    assert (tmp_path / "odd.h5").read_bytes() == (videos / "three.mp4").read_bytes()


def test_two_videos_of_one_name_are_not_put_into_one_file(byov_embed, one_line, videos, tmp_path):
    other = tmp_path / "one.mov"
    shutil.copy(videos / "one.mp4", other)
    message = one_line(byov_embed(videos / "one.mp4", other, "-o", tmp_path / "out"))
    assert message.startswith(f"{videos}/one.mp4 and {other} would both be written to")
    assert not (tmp_path / "out").exists()


def test_a_name_that_cannot_be_a_file_s_can_still_be_given_a_file(byov_embed, one_line, videos, tmp_path):
    odd = tmp_path / "-\x1b[2J.mp4"
    shutil.copy(videos / "three.mp4", odd)
    message = one_line(byov_embed(odd, "-o", tmp_path / "out"))
    assert "cannot be a file name" in message
    assert "\x1b" not in message
    assert byov_embed(odd, "-o", tmp_path / "a.h5").code == 0
    assert len(read_embedding(tmp_path / "a.h5")[0]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("one.mp4", "two.mp4", "-o", "a.h5"), "2 videos cannot go into one file"),
        (("one.mp4", "-o", "a.h5", "--format", "npz"), "contradicts --format npz"),
        (("one.mp4", "-o", "a.npy"), "-o a.npy: the output must be a .h5 or .npz file or a folder"),
        (("none.mp4", "-o", "a.h5"), "none.mp4: no such file"),
        ((".", "-o", "a.h5"), "a folder, not a video"),
        (("one.mp4", "-o", "one.mp4/deep"), "one.mp4 is a file, not a folder"),
        (("one.mp4", "-o", "a.h5", "--run", "other"), "other: no such run; choose one of toy"),
        (("one.mp4", "-o", "a.h5", "--run", "../runs/toy"), "cannot be a file name"),
        (("one.mp4", "-o", "a.h5", "--runs-dir", "nowhere"), "no run here; make one with byov-train"),
        (("one.mp4", "-o", "a.h5", "--encoder", "./nowhere"), "no such folder"),
        (("one.mp4", "-o", "a.h5", "--encoder", "random/resnet-50"), "trained on random/tiny with encoder weights"),
    ],
)
def test_mistakes_are_one_line(byov_embed, one_line, videos, monkeypatch, options, said, tmp_path):
    folder = tmp_path / "videos"
    shutil.copytree(videos, folder)
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    assert said in one_line(byov_embed(*options))
    assert sorted(folder.rglob("*")) == before


def test_a_run_whose_encoder_was_a_folder_asks_for_it(byov_embed, one_line, videos, runs, tmp_path):
    change_record(runs / "toy", encoder="my-vit", encoder_revision="folder 0123456789abcdef")
    given = ("--runs-dir", runs, videos / "one.mp4", "-o", tmp_path / "a.h5")
    message = one_line(byov_embed(*given))
    assert "an encoder from a local folder named 'my-vit'; say where it is with --encoder FOLDER" in message
    assert byov_embed(*given, "--encoder", "random/tiny").code == 0  # it has the same weights
    embedding, source = read_embedding(tmp_path / "a.h5")
    np.testing.assert_array_equal(embedding, read_embedding(runs / "toy/embeddings/ego/one.h5")[0])
    assert (source.encoder, source.encoder_revision) == ("my-vit", "folder 0123456789abcdef")


def test_an_encoder_with_other_weights_or_preparation_is_refused(byov_embed, one_line, videos, runs, tmp_path):
    given = ("--runs-dir", runs, videos / "one.mp4", "-o", tmp_path / "a.h5")
    sha256 = json.loads((runs / "toy/config.json").read_text())["training"]["encoder_sha256"]
    change_record(runs / "toy", encoder_sha256="ab" * 32)
    message = one_line(byov_embed(*given))
    assert f"{'ab' * 32!r}, random/tiny has {sha256!r}" in message
    change_record(runs / "toy", encoder_sha256=sha256, preprocessing="squash 99 nearest")
    message = one_line(byov_embed(*given))
    assert "preprocessing 'squash 99 nearest', random/tiny has 'squash 128 bicubic" in message
    assert not (tmp_path / "a.h5").exists()


def test_a_run_of_features_of_another_compute_type_embeds_and_says_so(byov_embed, videos, runs, tmp_path):
    given = ("--runs-dir", runs, "--run", "toy", videos / "one.mp4", "--device", "cpu")
    change_record(runs / "toy", compute_dtype="float16")
    said = "toy was trained on features computed in float16, --device cpu computes in float32"
    ran = byov_embed(*given, "-o", tmp_path / "a.h5")
    assert ran.code == 0, ran
    assert said in ran.err
    change_record(runs / "toy", compute_dtype="float32")
    ran = byov_embed(*given, "-o", tmp_path / "b.h5")
    assert ran.code == 0, ran
    assert said not in ran.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preprocessing": "melt 3"}, "'melt 3' is none that byov knows"),
        ({"preprocessing": ""}, "is none that byov knows"),
        ({"preprocessing": None}, "preprocessing is None"),
        ({"encoder_sha256": 7}, "encoder_sha256 is 7"),
        ({"encoder_revision": ["\x1b[2J"]}, "encoder_revision is ["),
        ({"column": "merged/nan"}, "none of a ratio"),
        ({"column": "merged/2.0"}, "none of a ratio"),
        ({"column": "cls"}, "none of a ratio"),
        ({"column": "merged/0.30"}, "none of a ratio"),
        ({"encoder": "random/unheard-of"}, "unknown architecture"),
        ({"encoder": "imagenet/unheard-of"}, "unknown; choose imagenet/ efficientnet-lite0"),
        ({"encoder": "no/such/model"}, "nor a HuggingFace id"),
        ({"encoder": "../other", "encoder_revision": ""}, "'../other', a folder's name"),
        ({"encoder": "~nobody\x1b[2J"}, "a folder's name"),
        ({"encoder": "models/vit"}, "'models/vit', a folder's name"),
        ({"seed": "0"}, "seed is '0'; it must be a valid integer"),
    ],
    ids=str,
)
def test_a_hostile_record_is_one_line(byov_embed, one_line, videos, runs, tmp_path, monkeypatch, changes, said):
    (tmp_path / "models" / "vit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    change_record(runs / "toy", **changes)
    message = one_line(byov_embed("--runs-dir", runs, "--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.h5"))
    assert said in message
    assert "\x1b" not in message


OTHER_SIZES = [
    {"depth": 1_000_000},
    {"latent": 999_968},
    {"latent": 64},
    {"depth": -1},
    {"latent": 2, "heads": 1, "depth": 300_000},
    {"decoder_depth": 2},
]


@pytest.mark.parametrize("changes", OTHER_SIZES, ids=str)
def test_sizes_that_the_weights_do_not_fit_are_one_line(byov_embed, one_line, videos, runs, tmp_path, changes):
    config = json.loads((runs / "toy/config.json").read_text())
    config.pop("file_sha256", None)
    config["settings"] |= changes
    (runs / "toy/config.json").write_text(json.dumps(config))
    assert "unknown setting" not in one_line(
        byov_embed("--runs-dir", runs, "--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.h5")
    )


def test_a_run_without_a_sound_model_is_one_line(byov_embed, one_line, videos, runs, tmp_path):
    given = ("--runs-dir", runs, "--run", "toy", videos / "one.mp4", "-o", tmp_path / "a.h5")
    content = (runs / "toy/model.safetensors").read_bytes()
    (runs / "toy/model.safetensors").write_bytes(content[:-100])
    assert "model.safetensors: it does not match the digest in it" in one_line(byov_embed(*given))
    (runs / "toy/model.safetensors").unlink()
    assert "no model yet; finish the run with byov-train --run toy --resume" in one_line(byov_embed(*given))
    (runs / "toy/config.json").write_text("{")
    assert "not readable" in one_line(byov_embed(*given))


def test_a_file_that_breaks_off_is_kept_up_to_there_if_told_so(byov_embed, make_video, colors, tmp_path):
    path = make_video(tmp_path / "long.mkv", colors(60))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran = byov_embed(path, "-o", tmp_path / "a.h5")
    assert (ran.code, ran.out) == (1, "")
    assert "--on-truncated keep" in ran.err
    assert byov_embed(path, "-o", tmp_path / "a.h5", "--on-truncated", "keep").code == 0
    assert 1 < len(read_embedding(tmp_path / "a.h5")[0]) < 60
