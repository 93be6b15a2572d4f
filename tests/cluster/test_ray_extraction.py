"""byov-extract --cluster: files as of one process, whatever dies on the way."""

import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import write_video
from tests.ray_processes import all_processes, can_hide_folders, descendants, open_files

from byov.cache.verify import verify_folder
from byov.cli.extract import main
from byov.cluster.extraction import MAX_VIDEOS, split_jobs
from byov.cluster.ray_pool import ClusterOptions, ray_session
from byov.cluster.worker_pool import MAX_LOSSES
from byov.data.dataset import Video
from byov.errors import ClusterError
from byov.extract.plan import Job

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
LONG = 600  # frames, to have time to kill something
FEATURES = Path("mine/random--tiny")
# Python runs this when it starts: a Ray worker that opens v6.mp4 kills itself.
POISON = """
import os, signal, sys

def look(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/v6.mp4") and "default_worker.py" in " ".join(sys.orig_argv):
        descriptor = os.open(os.environ["DEATHS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"x")
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
"""


@pytest.fixture(scope="module")
def make_videos(tmp_path_factory):
    """make_videos(frame counts): the path of a CSV of videos v0, v1, ..., ego and exo in turn."""

    def make(counts):
        folder = tmp_path_factory.mktemp("videos")
        lines = ["path,view,split"]
        for index, count in enumerate(counts):
            random = np.random.default_rng(index)
            image, images = random.integers(0, 256, (32, 48, 3)), []
            for _ in range(count):
                image = np.clip(image + random.integers(-40, 41, image.shape), 0, 255)
                images.append(image.astype(np.uint8))
            write_video(folder / f"v{index}.mp4", images, fps=15)
            lines.append(f"v{index}.mp4,{('ego', 'exo')[index % 2]},train")
        (folder / "mine.csv").write_text("\n".join(lines) + "\n")
        return folder / "mine.csv"

    return make


def arguments(table, features, *options):
    return ("byov-extract", "--manifest", table, "--encoder", "random/tiny", "--features-dir", features, *options)


def extract(ray, table, features, *options):
    return ray.run(*arguments(table, features, *options), cwd=table.parent)


def start(ray, table, features, *options):
    return ray.start(*arguments(table, features, *options), cwd=table.parent)


def busy_worker(process, features):
    """Wait until a worker writes a file; its process ID."""
    while process.poll() is None:
        for partial in features.rglob(".*.h5.*.partial"):
            for pid in all_processes():
                if str(partial) in open_files(pid):
                    return pid
        time.sleep(0.01)
    raise AssertionError(f"ended early: {process.communicate()}")


def unfinished(features):
    return len(list(features.rglob("[!.]*.h5"))) < 5


@dataclass(frozen=True)
class Poisoned:
    """A finished extraction with a broken video and one that kills its worker."""

    ran: Any
    table: Path
    reference: Path  # features extracted by one process
    features: Path
    deaths: int
    all_ended: bool


