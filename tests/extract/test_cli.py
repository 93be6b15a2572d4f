"""End-to-end tests of byov-extract on small real videos."""

import json
import logging
import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import read_files, write_noise_video

from byov.cache.digests import FINGERPRINT_SAMPLE_BYTES, file_sha256
from byov.cache.features import read_header
from byov.cache.hdf5 import read_array, stored_attribute
from byov.cache.manifest import VideoEntry, load_index, load_manifest, read_sources
from byov.data.video import FrameReader
from byov.extract.encoders import load_encoder
from byov.extract.token_merging import merge_tokens

TINY = ("--encoder", "random/tiny")
RATIOS = ("0.1", "0.2", "0.3", "0.4", "0.5", "1.0")


def features(tmp_path, dataset="mine"):
    return tmp_path / "features" / dataset / "random--tiny"


def test_every_frame_of_every_video_at_all_ratios(byov_extract, make_dataset, tmp_path):
    table = make_dataset([5, 40, 1, 33])
    ran = byov_extract("--manifest", table, *TINY)
    assert ran.code == 0, ran.err
    encoder = load_encoder("random/tiny", device="cpu")
    sources = read_sources(tmp_path / "features" / "mine")
    for index, frames in enumerate([5, 40, 1, 33]):
        path = features(tmp_path) / ("ego", "exo")[index % 2] / f"v{index}.h5"
        header = read_header(path)
        assert (header.frames, header.fps, header.ratios) == (frames, 15.0, RATIOS)
        np.testing.assert_allclose(
            read_array(path, "pts_seconds"), np.arange(frames) / 15, atol=1e-9
        )
        pixels = np.concatenate(
            [b.pixels for b in FrameReader(table.parent / f"v{index}.mp4").blocks()]
        )
        tokens, cls = encoder.encode(encoder.preprocessing.resized(torch.from_numpy(pixels)))
        np.testing.assert_allclose(read_array(path, "cls"), cls.numpy(), atol=2e-3, rtol=2e-3)
        for ratio, merged in merge_tokens(tokens, [float(ratio) for ratio in RATIOS]).items():
            np.testing.assert_allclose(
                read_array(path, f"merged/{ratio}"), merged.numpy(), atol=2e-3, rtol=2e-3
            )
        order = read_array(path, "order")
        assert order.shape == (frames, 64)
        assert (np.sort(order, axis=1) == np.arange(64)).all()
        assert sources[f"v{index}"] == table.parent.resolve() / f"v{index}.mp4"
        assert header.provenance.source_name == f"v{index}.mp4"
        assert str(tmp_path).encode() not in path.read_bytes()


def test_manifest_describes_the_videos_and_follows_the_csv(byov_extract, make_dataset, tmp_path):
    table = make_dataset([15, 30])
    extract = partial(byov_extract, "--manifest", table, "--name", "cups", *TINY, "--json")
    path = tmp_path / "features" / "cups" / "manifest.json"
    table.write_text(
        "path,view,split,id,events\nv0.mp4,ego,train,first,0.5\nv1.mp4,exo,train,second,1.0\n"
    )
    assert extract().code == 0
    manifest = load_manifest(path)
    assert (manifest.dataset, manifest.phases) == ("cups", ("phase 0", "phase 1"))
    assert manifest.videos[0] == VideoEntry(
        "first",
        "ego",
        "train",
        15,
        15.0,
        (0,) * 8 + (1,) * 7,
        None,
        source_sha256=file_sha256(table.parent / "v0.mp4"),
    )
    assert manifest.videos[1].labels == (0,) * 15 + (1,) * 15
    table.write_text(
        "path,view,split,id,events,pair\nv0.mp4,ego,train,first,0.2,p\nv1.mp4,exo,train,second,1,p\n"
    )
    assert extract().json["extracted_videos"] == 0
    assert [(video.labels.count(0), video.pair) for video in load_manifest(path).videos] == [
        (3, "p"),
        (15, "p"),
    ]


