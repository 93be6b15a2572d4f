"""Test that `byov-extract --cluster` writes the same files as a single process, even if workers or
machines die.
"""

import json
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.factories import write_noise_videos
from tests.ray_processes import all_processes, can_hide_folders, descendants, open_files
from tests.sweeps.tiny_sweeps import contents

from byov.cache.verify import verify_folder
from byov.cli.extract import main
from byov.data.dataset import Video
from byov.extract.extraction import MAX_VIDEOS, split_jobs
from byov.extract.plan import Job
from byov.workers import MAX_LOSSES

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
LONG = 600  # in frames; long enough that a process can be killed during extraction
FEATURES = Path("mine/random--tiny")
# Run by Python at startup (sitecustomize.py): a Ray worker that opens v6.mp4 kills itself.
POISON = """
import os, signal, sys

def look(event, arguments):
    is_worker = "default_worker.py" in " ".join(sys.orig_argv)
    if is_worker and event == "open" and str(arguments[0]).endswith("/v6.mp4"):
        descriptor = os.open(os.environ["DEATHS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"x")
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
"""


@pytest.fixture(scope="module")
def make_videos(tmp_path_factory):
    """Return a function that writes videos with `write_noise_videos` to a temporary folder."""
    return lambda counts: write_noise_videos(tmp_path_factory.mktemp("videos"), counts)


@pytest.fixture
def start(ray):
    """Return a function that starts byov-extract."""

    def start(table, features, *options):
        words = (
            "--manifest",
            table,
            "--encoder",
            "random/tiny",
            "--features-dir",
            features,
            *options,
        )
        return ray.start("byov-extract", *words, cwd=table.parent)

    return start


