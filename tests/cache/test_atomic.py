import errno
import os
from pathlib import Path

import pytest

from byov.cache.atomic import (
    PartialFile,
    discard_own,
    exclusive,
    is_locked,
    remove_abandoned,
    replacing,
    write_text,
)
from byov.errors import CacheError

HOLD_A_PARTIAL = """
import sys
from pathlib import Path
from byov.cache.atomic import PartialFile
partial = PartialFile(Path(sys.argv[1]))
partial.path.write_bytes(b"half of")
print("written", flush=True)
sys.stdin.readline()
partial.path.write_bytes(b"the whole")
partial.commit()
print("committed", flush=True)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_appears_when_its_block_ends(tmp_path):
    final = tmp_path / "a" / "b.txt"
    with replacing(final) as partial:
        partial.write_bytes(b"content")
        assert not final.exists()
        assert partial.parent == final.parent
    assert final.read_bytes() == b"content"
    assert names(final.parent) == ["b.txt"]
    (tmp_path / "plain").touch()
    assert final.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    final = tmp_path / "a.txt"
    final.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(final) as partial:
        partial.write_text("new" * 100_000 + "\ud800", encoding="utf-8")
    assert final.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_next_process_removes_what_a_killed_writer_left(tmp_path, start_python):
    folder = tmp_path / "view"
    writer = start_python(HOLD_A_PARTIAL, folder / "a.h5")
    assert writer.stdout.readline() == "written\n"
    writer.kill()
    writer.wait()
    assert "a.h5" not in names(folder)
    assert all(name.startswith(".a.h5.") for name in names(folder))
    remove_abandoned(tmp_path)
    assert names(folder) == []


def test_partial_of_a_live_process_is_kept(tmp_path, start_python):
    writer = start_python(HOLD_A_PARTIAL, tmp_path / "a.h5")
    assert writer.stdout.readline() == "written\n"
    with replacing(tmp_path / "b.h5") as ours:
        remove_abandoned(tmp_path)
        assert ours.exists()
    out, err = writer.communicate("go on\n")
    assert (out, err, writer.returncode) == ("committed\n", "", 0)
    assert names(tmp_path) == ["a.h5", "b.h5"]
    assert (tmp_path / "a.h5").read_bytes() == b"the whole"


@pytest.mark.parametrize("old", ["Küche\n".encode(), b"other", b"", b"K\xfcche\n"])
def test_text_is_replaced_only_if_it_differs(tmp_path, old):
    path = tmp_path / "a.json"
    path.write_bytes(old)
    before = path.stat()
    write_text(path, "Küche\n")
    assert path.read_bytes() == "Küche\n".encode()
    assert (path.stat().st_ino == before.st_ino) == (old == path.read_bytes())


def test_errors_name_the_final_path(tmp_path):
    path = tmp_path / f"{'x' * 250}.json"  # too long with the temporary suffix
    with pytest.raises(OSError, match="too long") as error:
        write_text(path, "x")
    assert error.value.filename == str(path)


def test_discard_own_removes_the_partial_files_of_this_process_only(tmp_path, start_python):
    other = start_python(HOLD_A_PARTIAL, tmp_path / "other.h5")
    assert other.stdout.readline() == "written\n"
    with replacing(tmp_path / "done.h5"):
        pass
    partials = [PartialFile(tmp_path / "a.h5"), PartialFile(tmp_path / "b.h5")]
    discard_own()
    for partial in partials:
        partial.discard()
    assert [name.split(".")[1] for name in names(tmp_path)] == ["other", "other", "h5"]


def test_many_processes_replacing_one_file_never_leave_a_mixture(tmp_path, start_python):
    script = """
import sys
from pathlib import Path
from byov.cache.atomic import remove_abandoned, write_text
print("ready", flush=True)
sys.stdin.readline()
for _ in range(30):
    write_text(Path(sys.argv[1]), sys.argv[2] * 50_000)
    remove_abandoned(Path(sys.argv[1]).parent)
"""
    writers = [start_python(script, tmp_path / "a.txt", letter) for letter in "xyz"]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        if (tmp_path / "a.txt").exists():
            assert (tmp_path / "a.txt").read_text() in {letter * 50_000 for letter in "xyz"}
    assert [(writer.returncode, writer.stderr.read()) for writer in writers] == [(0, "")] * 3
    assert names(tmp_path) == ["a.txt"]


def test_exclusive_admits_one_process_at_a_time(tmp_path, start_python):
    counter = tmp_path / "counter"
    counter.write_text("0")
    script = """
import sys
from pathlib import Path
from byov.cache.atomic import exclusive
counter = Path(sys.argv[2])
for _ in range(200):
    with exclusive(Path(sys.argv[1])):
        counter.write_text(str(int(counter.read_text()) + 1))
"""
    processes = [start_python(script, tmp_path / "new" / ".lock", counter) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [
        ("", 0)
    ] * 2
    assert counter.read_text() == "400"


def test_lock_of_another_process_blocks_until_it_dies(tmp_path, start_python):
    lock = tmp_path / "new" / ".lock"
    script = """
import sys
from pathlib import Path
from byov.cache.atomic import exclusive
with exclusive(Path(sys.argv[1])):
    print("inside", flush=True)
    sys.stdin.readline()
"""
    holder = start_python(script, lock)
    assert holder.stdout.readline() == "inside\n"
    assert is_locked(lock)
    with pytest.raises(CacheError, match="taken"), exclusive(lock, busy=CacheError("taken")):
        pytest.fail("two inside")
    holder.kill()
    holder.wait()
    assert not is_locked(lock)
    with exclusive(lock, busy=CacheError("taken")):
        pass


def test_new_folders_and_content_are_synced_before_the_rename_and_the_folder_after_it(
    tmp_path, monkeypatch
):
    happened = []
    sync = os.fsync
    replace = Path.replace

    def note_sync(descriptor):
        happened.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.split(".")[-1])
        sync(descriptor)

    def note_replace(path, target):
        happened.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_text(tmp_path / "a" / "b" / "c.txt", "text")
    assert happened == ["a", tmp_path.name, "partial", "rename", "b"]


def test_file_system_without_locks_is_reported_once(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    for _ in range(2):
        with exclusive(tmp_path / ".lock"):
            pass
    (message,) = caplog.messages
    assert str(tmp_path) in message
    assert "does not support locks" in message
