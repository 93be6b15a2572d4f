"""Tests of byov-cache, in a separate process where standard output matters."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import make_provenance, make_training

from byov.cache.digests import seal_json
from byov.cache.hdf5 import stored_attribute
from byov.cache.manifest import load_manifest

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
COMMAND = Path(sys.executable).with_name("byov-cache")


def test_ls_counts_unreadable_and_failed_videos_and_pairs(
    byov_cache, features_dir, encoder_folder, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    path = features_dir / "demo" / "manifest.json"
    manifest = load_manifest(path)
    ego, other, exo = manifest.videos
    replace(manifest, videos=(replace(ego, pair="p"), other, replace(exo, pair="p"))).save(path)
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    (encoder_folder / "failures.json").write_text('{"005": "ends early"}')
    ran = byov_cache("ls", "--features-dir", features_dir)
    assert (ran.code, ran.err) == (0, "")
    heading, line = ran.out.splitlines()
    assert heading.split() == ["dataset", "encoder", "videos", "frames", "STM", "ratios", "size"]
    counts = "2/3, 1 pairs, 1 unreadable, 1 failed"
    assert re.fullmatch(
        rf"demo +openai/clip-vit-base-patch16 +{counts} +67 +0\.3 1\.0 +[\d.]+ KiB *", line
    )


def test_ls_json(byov_cache, features_dir, encoder_folder, monkeypatch):
    monkeypatch.setenv("BYOV_FEATURES", str(features_dir))
    (summary,) = byov_cache("ls", "--json").json
    assert summary == {
        "dataset": "demo",
        "encoder": "openai/clip-vit-base-patch16",
        "folder": str(encoder_folder),
        "cached_videos": 3,
        "dataset_videos": 3,
        "dataset_pairs": 0,
        "frames": 137,
        "ratios": ["0.3", "1.0"],
        "disk_bytes": sum(path.stat().st_size for path in encoder_folder.rglob("*.h5")),
        "unreadable": 0,
        "failures": 0,
    }


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_empty_cache_is_not_an_error(byov_cache, tmp_path, command):
    folder = tmp_path / "empty [/x] [bold]"
    folder.mkdir(parents=True)
    ran = byov_cache(command, "--features-dir", folder)
    assert (ran.err, ran.code) == ("", 0)


def test_show(byov_cache, encoder_folder):
    ran = byov_cache("show", encoder_folder / "ego" / "004.h5")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[1].split() == ["merged/0.3", "70x16", "float16"]
    facts = dict(line.split(maxsplit=1) for line in lines[lines.index("") + 1 :])
    assert json.loads(facts["source_name"]) == "Küche 1.mp4"
    assert (facts["frames"], facts["fps"], facts["truncated"]) == ("70", "30.0", "false")
    shown = byov_cache("show", "--json", encoder_folder / "ego" / "004.h5").json
    assert shown["columns"]["order"] == [[70, 9], "uint16"]
    assert shown["encoder_sha256"] == make_provenance().encoder_sha256


def test_verify_reports_files_without_a_digest(byov_cache, features_dir, tmp_path):
    assert (
        byov_cache("verify", "demo", "--features-dir", features_dir).out
        == "4 files checked, 0 bad\n"
    )
    (tmp_path / "runs" / "long").mkdir(parents=True)
    (tmp_path / "runs" / "long" / "config.json").write_bytes(
        seal_json({"training": make_training()})
    )
    (tmp_path / "runs" / "long" / "metrics.jsonl").write_text('{"epoch": 0}\n')
    report = byov_cache("verify", "--json", "--features-dir", features_dir).json
    assert (report["checked"], report["bad"], report["remedies"]) == (6, {}, {})
    # Its digest is recorded when training ends.
    assert report["without_digest"] == ["runs/long/metrics.jsonl"]


def test_verify_names_the_bad_file_and_fails(byov_cache, features_dir, encoder_folder):
    shutil.copytree(features_dir / "demo", features_dir / "other")
    bad = encoder_folder / "exo" / "004.h5"
    bad.write_bytes(bad.read_bytes()[:-1000])
    ran = byov_cache("verify", "--json", "--features-dir", features_dir)
    assert (ran.json["checked"], list(ran.json["bad"]), ran.code) == (8, [str(bad)], 1)
    assert ran.json["bad"][str(bad)].startswith("not a readable cache file")
    assert "byov-extract" in ran.json["remedies"][str(bad)]
    assert byov_cache("verify", "other", "--features-dir", features_dir).code == 0


def test_control_characters_of_files_do_not_reach_the_terminal(
    byov_cache, features_dir, encoder_folder, edit_h5, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    hostile = "evil\x1b]0;title\x07\x1b[2J\r\x9b\udcff \u202e"
    for path in encoder_folder.rglob("*.h5"):
        with edit_h5(path) as file:
            for name in ("encoder", "source_name", "preprocessing"):
                file.attrs[name] = stored_attribute(hostile + path.parent.name)
            file.create_dataset(
                "\x1b[2Jcolumn", data=np.ones((len(file["cls"]), 2), "f2"), chunks=(1, 2)
            )
    (features_dir / "demo" / "\x1b[2Jfolder").mkdir()
    dataset = features_dir / "\x1b[2Jset"
    shutil.copytree(features_dir / "demo", dataset)
    for arguments in (
        ["ls", "--features-dir", features_dir],
        ["show", encoder_folder / "ego" / "004.h5"],
        ["verify", "--features-dir", features_dir],
        ["show", dataset / "none.h5"],
    ):
        ran = byov_cache(*arguments)
        assert "[2J" in ran.out + ran.err  # escape sequences are shown as text
        assert not CONTROL.search(ran.out + ran.err), arguments


def test_closed_pipe_is_silent(encoder_folder, write_features, clean_environment):
    long = write_features(
        encoder_folder / "ego" / "004.h5", 70, source_name="x" * 60_000, decoder="y" * 60_000
    )
    with subprocess.Popen(
        [COMMAND, "show", long],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment,
    ) as process:
        assert process.stdout.readline().split() == [b"cls", b"70x16", b"float16"]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_reported_in_one_line(features_dir, clean_environment):
    command = [COMMAND, "ls", "--features-dir", features_dir]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment,
            check=False,
        )
    assert (done.stderr, done.returncode) == ("error: No space left on device\n", 1)
