"""Tests of byov-extract with full disks, signals and changing files."""

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.factories import read_files
from tests.processes import signal_and_end

from byov.extract.extraction import extract_features
from byov.extract.preprocess import Preprocessing

COMMAND = str(Path(sys.executable).parent / "byov-extract")


def command(table: Path, features: Path, *options: str) -> list[str]:
    return [
        COMMAND,
        "--manifest",
        str(table),
        "--encoder",
        "random/tiny",
        "--features-dir",
        str(features),
        *options,
    ]


def start(
    table: Path, features: Path, *options: str, before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    words = [*before, *command(table, features, *options)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(table: Path, features: Path) -> int:
    process = start(table, features)
    process.communicate(timeout=300)
    return process.returncode


@pytest.mark.slow
def test_a_signal_stops_the_run_and_leaves_nothing_half_written(
    make_dataset, start_paused, tmp_path
):
    table = make_dataset([40, 40])
    process = start_paused(command(table, tmp_path / "features"), before=".h5")
    assert list((tmp_path / "features").rglob("*.h5.*.partial"))
    _, err = signal_and_end(process, signal.SIGTERM)
    assert process.returncode == 143
    assert "interrupted" in err
    assert "Traceback" not in err
    assert list((tmp_path / "features").rglob("*.partial")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [((), ()), (("--shard", "1/2"), ("--shard", "2/2"))], ids=["all", "shards"]
)
def test_two_processes_on_one_cache_do_no_harm(make_dataset, tmp_path, options):
    table = make_dataset([90, 130, 1, 64, 65, 2])
    assert run(table, tmp_path / "reference") == 0
    both = [start(table, tmp_path / "features", *each) for each in options]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert read_files(tmp_path / "features") == read_files(tmp_path / "reference")


@pytest.mark.slow
def test_full_disk_in_the_middle_of_a_video_loses_nothing(make_dataset, tmp_path):
    """A file size limit has the same effect as a full disk."""
    table = make_dataset([3, 2000])

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))

    words = command(table, tmp_path / "f", "--decoders", "1")
    ran = subprocess.run(
        words, preexec_fn=limit, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 1, ran
    assert "Traceback" not in ran.stderr
    assert ran.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "v1.h5: File too large" in ran.stderr
    names = sorted(path.name for path in (tmp_path / "f").rglob("*.*"))
    assert "v0.h5" in names
    assert [name for name in names if "v1" in name] == []
    assert run(table, tmp_path / "f") == 0


def test_folder_that_cannot_be_created_is_named(make_dataset, tmp_path):
    blocked = tmp_path / "mine" / "random--tiny" / "exo"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where a folder should be")
    with pytest.raises(OSError, match="random--tiny/exo"):
        extract_features(
            manifest=make_dataset([3, 4]), encoder="random/tiny", features_dir=tmp_path
        )


@pytest.mark.slow
def test_read_only_cache_is_named(make_dataset, tmp_path, without_rights):
    table = make_dataset([3, 4])
    (tmp_path / "features").mkdir(mode=0o555)
    process = start(table, tmp_path / "features", before=without_rights)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    reason = "not writable (Permission denied). Choose another output with --features-dir."
    expected = f"error: {tmp_path / 'features'}: {reason}"
    assert err.splitlines()[-1] == expected
    assert "Traceback" not in err


def append(path):
    """Append bytes to a file, like a recording in progress."""
    with path.open("ab") as file:
        file.write(b"\0\0\0\x08free")


def rewrite(path):
    """Change a byte in place."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def replace(path):
    """Replace a file with another one of the same size and modification time."""
    times = path.stat()
    rewritten = path.with_name("new.mp4")
    rewritten.write_bytes(path.read_bytes())
    os.utime(rewritten, ns=(times.st_atime_ns, times.st_mtime_ns))
    rewritten.replace(path)


@pytest.mark.parametrize("change", [append, rewrite, replace])
def test_source_that_changes_while_it_is_read_fails(make_dataset, tmp_path, monkeypatch, change):
    table = make_dataset([40, 2])
    resize = Preprocessing.on_host
    changed = threading.Event()

    def on_host(self, frames, device):
        if not changed.is_set():
            changed.set()
            change(table.parent / "v0.mp4")
        return resize(self, frames, device)

    monkeypatch.setattr(Preprocessing, "on_host", on_host)
    extracted = extract_features(
        manifest=table,
        encoder="random/tiny",
        features_dir=tmp_path / "f",
        decoders=1,
        ratios=(0.3,),
    )
    assert list(extracted.failures) == ["v0"]
    assert "changed while it was read" in extracted.failures["v0"]
    assert extracted.videos == 1
