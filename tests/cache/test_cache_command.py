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

from byov import __version__
from byov.cache.digests import seal_json
from byov.cache.manifest import load_manifest
from byov.text import format_size

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def test_ls_lists_each_encoder_on_a_line(byov_cache, features_dir):
    done = byov_cache("ls", "--features-dir", features_dir)
    assert (done.returncode, done.stderr) == (0, "")
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["dataset", "encoder", "videos", "frames", "STM", "ratios", "size"]
    assert re.fullmatch(r"demo +openai/clip-vit-base-patch16 +3/3 +137 +0\.3 1\.0 +[\d.]+ KiB *", line)


def test_ls_says_what_is_unreadable_and_what_failed(byov_cache, features_dir, encoder_folder):
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    (encoder_folder / "failures.json").write_text('{"005": "ends early"}')
    done = byov_cache("ls", "--features-dir", features_dir, COLUMNS="120")
    assert done.returncode == 0
    assert "2/3, 1 unreadable, 1 failed" in done.stdout


def test_ls_says_how_many_pairs_there_are(byov_cache, features_dir):
    path = features_dir / "demo" / "manifest.json"
    manifest = load_manifest(path)
    ego, other, exo = manifest.videos
    replace(manifest, videos=(replace(ego, pair="p"), other, replace(exo, pair="p"))).save(path)
    assert "3/3, pairs: 1 " in byov_cache("ls", "--features-dir", features_dir, COLUMNS="120").stdout


def test_ls_json_is_for_machines(byov_cache, features_dir, encoder_folder):
    done = byov_cache("ls", "--json", BYOV_FEATURES=str(features_dir))
    (summary,) = json.loads(done.stdout)
    size = sum(path.stat().st_size for path in encoder_folder.rglob("*.h5"))
    assert summary == {
        "dataset": "demo",
        "encoder": "openai/clip-vit-base-patch16",
        "folder": str(encoder_folder),
        "cached_videos": 3,
        "dataset_videos": 3,
        "dataset_pairs": 0,
        "frames": 137,
        "ratios": ["0.3", "1.0"],
        "disk_bytes": size,
        "unreadable": 0,
        "failures": 0,
    }


def test_ls_shows_long_names_whole(byov_cache, features_dir):
    name = "a-dataset-with-a-rather-long-name-" * 3 + "end"
    (features_dir / "demo").rename(features_dir / name)
    lines = byov_cache("ls", "--features-dir", features_dir, COLUMNS="60").stdout.splitlines()
    assert "".join(line.split(" ")[0] for line in lines).endswith(name)
    assert len(lines) > 3  # it had to be folded


def test_ls_takes_names_as_they_are_and_not_as_markup(byov_cache, features_dir, encoder_folder, write_features):
    write_features(encoder_folder / "ego" / "004.h5", 70, encoder="a [bold]b[/bold] :smile: [/x]")
    done = byov_cache("ls", "--features-dir", features_dir, COLUMNS="150")
    assert "a [bold]b[/bold] :smile: [/x]" in done.stdout


def test_an_empty_cache_is_no_error(byov_cache, tmp_path):
    folder = tmp_path / "empty [/x] [bold]"
    folder.mkdir(parents=True)
    done = byov_cache("ls", "--features-dir", folder)
    assert (done.stdout, done.stderr, done.returncode) == (f"No features in {folder}.\n", "", 0)
    done = byov_cache("verify", "--features-dir", folder)
    assert (done.stdout, done.stderr, done.returncode) == ("0 files checked, 0 bad\n", "", 0)


@pytest.mark.parametrize("command", [["ls", "--json"], ["verify", "demo"]])
def test_no_cache_is_one_line_of_advice(byov_cache, command):
    done = byov_cache(*command)
    expected = "error: features: no feature cache here; make one with byov-extract --dataset demo\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", expected, 2)


