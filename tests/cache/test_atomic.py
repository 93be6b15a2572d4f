import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from byov.cache.atomic import PartialFile, discard_own, exclusive, remove_abandoned, replacing, write_text
from byov.cache.runs import LOCK_NAME, at_work

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


def test_a_file_appears_only_when_its_block_ends(tmp_path):
    final = tmp_path / "a" / "b.txt"
    with replacing(final) as partial:
        partial.write_bytes(b"content")
        assert not final.exists()
        assert partial.parent == final.parent
    assert final.read_bytes() == b"content"
    assert names(final.parent) == ["b.txt"]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    final = tmp_path / "a.txt"
    final.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(final) as partial:
        partial.write_text("new" * 100_000 + "\ud800", encoding="utf-8")
    assert final.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_rename_that_fails_leaves_no_partial(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"), replacing(tmp_path / "taken") as partial:
        partial.write_text("x")
    assert names(tmp_path) == ["taken"]


def test_a_partial_that_vanished_is_an_error_and_no_file(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt") as partial:
        partial.unlink()
    assert names(tmp_path) == []


def test_a_finished_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").touch()
    write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_killed_writer_leaves_only_a_partial_that_the_next_process_removes(tmp_path, start_python):
    folder = tmp_path / "view"
    writer = start_python(HOLD_A_PARTIAL, folder / "a.h5")
    assert writer.stdout.readline() == "written\n"
    writer.kill()
    writer.wait()
    (left,) = folder.iterdir()
    assert left.name.startswith(".a.h5.")
    assert left.name.endswith(".partial")
    assert left.read_bytes() == b"half of"
    remove_abandoned(tmp_path)
    assert names(folder) == []


def test_the_partial_of_another_live_process_is_left_alone(tmp_path, start_python):
    writer = start_python(HOLD_A_PARTIAL, tmp_path / "a.h5")
    assert writer.stdout.readline() == "written\n"
    remove_abandoned(tmp_path)
    assert len(names(tmp_path)) == 1
    out, err = writer.communicate("go on\n")
    assert (out, err, writer.returncode) == ("committed\n", "", 0)
    assert names(tmp_path) == ["a.h5"]
    assert (tmp_path / "a.h5").read_bytes() == b"the whole"


def test_a_live_partial_of_this_process_is_left_alone(tmp_path):
    with replacing(tmp_path / "a.h5") as partial:
        partial.write_text("x")
        remove_abandoned(tmp_path)
        assert partial.exists()
    assert names(tmp_path) == ["a.h5"]


def test_only_partials_are_removed(tmp_path):
    kept = ["a.h5", "a.partial", ".hidden", "partial"]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / ".folder.partial").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".b.h5.0123abcd.partial").touch()
    remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted([*kept, ".folder.partial", "sub"])
    assert names(tmp_path / "sub") == []


def test_removing_a_partial_that_is_a_link_leaves_its_target(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / ".a.partial").symlink_to("precious")
    remove_abandoned(tmp_path)
    assert names(tmp_path) == ["precious"]


def test_nothing_to_remove_in_a_folder_that_is_not_there(tmp_path):
    remove_abandoned(tmp_path / "nowhere")
    assert names(tmp_path) == []


def test_an_identical_text_is_not_written_again(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "Küche\n")
    before = path.stat()
    write_text(path, "Küche\n")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("old", [b"other", b"", b"a\r\nb\n", b"a\rb\n", b"\xff\xfe not UTF-8"])
def test_a_different_text_is_replaced_whatever_it_was(tmp_path, old):
    path = tmp_path / "a.json"
    path.write_bytes(old)
    write_text(path, "a\nb\n")
    assert path.read_bytes() == b"a\nb\n"


def test_two_writers_of_one_name_do_not_disturb_each_other_and_the_last_wins(tmp_path):
    final = tmp_path / "a.h5"
    first, second = PartialFile(final), PartialFile(final)
    assert first.path != second.path
    first.path.write_text("first")
    second.path.write_text("second")
    second.commit()
    assert final.read_text() == "second"
    first.commit()
    assert final.read_text() == "first"
    assert names(tmp_path) == ["a.h5"]


def test_discarding_twice_or_after_a_commit_does_no_harm(tmp_path):
    partial = PartialFile(tmp_path / "a.h5")
    partial.commit()
    partial.discard()
    partial.discard()
    assert names(tmp_path) == ["a.h5"]


def test_what_cannot_be_written_is_named_by_its_final_name(tmp_path):
    path = tmp_path / f"{'x' * 250}.json"  # together with the temporary ending too long for a file system
    with pytest.raises(OSError, match="too long") as error:
        write_text(path, "x")
    assert error.value.filename == str(path)