@pytest.fixture(scope="module")
def poisoned(ray, make_videos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("poisoned")
    table = make_videos([90, 130, 1, 64, 65, 70, 400])
    (table.parent / "v3.mp4").write_bytes(b"not a video at all")
    assert extract(ray, table, folder / "reference").returncode == 1
    (folder / "sitecustomize.py").write_text(POISON)
    ray.environment |= {"PYTHONPATH": str(folder), "DEATHS": str(folder / "deaths")}
    ran = extract(ray, table, folder / "features", "--cluster", "local", "--workers", 2, "--json")
    all_ended = ray.all_ended()
    del ray.environment["PYTHONPATH"]
    deaths = len((folder / "deaths").read_bytes())
    yield Poisoned(ran, table, folder / "reference", folder / "features", deaths, all_ended)
    shutil.rmtree(folder)


@needs_ray
def test_all_good_videos_are_identical_to_one_process(poisoned, contents):
    features, reference = contents(poisoned.features), contents(poisoned.reference)
    good = {name for name in reference if name.endswith(".h5")} - {str(FEATURES / "ego/v6.h5")}
    assert len(good) == 5
    assert {name: features[name] for name in good} == {name: reference[name] for name in good}
    assert {name for name in features if name.endswith((".h5", ".partial"))} == good


@needs_ray
def test_bad_videos_end_in_failures_json(poisoned):
    failures, reference = (
        json.loads((folder / FEATURES / "failures.json").read_text())
        for folder in (poisoned.features, poisoned.reference)
    )
    assert sorted(failures) == ["v3", "v6"]
    assert failures["v3"] == reference["v3"]
    assert "its worker died three times" in failures["v6"]
    assert poisoned.deaths == MAX_LOSSES  # as the largest video it was alone in its chunk
    assert poisoned.ran.returncode == 1
    summary = json.loads(poisoned.ran.stdout)
    assert (summary["extracted_videos"], sorted(summary["failures"])) == (5, ["v3", "v6"])
    assert "Traceback" not in poisoned.ran.stderr
    assert poisoned.all_ended


@needs_ray
def test_one_process_completes_what_a_cluster_started(poisoned, ray, contents, tmp_path):
    features = tmp_path / "features"
    shutil.copytree(poisoned.features, features)
    ran = extract(ray, poisoned.table, features, "--json")
    assert json.loads(ran.stdout)["extracted_videos"] == 1
    assert contents(features / "mine") == contents(poisoned.reference / "mine")
    assert [file for file in verify_folder(features / FEATURES) if file.problem] == []


@pytest.fixture(scope="module")
def table(make_videos):
    return make_videos([LONG, LONG, 5, 70, 40])


@pytest.fixture(scope="module")
def reference(ray, table, contents, tmp_path_factory):
    features = tmp_path_factory.mktemp("reference") / "features"
    assert extract(ray, table, features).returncode == 0
    return contents(features)


@needs_ray
@pytest.mark.long
def test_ctrl_c_leaves_no_processes(ray, table, tmp_path):
    process = start(ray, table, tmp_path / "f", "--cluster", "local", "--workers", 2)
    busy_worker(process, tmp_path / "f")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert unfinished(tmp_path / "f"), "too late"
    assert ray.all_ended()
    assert "run the same command to resume" in err


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("lost", ["worker", "machine"])
def test_lost_work_is_redone(ray, machines, table, reference, contents, tmp_path, lost):
    machines.restore()
    process = start(ray, table, tmp_path / "f", "--cluster", machines.address, "--json")
    raylet, worker = machines.raylet(), 0
    while worker not in descendants(raylet):  # on the machine to be lost
        worker = busy_worker(process, tmp_path / "f")
    if lost == "machine":
        machines.kill_machine()
    else:
        os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert "lost its worker" in err
    summary = json.loads(out)
    assert (summary["extracted_videos"], summary["failures"]) == (5, {})
    assert contents(tmp_path / "f") == reference


@needs_ray
@pytest.mark.long
@pytest.mark.skipif(not can_hide_folders(), reason="only root can hide folders")
def test_a_machine_without_the_videos_is_refused(ray, machines, table, tmp_path):
    machines.restore(hidden=table.parent)
    ran = extract(ray, table, tmp_path / "f", "--cluster", machines.address)
    machines.kill_machine()
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert re.search(r"does not see .*/v\d\.mp4", line)
    assert not (tmp_path / "f").exists()


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("options", [("--cpus-per-worker", 9), ("--gpus-per-worker", 1)])
def test_workers_that_do_not_fit_are_refused(ray, machines, table, tmp_path, options):
    machines.restore()
    ran = extract(ray, table, tmp_path / "f", "--cluster", machines.address, *options)
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert "free for a worker" in line
    assert not (tmp_path / "f").exists()


@needs_ray
@pytest.mark.long
def test_a_killed_extraction_resumes(ray, machines, table, reference, contents, tmp_path):
    machines.restore()
    process = start(ray, table, tmp_path / "f", "--cluster", machines.address)
    worker = busy_worker(process, tmp_path / "f")
    process.kill()
    process.communicate()
    assert unfinished(tmp_path / "f"), "too late"
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the worker outlived its driver"
        time.sleep(0.05)
    machines.restore()
    ran = extract(ray, table, tmp_path / "f", "--cluster", machines.address, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["failures"] == {}
    assert contents(tmp_path / "f") == reference


@needs_ray
@pytest.mark.parametrize(
    "options",
    [("--shard", "1/2"), ("--device", "cuda"), ("--cluster", "ray://10.0.0.1:10001")],
    ids=lambda pair: pair[0],
)
def test_options_that_do_not_go_together(call, tmp_path, options):
    ran = call(main, "byov-extract", "--manifest", tmp_path / "none.csv", "--cluster", "local", *options)
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_without_ray_the_error_names_the_extra(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = call(main, "byov-extract", "--manifest", tmp_path / "none.csv", "--cluster", "local")
    assert ran.code == 2
    assert "byov-egoexo[cluster]" in ran.err


@needs_ray
def test_an_address_without_a_cluster_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        pytest.raises(ClusterError, match=f"127.0.0.1:{port}: cannot connect .*ray start"),
        ray_session(ClusterOptions(f"127.0.0.1:{port}")),
    ):
        pass


def jobs_of(folder, sizes):
    jobs = []
    for index, size in enumerate(sizes):
        path = folder / f"v{index}.mp4"
        path.write_bytes(b"x" * size)
        jobs.append(Job(Video(path.stem, "ego", "train", path), path, "missing", "", None, (0.3,)))
    return jobs


def test_chunks_hold_the_largest_videos_first(tmp_path):
    chunks = split_jobs(jobs_of(tmp_path, [5, 90, 1, 40, 40, 3, 77, 2]), workers=1)
    assert [[job.video.id for job in chunk] for chunk in chunks] == [
        ["v1"],
        ["v6"],
        ["v3"],
        ["v4"],
        ["v0", "v5", "v7", "v2"],
    ]


def test_chunks_are_limited(tmp_path):
    chunks = split_jobs(jobs_of(tmp_path, [1] * 300), workers=1)
    assert {len(chunk) for chunk in chunks[:-1]} == {MAX_VIDEOS}
    assert sum(map(len, chunks)) == 300
    assert split_jobs([], workers=2) == []