def test_an_unknown_dataset_lists_those_that_are_there(byov_cache, features_dir):
    done = byov_cache("verify", "pour_milk", "--features-dir", features_dir)
    expected = f"error: {features_dir} holds no dataset 'pour_milk'; it holds demo\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", expected, 2)


def test_a_damaged_manifest_is_one_line(byov_cache, features_dir):
    (features_dir / "demo" / "manifest.json").write_text("{")
    done = byov_cache("ls", "--features-dir", features_dir)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(r"error: .*manifest\.json: not a readable manifest .*\n", done.stderr)


def test_show_prints_arrays_and_origin(byov_cache, encoder_folder):
    done = byov_cache("show", encoder_folder / "ego" / "004.h5")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["merged/0.3", "70x16", "float16"]
    facts = dict(line.split(maxsplit=1) for line in lines[lines.index("") + 1 :])
    assert json.loads(facts["source_name"]) == "Küche 1.mp4"
    assert (facts["frames"], facts["fps"], facts["truncated"]) == ("70", "30.0", "false")
    assert facts["encoder"] == '"openai/clip-vit-base-patch16"'


def test_show_json_is_for_machines(byov_cache, encoder_folder, make_provenance):
    shown = json.loads(byov_cache("show", "--json", encoder_folder / "ego" / "004.h5").stdout)
    assert shown["columns"]["order"] == [[70, 9], "uint16"]
    assert shown["frames"] == 70
    assert shown["encoder_sha256"] == make_provenance().encoder_sha256


def test_show_of_what_is_no_cache_file_is_one_line(byov_cache, tmp_path):
    (tmp_path / "a.h5").write_text("text")
    for name, reason in (("a.h5", "not a readable cache file"), ("none.h5", "no such file")):
        done = byov_cache("show", tmp_path / name)
        assert (done.stdout, done.returncode) == ("", 2)
        assert done.stderr.startswith(f"error: {tmp_path / name}: {reason}")
        assert done.stderr.count("\n") == 1


def test_verify_of_a_sound_cache(byov_cache, features_dir):
    done = byov_cache("verify", "demo", "--features-dir", features_dir)
    assert (done.stdout, done.stderr, done.returncode) == ("4 files checked, 0 bad\n", "", 0)
    done = byov_cache("verify", "--json", "--features-dir", features_dir)
    assert (json.loads(done.stdout), done.returncode) == (
        {"checked": 4, "bad": {}, "remedies": {}, "without_digest": []},
        0,
    )


TRAINING = {
    **{"dataset": "demo", "encoder": "random/tiny", "encoder_folder": "random--tiny", "column": "merged/0.3"},
    **{"recipe": "paper", "seed": 0, "untrained_sha256": "ab" * 32},
}


def test_verify_reports_files_without_a_digest(byov_cache, features_dir, tmp_path):
    (tmp_path / "runs" / "long").mkdir(parents=True)
    (tmp_path / "runs" / "long" / "config.json").write_bytes(seal_json({"training": TRAINING}))
    (tmp_path / "runs" / "long" / "metrics.jsonl").write_text('{"epoch": 0}\n')
    report = json.loads(byov_cache("verify", "--json", "--features-dir", features_dir).stdout)
    assert (report["checked"], report["bad"]) == (6, {})
    assert report["without_digest"] == ["runs/long/metrics.jsonl"]  # known when training ends


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
    bad = encoder_folder / "exo" / "004.h5"
    damage(bad, flip_data_byte, write_features)
    done = byov_cache("verify", "--features-dir", features_dir)
    line, summary = done.stdout.splitlines()
    assert line.startswith(f"{bad}: {reason}")
    assert (summary, done.stderr, done.returncode) == ("4 files checked, 1 bad", "", 1)


def test_verify_json_names_the_bad_file(byov_cache, features_dir, encoder_folder):
    bad = encoder_folder / "exo" / "004.h5"
    bad.write_text("damaged")
    done = byov_cache("verify", "--json", "--features-dir", features_dir)
    report = json.loads(done.stdout)
    assert (report["checked"], list(report["bad"]), done.returncode) == (4, [str(bad)], 1)