WRITE = """
import sys
from pathlib import Path
from byov.cache.atomic import exclusive, write_text
with exclusive(Path(sys.argv[1]) / ".lock"):
    print("inside", flush=True)
    write_text(Path(sys.argv[1]) / "a.json", "x")
"""


def test_a_folder_that_one_may_not_write_to_is_named_and_needs_no_lock(tmp_path, without_rights, clean_environment):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    ran = subprocess.run(
        [*without_rights, sys.executable, "-c", WRITE, str(folder)],
        capture_output=True,
        text=True,
        env=clean_environment,
        check=False,
    )
    assert ran.stdout == "inside\n"
    assert ran.stderr.endswith(f"PermissionError: [Errno 13] Permission denied: '{folder / 'a.json'}'\n")
    assert names(folder) == []


def test_discard_own_removes_what_this_process_writes_and_nothing_else(tmp_path, start_python):
    other = start_python(HOLD_A_PARTIAL, tmp_path / "other.h5")
    assert other.stdout.readline() == "written\n"
    with replacing(tmp_path / "done.h5"):
        pass
    open_partials = [PartialFile(tmp_path / "a.h5"), PartialFile(tmp_path / "b.h5")]
    discard_own()
    left = names(tmp_path)
    for partial in open_partials:
        partial.discard()
    assert len(left) == 2
    assert left[0].startswith(".other.h5.")
    assert left[1] == "done.h5"


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
            text = (tmp_path / "a.txt").read_text()
            assert text in {letter * 50_000 for letter in "xyz"}
    assert [(writer.returncode, writer.stderr.read()) for writer in writers] == [(0, "")] * 3
    assert names(tmp_path) == ["a.txt"]


TAKE_THE_LOCK = """
import sys
from pathlib import Path
from byov.cache.atomic import exclusive
with exclusive(Path(sys.argv[1])):
    print("inside", flush=True)
    sys.stdin.readline()
"""


def test_exclusive_lets_one_process_at_a_time_through(tmp_path, start_python):
    lock = tmp_path / "new" / ".lock"
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
    processes = [start_python(script, lock, counter) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 2
    assert counter.read_text() == "400"


def test_the_lock_of_a_killed_process_is_free(tmp_path, start_python):
    holder = start_python(TAKE_THE_LOCK, tmp_path / ".lock")
    assert holder.stdout.readline() == "inside\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with exclusive(tmp_path / ".lock"):
        pass
    next_one = start_python(TAKE_THE_LOCK, tmp_path / ".lock")
    assert next_one.stdout.readline() == "inside\n"


def test_exclusive_without_waiting_gives_up_while_another_process_is_inside(tmp_path, start_python):
    lock = tmp_path / "new" / ".lock"
    with exclusive(lock, wait=False):
        pass
    holder = start_python(TAKE_THE_LOCK, lock)
    assert holder.stdout.readline() == "inside\n"
    with pytest.raises(BlockingIOError), exclusive(lock, wait=False):
        pytest.fail("two inside")
    out, err = holder.communicate("go on\n")
    assert (out, err, holder.returncode) == ("", "", 0)
    with exclusive(lock, wait=False), pytest.raises(BlockingIOError), exclusive(lock, wait=False):
        pytest.fail("two inside")


def test_who_only_looks_whether_a_run_is_in_training_does_not_keep_it_from_being_trained(tmp_path):
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            at_work(tmp_path)

    onlooker = threading.Thread(target=look)
    onlooker.start()
    try:
        for _ in range(300):
            with exclusive(tmp_path / LOCK_NAME, wait=False):
                pass
    finally:
        ended.set()
        onlooker.join()


def test_the_content_is_on_disk_before_the_name_and_the_name_before_it_is_said_to_be_done(tmp_path, monkeypatch):
    """Else a power cut could leave an empty file under the final name."""
    happened, sync, replace = [], os.fsync, Path.replace

    def noted_sync(descriptor):
        happened.append(("sync", "folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file"))
        sync(descriptor)

    def noted_replace(path, target):
        happened.append(("rename", Path(target).name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_text(tmp_path / "a.json", "{}")
    assert happened == [("sync", "file"), ("rename", "a.json"), ("sync", "folder")]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no file system at hand where nobody may write")
def test_where_nothing_can_be_written_there_is_nothing_to_lock():
    with exclusive(Path("/sys/kernel/.lock")):
        pass
    with pytest.raises(OSError, match="sys/kernel"), exclusive(Path("/sys/kernel/.lock")):
        write_text(Path("/sys/kernel/manifest.json"), "{}")


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    for _ in range(2):
        with exclusive(tmp_path / ".lock"):
            pass
    (said,) = caplog.messages
    assert str(tmp_path) in said
    assert "has no locks" in said


def test_new_folders_are_synced_with_those_that_hold_them(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync

    def noting(descriptor):
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_text(tmp_path / "a" / "b" / "c.txt", "text")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= synced
