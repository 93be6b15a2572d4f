"""byov-cache in a process of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import make_provenance

from byov import __version__
from byov.cache.digests import seal_json
from byov.cache.hdf5 import stored_attribute
from byov.cache.manifest import load_manifest

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
TRAINING = {
    **{"dataset": "demo", "encoder": "random/tiny", "encoder_folder": "random--tiny", "column": "merged/0.3"},
    **{"recipe": "paper", "seed": 0, "untrained_sha256": "ab" * 32},
}


def test_ls(byov_cache, features_dir):
    done = byov_cache("ls", "--features-dir", features_dir)
    assert (done.returncode, done.stderr) == (0, "")
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["dataset", "encoder", "videos", "frames", "STM", "ratios", "size"]
    assert re.fullmatch(r"demo +openai/clip-vit-base-patch16 +3/3 +137 +0\.3 1\.0 +[\d.]+ KiB *", line)


def test_ls_counts_unreadable_and_failed_videos_and_pairs(byov_cache, features_dir, encoder_folder):
    path = features_dir / "demo" / "manifest.json"
    manifest = load_manifest(path)
    ego, other, exo = manifest.videos
    replace(manifest, videos=(replace(ego, pair="p"), other, replace(exo, pair="p"))).save(path)
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    (encoder_folder / "failures.json").write_text('{"005": "ends early"}')
    done = byov_cache("ls", "--features-dir", features_dir, COLUMNS="120")
    assert done.returncode == 0
    for part in ("2/3", "pairs", "1 unreadable", "1 failed"):
        assert part in done.stdout


def test_ls_json(byov_cache, features_dir, encoder_folder):
    done = byov_cache("ls", "--json", BYOV_FEATURES=str(features_dir))
    (summary,) = json.loads(done.stdout)
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


def test_empty_cache_is_not_an_error(byov_cache, tmp_path):
    folder = tmp_path / "empty [/x] [bold]"
    folder.mkdir(parents=True)
    for command in ("ls", "verify"):
        done = byov_cache(command, "--features-dir", folder)
        assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("arguments", [["ls", "--json"], ["verify", "demo"], ["show", "none.h5"], ["nonsense"], []])
def test_mistakes_end_with_exit_code_2_and_no_traceback(byov_cache, arguments):
    done = byov_cache(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr


def test_unknown_dataset_lists_the_existing_ones(byov_cache, features_dir):
    done = byov_cache("verify", "pour_milk", "--features-dir", features_dir)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(r"error: .*'pour_milk'.*demo\n", done.stderr)


def test_show(byov_cache, encoder_folder):
    done = byov_cache("show", encoder_folder / "ego" / "004.h5")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["merged/0.3", "70x16", "float16"]
    facts = dict(line.split(maxsplit=1) for line in lines[lines.index("") + 1 :])
    assert json.loads(facts["source_name"]) == "Küche 1.mp4"
    assert (facts["frames"], facts["fps"], facts["truncated"]) == ("70", "30.0", "false")
    shown = json.loads(byov_cache("show", "--json", encoder_folder / "ego" / "004.h5").stdout)
    assert shown["columns"]["order"] == [[70, 9], "uint16"]
    assert shown["encoder_sha256"] == make_provenance().encoder_sha256


def test_verify_of_a_sound_cache(byov_cache, features_dir):
    done = byov_cache("verify", "demo", "--features-dir", features_dir)
    assert (done.stdout, done.stderr, done.returncode) == ("4 files checked, 0 bad\n", "", 0)
    done = byov_cache("verify", "--json", "--features-dir", features_dir)
    assert json.loads(done.stdout) == {"checked": 4, "bad": {}, "remedies": {}, "without_digest": []}


def test_verify_reports_files_without_a_digest(byov_cache, features_dir, tmp_path):
    (tmp_path / "runs" / "long").mkdir(parents=True)
    (tmp_path / "runs" / "long" / "config.json").write_bytes(seal_json({"training": TRAINING}))
    (tmp_path / "runs" / "long" / "metrics.jsonl").write_text('{"epoch": 0}\n')
    report = json.loads(byov_cache("verify", "--json", "--features-dir", features_dir).stdout)
    assert (report["checked"], report["bad"]) == (6, {})
    assert report["without_digest"] == ["runs/long/metrics.jsonl"]  # it gets one when training ends


def flipped(path, flip, _):
    flip(path, "merged/0.3")


def truncated(path, *_):
    os.truncate(path, path.stat().st_size // 2)


def mixed(path, _, write):
    write(path, 64, preprocessing="crop 336")


def of_other_length(path, _, write):
    write(path, 63)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flipped, "not a readable cache file"),
        (truncated, "not a readable cache file"),
        (mixed, "preprocessing 'crop 336', but 004.h5 has 'squash 224'"),
        (of_other_length, "63 frames, 64 in the manifest"),
    ],
)
def test_verify_names_the_bad_file_and_fails(
    byov_cache, features_dir, encoder_folder, flip_data_byte, write_features, damage, reason
):
    shutil.copytree(features_dir / "demo", features_dir / "other")
    bad = encoder_folder / "exo" / "004.h5"
    damage(bad, flip_data_byte, write_features)
    done = byov_cache("verify", "--json", "--features-dir", features_dir)
    report = json.loads(done.stdout)
    assert (report["checked"], list(report["bad"]), done.returncode) == (8, [str(bad)], 1)
    assert report["bad"][str(bad)].startswith(reason)
    assert "byov-extract" in report["remedies"][str(bad)]
    assert byov_cache("verify", "other", "--features-dir", features_dir).returncode == 0


def test_version_and_help(byov_cache):
    assert byov_cache("--version").stdout == f"byov {__version__}\n"
    for arguments in (["--help"], ["verify", "--help"]):
        done = byov_cache(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage" in done.stdout


def test_control_characters_of_files_do_not_reach_the_terminal(byov_cache, features_dir, encoder_folder, edit_h5):
    hostile = "evil\x1b]0;title\x07\x1b[2J\r\x9b\udcff \u202e"
    for path in encoder_folder.rglob("*.h5"):
        with edit_h5(path) as file:
            for name in ("encoder", "source_name", "preprocessing"):
                file.attrs[name] = stored_attribute(hostile + path.parent.name)
            file.create_dataset("\x1b[2Jcolumn", data=np.ones((len(file["cls"]), 2), "f2"), chunks=(1, 2))
    (features_dir / "demo" / "\x1b[2Jfolder").mkdir()
    dataset = features_dir / "\x1b[2Jset"
    shutil.copytree(features_dir / "demo", dataset)
    for arguments in (
        ["ls", "--features-dir", features_dir],
        ["show", encoder_folder / "ego" / "004.h5"],
        ["verify", "--features-dir", features_dir],
        ["show", dataset / "none.h5"],
    ):
        done = byov_cache(*arguments, COLUMNS="300")
        assert "Traceback" not in done.stderr
        assert "[2J" in done.stdout + done.stderr  # shown as text
        assert not CONTROL.search(done.stdout + done.stderr), arguments


def test_names_can_be_listed_on_an_ascii_terminal(byov_cache, features_dir, encoder_folder):
    (encoder_folder / "ego" / "Küche 1.h5").write_text("damaged")
    done = byov_cache("verify", "--features-dir", features_dir, PYTHONIOENCODING="ascii")
    assert (done.stderr, done.returncode) == ("", 1)
    assert "K\\xfcche 1.h5: not a readable" in done.stdout


def test_closed_pipe_is_silent(byov_cache, features_dir, encoder_folder, write_features):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = byov_cache("ls", "--features-dir", features_dir, stdout=writing)
    finally:
        os.close(writing)
    assert (done.stderr, done.returncode) == ("", 1)
    long = write_features(encoder_folder / "ego" / "004.h5", 70, source_name="x" * 60_000, decoder="y" * 60_000)
    command = Path(sys.executable).with_name("byov-cache")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [command, "show", long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline().split() == [b"cls", b"70x16", b"float16"]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_reported_in_one_line(byov_cache, features_dir):
    with Path("/dev/full").open("wb") as full:
        done = byov_cache("ls", "--features-dir", features_dir, stdout=full.fileno())
    assert (done.stderr, done.returncode) == ("error: No space left on device\n", 1)