@pytest.mark.parametrize(
    ("events", "late"), [("0.2;0.98;99", "0.98, 99 s"), ("2f;15f;16f", "15, 16 f")]
)
def test_all_events_after_the_last_frame_are_reported_every_time(
    byov_extract, make_dataset, tmp_path, events, late
):
    table = make_dataset([15, 15, 15])
    rows = f"v0.mp4,ego,train,0.2;0.5;0.9\nv1.mp4,exo,train,{events}\nv2.mp4,exo,train,{events}\n"
    table.write_text(f"path,view,split,events\n{rows}")
    for options in (("--check",), (), ()):
        ran = byov_extract("--manifest", table, *TINY, *options, "--json")
        assert ran.code == 1
        problems = ran.json.get("failures") or {
            video["id"]: video["problem"] for video in ran.json["videos"]
        }
        assert {video for video, problem in problems.items() if problem and late in problem} == {
            "v1",
            "v2",
        }
    table.write_text(f"path,view,split,events\n{rows.replace(events, '0.2;0.5;0.9')}")
    assert byov_extract("--manifest", table, *TINY).code == 0
    assert not (features(tmp_path) / "failures.json").exists()


def test_folder_with_a_name_that_is_not_utf8(byov_extract, monkeypatch, tmp_path):
    # pytest-xdist cannot send such log records.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    for view in ("ego", "exo"):
        write_noise_video(tmp_path / "my" / view / os.fsdecode(b"a\xff.mp4"), 2)
    assert "UTF-8" in byov_extract("--folder", tmp_path / "my", *TINY).error()


@pytest.mark.parametrize(
    "runs", [("--decoders=1",), ("--decoders=4",), ("--shard=3/3", "--shard=1/3", "--shard=2/3")]
)
def test_files_do_not_depend_on_threads_neighbors_or_shards(
    byov_extract, make_dataset, tmp_path, runs
):
    table = make_dataset([5, 70, 1, 33, 2])
    byov_extract("--manifest", table, *TINY)
    for option in runs:
        assert (
            byov_extract("--manifest", table, *TINY, option, "--features-dir", tmp_path / "b").code
            == 0
        )
    assert read_files(tmp_path / "b") == read_files(tmp_path / "features")


def test_failed_video_does_not_stop_the_others(byov_extract, make_dataset, tmp_path):
    table = make_dataset([5, 6, 7, 8])
    good = (table.parent / "v1.mp4").read_bytes()
    (table.parent / "v1.mp4").write_bytes(b"\0 not a video at all")
    ran = byov_extract("--manifest", table, *TINY, "--json")
    assert ran.code == 1
    assert ran.json["extracted_videos"] == 3
    failures = json.loads((features(tmp_path) / "failures.json").read_text())
    assert list(failures) == ["v1"]
    assert "v1.mp4: FFmpeg cannot open" in failures["v1"]
    assert "failed: " in ran.err
    assert "v1.mp4" in ran.err
    (table.parent / "v1.mp4").write_bytes(good)
    again = byov_extract("--manifest", table, *TINY, "--json")
    assert (again.code, again.json["extracted_videos"]) == (0, 1)
    assert not (features(tmp_path) / "failures.json").exists()