def finish(process):
    """Wait for a process; return its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def busy_worker(process, features):
    """Wait until a worker writes a file, and return its process id."""
    while process.poll() is None:
        for partial in features.rglob(".*.h5.*.partial"):
            for pid in all_processes():
                if str(partial) in open_files(pid):
                    return pid
        time.sleep(0.01)
    raise AssertionError(f"ended early: {process.communicate()}")


@needs_ray
@pytest.mark.slow
def test_a_broken_video_and_one_that_kills_its_worker_fail_alone(ray, start, make_videos, tmp_path):
    table = make_videos([90, 130, 1, 64, 65, 70, 400])
    features = tmp_path / "features"
    deaths = tmp_path / "deaths"
    (table.parent / "v3.mp4").write_bytes(b"not a video at all")
    assert finish(start(table, tmp_path / "reference"))[0] == 1
    (tmp_path / "sitecustomize.py").write_text(POISON)
    ray.environment |= {"PYTHONPATH": str(tmp_path), "DEATHS": str(deaths)}
    code, out, err = finish(start(table, features, "--cluster", "local", "--workers", 2, "--json"))
    del ray.environment["PYTHONPATH"]
    assert (code, "Traceback" in err) == (1, False)
    assert ray.all_ended()
    assert len(deaths.read_bytes()) == MAX_LOSSES  # the largest video has a chunk of its own

    failures, reference_failures = (
        json.loads((folder / FEATURES / "failures.json").read_text())
        for folder in (features, tmp_path / "reference")
    )
    assert sorted(failures) == ["v3", "v6"]
    assert failures["v3"] == reference_failures["v3"]
    assert "its worker died three times" in failures["v6"]
    summary = json.loads(out)
    assert (summary["extracted_videos"], sorted(summary["failures"])) == (5, ["v3", "v6"])

    written = contents(features)
    reference = contents(tmp_path / "reference")
    good = {name for name in reference if name.endswith(".h5")} - {str(FEATURES / "ego/v6.h5")}
    assert len(good) == 5
    assert {name: written[name] for name in good} == {name: reference[name] for name in good}
    assert {name for name in written if name.endswith((".h5", ".partial"))} == good

    # A single process completes the extraction.
    _, out, _ = finish(start(table, features, "--json"))
    assert json.loads(out)["extracted_videos"] == 1
    assert contents(features / "mine") == contents(tmp_path / "reference/mine")
    assert [file for file in verify_folder(features / FEATURES) if file.problem] == []


@pytest.fixture(scope="module")
def table(make_videos):
    return make_videos([LONG, LONG, 5, 70, 40])


@pytest.fixture
def check_complete(start, table, tmp_path):
    """Return a function that checks that an extraction to tmp_path/f wrote the same files as a
    single process.
    """

    def check(code, out, err):
        assert code == 0, err
        assert json.loads(out)["failures"] == {}
        assert finish(start(table, tmp_path / "reference"))[0] == 0
        assert contents(tmp_path / "f") == contents(tmp_path / "reference")

    return check


@needs_ray
@pytest.mark.long
def test_work_of_a_lost_machine_is_redone(start, machines, table, check_complete, tmp_path):
    machines.restore()
    process = start(table, tmp_path / "f", "--cluster", machines.address, "--json")
    raylet = machines.raylet()
    # Until a worker on the second machine is busy.
    while busy_worker(process, tmp_path / "f") not in descendants(raylet):
        pass
    machines.kill_machine()
    code, out, err = finish(process)
    assert "lost its worker" in err
    check_complete(code, out, err)


@needs_ray
@pytest.mark.long
@pytest.mark.skipif(not can_hide_folders(), reason="only root can hide folders")
def test_a_machine_without_the_videos_is_refused(start, machines, table, tmp_path):
    machines.restore(hidden=table.parent)
    code, _, err = finish(start(table, tmp_path / "f", "--cluster", machines.address))
    machines.kill_machine()
    assert code == 2
    (line,) = err.splitlines()
    assert re.search(r"cannot access .*/v\d\.mp4", line)
    assert not (tmp_path / "f").exists()


@needs_ray
@pytest.mark.slow
def test_workers_that_do_not_fit_are_refused(start, table, tmp_path):
    code, _, err = finish(
        start(table, tmp_path / "f", "--cluster", "local", "--cpus-per-worker", 999)
    )
    assert code == 2
    (line,) = err.splitlines()
    assert "free for a worker" in line
    assert not any((tmp_path / "f").rglob("*.h5"))


@needs_ray
@pytest.mark.long
def test_a_killed_extraction_resumes(start, machines, table, check_complete, tmp_path):
    machines.restore()
    process = start(table, tmp_path / "f", "--cluster", machines.address)
    worker = busy_worker(process, tmp_path / "f")
    process.kill()
    process.communicate()
    assert len(list((tmp_path / "f").rglob("[!.]*.h5"))) < 5, "too late"
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the worker outlived its driver"
        time.sleep(0.05)
    machines.restore()
    check_complete(*finish(start(table, tmp_path / "f", "--cluster", machines.address, "--json")))


@needs_ray
@pytest.mark.parametrize(
    "options",
    [("--shard", "1/2"), ("--device", "cuda"), ("--cluster", "ray://10.0.0.1:10001")],
    ids=lambda pair: pair[0],
)
def test_options_that_do_not_go_together(call, tmp_path, options):
    ran = call(
        main, "byov-extract", "--manifest", tmp_path / "none.csv", "--cluster", "local", *options
    )
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_without_ray_the_error_names_the_extra(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = call(main, "byov-extract", "--manifest", tmp_path / "none.csv", "--cluster", "local")
    assert ran.code == 2
    assert "byov-egoexo[cluster]" in ran.err


def test_chunks_hold_every_video_once(tmp_path):
    jobs = []
    for size in range(300):
        path = tmp_path / f"v{size}.mp4"
        path.write_bytes(b"x" * size)
        jobs.append(Job(Video(path.stem, "ego", "train", path), path, "missing", "", None, (0.3,)))
    for count, workers, chunks in ((300, 1, 19), (300, 4, 32), (5, 4, 5)):
        split = split_jobs(jobs[:count], workers)
        assert len(split) == chunks
        assert max(map(len, split)) <= MAX_VIDEOS
        assert sorted(job.video.id for chunk in split for job in chunk) == sorted(
            job.video.id for job in jobs[:count]
        )
        assert split[0][0] is jobs[count - 1]  # the largest video