def test_verify_of_one_dataset_leaves_the_others_alone(byov_cache, features_dir, encoder_folder):
    shutil.copytree(features_dir / "demo", features_dir / "other")
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    done = byov_cache("verify", "other", "--features-dir", features_dir)
    assert (done.stdout, done.returncode) == ("4 files checked, 0 bad\n", 0)


def test_version_and_help(byov_cache):
    done = byov_cache("--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"byov {__version__}\n", "", 0)
    for arguments in (["--help"], ["verify", "--help"]):
        done = byov_cache(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nonsense"], "error: No such command 'nonsense'"), (["show"], "error: Missing argument 'file'"), ([], "Usage")],
)
def test_wrong_usage_is_exit_code_2_without_traceback(byov_cache, arguments, said):
    done = byov_cache(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said in done.stderr + done.stdout


def test_no_control_character_of_a_file_reaches_the_terminal(
    byov_cache, features_dir, encoder_folder, edit_h5, set_text
):
    hostile = b"evil\x1b]0;title\x07\x1b[2J\r\x9b\xff \xc2\x9b \xe2\x80\xae"
    for path in encoder_folder.rglob("*.h5"):
        with edit_h5(path) as file:
            for name in ("encoder", "source_name", "preprocessing"):
                set_text(file, name, hostile + path.parent.name.encode())
            column = file.create_dataset("\x1b[2Jcolumn", data=np.ones((len(file["cls"]), 2), "f2"), chunks=(1, 2))
            set_text(column, "sha256", b"wrong\x1b[2J")
    folder = features_dir / "demo" / "\x1b[2Jfolder"
    folder.mkdir()
    dataset = features_dir / "\x1b[2Jset"
    shutil.copytree(features_dir / "demo", dataset)
    path = encoder_folder / "ego" / "004.h5"
    for arguments in (
        ["ls", "--features-dir", features_dir],
        ["show", path],
        ["verify", "--features-dir", features_dir],
        ["verify", "none", "--features-dir", features_dir],
        ["show", dataset / "none.h5"],
    ):
        done = byov_cache(*arguments, COLUMNS="300")
        assert "Traceback" not in done.stderr
        assert "[2J" in done.stdout + done.stderr  # it is shown, spelt out
        assert not CONTROL.search(done.stdout + done.stderr), arguments


def test_names_of_another_alphabet_can_be_listed_on_a_terminal_without_it(byov_cache, features_dir, encoder_folder):
    (encoder_folder / "ego" / "Küche 1.h5").write_text("damaged")
    done = byov_cache("verify", "--features-dir", features_dir, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "K\\xfcche 1.h5: not a readable" in done.stdout
    assert done.stderr == ""


def test_output_into_a_closed_pipe_is_silent(byov_cache, features_dir, encoder_folder):
    for arguments in (["ls", "--features-dir", features_dir], ["show", encoder_folder / "ego" / "004.h5"]):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = byov_cache(*arguments, stdout=writing)
        finally:
            os.close(writing)
        assert (done.stderr, done.returncode) == ("", 1)


def test_more_output_than_head_takes_is_silent(write_features, encoder_folder):
    long = encoder_folder / "ego" / "004.h5"
    write_features(long, 70, source_name="x" * 60_000, decoder="y" * 60_000)
    byov = Path(sys.executable).with_name("byov-cache")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [byov, "show", long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline().split() == [b"cls", b"70x16", b"float16"]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_onto_a_full_disk_is_one_line(byov_cache, features_dir):
    with Path("/dev/full").open("wb") as full:
        done = byov_cache("ls", "--features-dir", features_dir, stdout=full.fileno())
    assert (done.stderr, done.returncode) == ("error: No space left on device\n", 1)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes_are_written_for_people(size, text):
    assert format_size(size) == text
