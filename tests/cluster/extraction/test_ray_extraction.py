"""byov-extract --cluster local: one run of two workers, one bad video, and one that kills every worker."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from byov.cache.verify import verify_folder
from byov.cluster.hand_out import MOST_ATTEMPTS

pytest.importorskip("ray")

# What Python runs as it starts, in Ray's workers too: whoever of them opens the poison video dies of it.
POISON = """
import os, signal, sys

def look(event, arguments):
    if event == "open" and str(arguments[0]).endswith("/v6.mp4") and "default_worker.py" in " ".join(sys.orig_argv):
        descriptor = os.open(os.environ["DEATHS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"x")
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
"""


@dataclass(frozen=True)
class Poisoned:
    """What the run has said, and left."""

    ran: Any
    table: Path
    reference: Path
    features: Path
    deaths: int
    left_running: list[int]


@pytest.fixture(scope="module")
def poisoned(
    ray: Any, make_videos: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Poisoned]:
    folder = tmp_path_factory.mktemp("poisoned")
    table = make_videos([90, 130, 1, 64, 65, 70, 400])
    (table.parent / "v3.mp4").write_bytes(b"not a video at all")
    assert ray.run(table, folder / "reference").returncode == 1
    (folder / "sitecustomize.py").write_text(POISON)
    ray.environment |= {"PYTHONPATH": str(folder), "DEATHS": str(folder / "deaths")}
    ran = ray.run(table, folder / "features", "--cluster", "local", "--workers", 2, "--json")
    left = [] if ray.all_gone() else ray.running()
    del ray.environment["PYTHONPATH"]
    deaths = len((folder / "deaths").read_bytes())
    yield Poisoned(ran, table, folder / "reference", folder / "features", deaths, left)
    shutil.rmtree(folder)


def test_all_but_the_failed_are_byte_identical_to_one_process(poisoned, contents):
    assert "2 workers on 1 machine" in poisoned.ran.stderr
    features, reference = contents(poisoned.features), contents(poisoned.reference)
    assert [name for name in reference if name.endswith("v6.h5")] == ["mine/random--tiny/ego/v6.h5"]
    videos = {name for name in reference if name.endswith(".h5")} - {"mine/random--tiny/ego/v6.h5"}
    assert len(videos) == 5
    assert {name: features[name] for name in videos} == {name: reference[name] for name in videos}
    assert {name for name in features if name.endswith((".h5", ".partial"))} == videos


def test_a_bad_video_fails_as_in_one_process(poisoned):
    folder = Path("mine/random--tiny/failures.json")
    failures = json.loads((poisoned.features / folder).read_text())
    assert failures["v3"] == json.loads((poisoned.reference / folder).read_text())["v3"]


def test_a_video_that_kills_its_worker_is_given_up_after_three_times(poisoned):
    assert poisoned.deaths == MOST_ATTEMPTS  # as the largest it was alone from the beginning
    assert poisoned.ran.stderr.count("is lost") == MOST_ATTEMPTS
    failures = json.loads((poisoned.features / "mine/random--tiny/failures.json").read_text())
    assert sorted(failures) == ["v3", "v6"]
    assert "its worker was lost 3 times" in failures["v6"]


def test_standard_output_is_clean_after_a_workers_death(poisoned):
    assert poisoned.ran.returncode == 1
    said = json.loads(poisoned.ran.stdout)
    assert (said["extracted_videos"], sorted(said["failures"])) == (5, ["v3", "v6"])
    assert "Traceback" not in poisoned.ran.stderr
    assert "raylet" not in poisoned.ran.stderr


def test_no_process_is_left(poisoned):
    assert poisoned.left_running == []


def test_run_again_by_one_process_nothing_is_different(poisoned, ray, contents, tmp_path):
    features = tmp_path / "features"
    shutil.copytree(poisoned.features, features)
    ran = ray.run(poisoned.table, features, "--json")
    assert json.loads(ran.stdout)["extracted_videos"] == 1
    assert contents(features / "mine") == contents(poisoned.reference / "mine")
    assert [file for file in verify_folder(features / "mine/random--tiny") if file.problem] == []