def test_truncated_video_fails_unless_its_frames_are_kept(byov_extract, make_dataset, tmp_path):
    table = make_dataset([5, 6])
    whole = write_noise_video(tmp_path / "whole.mkv", 90, seed=3).read_bytes()
    (table.parent / "v2.mkv").write_bytes(whole[: len(whole) // 2])
    with table.open("a") as file:
        file.write("v2.mkv,ego,train\n")
    ran = byov_extract("--manifest", table, *TINY)
    assert ran.code == 1
    assert "--on-truncated keep" in ran.err
    assert not (features(tmp_path) / "ego" / "v2.h5").exists()
    assert byov_extract("--manifest", table, *TINY, "--on-truncated", "keep").code == 0
    header = read_header(features(tmp_path) / "ego" / "v2.h5")
    assert header.truncated
    assert 10 < header.frames < 90


def pour_milk(root: Path, labels: dict[str, list[int]]) -> None:
    for index, stem in enumerate(labels):
        split = ("train", "val", "test")[index % 3]
        view = ("ego", "exo")[index // 3]
        write_noise_video(root / "pour_milk" / split / view / f"{stem}.mp4", 12, seed=index)
    (root / "pour_milk" / "label.pickle").write_bytes(pickle.dumps(labels))


def test_labels_must_match_the_frames(byov_extract, tmp_path):
    counts = {"a": 12, "b": 12, "c": 9, "d": 12, "e": 15, "f": 12}
    pour_milk(
        tmp_path / "datasets", {stem: [0] * 4 + [1] * (count - 4) for stem, count in counts.items()}
    )
    ran = byov_extract("--dataset", "pour_milk", *TINY)
    assert ran.code == 1
    assert "c.mp4: 12 frames but 9 labels" in ran.err
    assert "e.mp4: 12 frames but 15 labels" in ran.err
    trimmed = byov_extract("--dataset", "pour_milk", *TINY, "--on-mismatch", "trim", "--json")
    assert (trimmed.code, trimmed.json["extracted_videos"]) == (0, 2)
    videos = json.loads((tmp_path / "features" / "pour_milk" / "manifest.json").read_text())[
        "videos"
    ]
    lengths = {video["id"]: (video["frames"], len(video["labels"])) for video in videos}
    assert lengths == {
        "a": (12, 12),
        "b": (12, 12),
        "c": (9, 9),
        "d": (12, 12),
        "e": (12, 12),
        "f": (12, 12),
    }
    assert read_header(features(tmp_path, "pour_milk") / "ego" / "c.h5").frames == 9


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("clips/a.mp4", "--folder clips, which"),
        (".", "--folder ."),
        ("videos.csv", "--manifest videos.csv"),
        ("pour_milk", "--dataset pour_milk"),
    ],
)
def test_positional_arguments_are_answered_with_an_option(byov_extract, argument, advice):
    assert f"Pass {advice}" in byov_extract(argument).error()


def test_new_ratios_are_added_and_old_ones_kept(byov_extract, make_dataset, tmp_path):
    table = make_dataset([5, 6])
    byov_extract("--manifest", table, *TINY, "--ratios", "0.3")
    before = read_array(features(tmp_path) / "ego" / "v0.h5", "merged/0.3")
    ran = byov_extract("--manifest", table, *TINY, "--ratios", "0.7", "--json")
    assert (ran.code, ran.json["extracted_videos"]) == (0, 2)
    assert "extracting 2 cached videos again: lacks ratio 0.7" in ran.err
    assert read_header(features(tmp_path) / "ego" / "v0.h5").ratios == ("0.3", "0.7")
    assert (read_array(features(tmp_path) / "ego" / "v0.h5", "merged/0.3") == before).all()


@pytest.mark.parametrize("change", ["weights", "resize", "source", "partly new weights"])
def test_features_of_different_origin_are_never_mixed(
    byov_extract, make_dataset, model_folder, tmp_path, change
):
    table = make_dataset([5, 6])
    folder = model_folder(tmp_path / "model", 0)
    assert byov_extract("--manifest", table, "--encoder", folder).code == 0
    before = read_files(tmp_path / "features")
    options = ["--manifest", table, "--encoder", folder]
    if "weights" in change:
        model_folder(folder, 1)
    if change == "partly new weights":
        (tmp_path / "features" / "mine" / "model" / "ego" / "v0.h5").unlink()
        before = read_files(tmp_path / "features")
    if change == "resize":
        options += ["--resize", "crop"]
    if change == "source":
        write_noise_video(table.parent / "v1.mp4", 6, seed=9)
    message = byov_extract(*options).error()
    assert {"resize": "made with preprocessing 'squash', expected 'crop'"}.get(
        change, "made "
    ) in message
    assert "--overwrite" in message
    assert read_files(tmp_path / "features") == before
    assert byov_extract(*options, "--overwrite").code == 0
    assert byov_extract(*options).code == 0


def test_verify_sources_notices_a_byte_changed_between_two_samples(
    byov_extract, make_dataset, tmp_path
):
    table = make_dataset([3, 4])
    source = table.parent / "v1.mp4"
    # Padding that players skip; the file is now large enough to be sampled.
    with source.open("ab") as file:
        file.write((1 << 19).to_bytes(4, "big") + b"free" + bytes((1 << 19) - 8))
    assert byov_extract("--manifest", table, *TINY).code == 0
    before = read_files(tmp_path / "features")
    times = source.stat()
    with source.open("r+b") as file:
        file.seek(times.st_size - FINGERPRINT_SAMPLE_BYTES - 1)
        file.write(b"x")
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    ran = byov_extract("--manifest", table, *TINY)
    assert (ran.code, "2 already cached" in ran.out) == (0, True), ran
    message = byov_extract("--manifest", table, *TINY, "--verify-sources").error()
    assert (
        "made from v1.mp4 with digest "
        f"{read_header(features(tmp_path) / 'exo/v1.h5').provenance.source_sha256[:12]}" in message
    )
    assert f"{source} has changed to {file_sha256(source)[:12]}" in message
    assert read_files(tmp_path / "features") == before
    # With a new modification time, the whole file is compared even without --verify-sources.
    os.utime(source)
    assert byov_extract("--manifest", table, *TINY).error() == message


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_features_of_another_compute_type_are_never_mixed(
    byov_extract, make_dataset, tmp_path, device, edit_h5
):
    table = make_dataset([5, 6])
    options = ("--manifest", table, *TINY, "--device", device)
    assert byov_extract(*options).code == 0
    path = features(tmp_path) / "exo" / "v1.h5"
    original = read_header(path).provenance.compute_dtype
    other = {"float16": "float32", "float32": "float16"}[original]
    with edit_h5(path) as file:
        file.attrs["compute_dtype"] = stored_attribute(other)
    if device == "auto":  # the compute type is only known once the encoder is loaded
        (features(tmp_path) / "ego" / "v0.h5").unlink()
    before = read_files(tmp_path / "features")
    message = byov_extract(*options).error()
    assert f"v1.h5: made with compute type {other!r}, expected {original!r}" in message
    assert "--overwrite" in message
    assert read_files(tmp_path / "features") == before
    assert byov_extract(*options, "--overwrite").code == 0
    assert read_header(path).provenance.compute_dtype == original


def test_check_shows_the_plan_and_extracts_nothing(
    byov_extract, make_dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    table = make_dataset([5, 6, 7, 8])
    byov_extract("--manifest", table, *TINY, "--shard", "1/2")
    (table.parent / "v1.mp4").write_bytes(b"")
    before = read_files(tmp_path / "features")
    ran = byov_extract("--manifest", table, *TINY, "--check", "--json")
    assert (ran.code, ran.json["states"], ran.json["frames"]) == (1, {"cached": 2, "missing": 2}, 8)
    assert ran.json["disk_bytes"] == 8 * 2 * 128 * 7  # six ratios and about one more column
    videos = {video["id"]: video for video in ran.json["videos"]}
    expected = {"state": "cached", "frames": 5, "size": "48x32", "fps": 15.0}
    assert (expected | {"state": "missing", "frames": 8}).items() <= videos["v3"].items()
    assert expected.items() <= videos["v0"].items()
    assert "empty file" in videos["v1"]["problem"]
    text = byov_extract("--manifest", table, *TINY, "--check").out
    assert "48x32" in text
    assert "problem: " in text
    assert "2 cached, 2 missing" in text
    assert "8 frames to encode, about 14.0 KiB" in text
    assert (
        byov_extract(
            "--manifest", table, "--check", "--encoder", "nobody/nothing", "--shard", "3/4"
        ).code
        == 0
    )
    assert read_files(tmp_path / "features") == before


def test_ids_that_leave_the_cache_are_refused(byov_extract, make_dataset, tmp_path):
    table = make_dataset([5, 6])
    table.write_text("path,view,split,id\nv0.mp4,ego,train,../../../out\nv1.mp4,exo,train,b\n")
    assert (
        "'../../../out' cannot be a file name" in byov_extract("--manifest", table, *TINY).error()
    )
    assert not (tmp_path / "features").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--manifest", "x.csv"), "pass one of --dataset"),
        (("--name", "x"), "--name requires"),
        (("--ratios", "0"), "(0, 1]"),
        (("--shard", "0/2"), "i from 1 to"),
        (("--batch-size", "0"), "batch-size"),
        (("--resize", "stretch"), "resize"),
    ],
)
def test_bad_usage_is_reported_before_anything_is_done(byov_extract, tmp_path, arguments, message):
    assert message in byov_extract("--dataset", "demo", *arguments).error()
    assert not (tmp_path / "datasets").exists()


def test_encoder_that_returns_nan_fails_its_videos(
    byov_extract, make_dataset, model_folder, tmp_path
):
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "model", 0)
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if key.endswith("patch_embedding.weight"))
    save_file(
        weights | {name: weights[name] * float("nan")},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    ran = byov_extract("--manifest", make_dataset([5, 6]), "--encoder", folder)
    assert ran.code == 1
    assert "v0.mp4: the encoder returned NaN or Inf" in ran.err


def test_two_encoders_share_a_manifest(byov_extract, make_dataset, model_folder, tmp_path):
    table = make_dataset([5, 6])
    byov_extract("--manifest", table, *TINY)
    before = (tmp_path / "features" / "mine" / "manifest.json").read_bytes()
    folder = model_folder(tmp_path / "model", 0)
    assert byov_extract("--manifest", table, "--encoder", folder, "--shard", "1/2").code == 0
    assert (tmp_path / "features" / "mine" / "manifest.json").read_bytes() == before
    indexed = load_index(tmp_path / "features" / "mine").files
    assert {name: set(files) for name, files in indexed.items()} == {
        "model": {"v0"},
        "random--tiny": {"v0", "v1"},
    }
