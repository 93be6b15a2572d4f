"""Replace files by others of the same kind, such as older versions and files of other videos or
runs.

The scores of a row must stay the same, or byov-eval must refuse them or leave out the row.
"""

import os
import random
import shutil

import pytest
from tests.chaos.conftest import EVALUATE, EXTRACT
from tests.factories import write_noise_video

CASES = 200 if "CHAOS" in os.environ else 20


@pytest.fixture
def scores(byov):
    """Return a function that returns the scores of the first run and its baselines, {} if they are
    refused.
    """

    def score():
        ran = byov(*EVALUATE)
        rows = ran.json["protocols"]["standard"]["rows"] if ran.code == 0 else []
        return {row["name"]: row["scores"] for row in rows}

    return score


@pytest.fixture
def all_files(intact):
    """Names of the files that commands write."""
    suffixes = (".h5", ".json", ".jsonl", ".safetensors")
    files = (path.relative_to(intact) for path in sorted(intact.rglob("*")))
    return [path for path in files if path.suffix in suffixes]


@pytest.mark.slow
def test_swapped_files_never_change_scores(intact, project, scores, restore, record, all_files):
    expected = scores()
    assert len(expected) > 2
    pairs = [
        (old, new)
        for old in all_files
        for new in all_files
        if old.parts[1] in ("mine", "first") and old.suffix == new.suffix and old != new
    ]
    pairs = random.Random(0).sample(pairs, CASES)
    wrong = []
    for old, new in pairs:
        shutil.copyfile(intact / new, project / old)
        if not scores().items() <= expected.items():
            wrong.append((old, new))
        restore()
    record("file replaced by another", len(pairs), wrong)
    assert not wrong


@pytest.mark.slow
def test_old_files_never_change_scores(intact, project, byov, scores, record, all_files):
    """Extract and embed a test video again after it has changed, then put single old files back."""
    write_noise_video(project / "mine" / "test_ego.mp4", 20, seed=99)
    (project / "features/mine/random--tiny/ego/test_ego.h5").unlink()
    assert byov(*EXTRACT).code == 0
    assert scores() == {}
    assert byov("train", "--run", "first", "--embed-only").code == 0
    expected = scores()
    assert len(expected) > 2
    changed = [
        path for path in all_files if (intact / path).read_bytes() != (project / path).read_bytes()
    ]
    wrong = []
    for path in changed:
        current = (project / path).read_bytes()
        shutil.copyfile(intact / path, project / path)
        if not scores().items() <= expected.items():
            wrong.append(path)
        (project / path).write_bytes(current)
    record("file replaced by an older version", len(changed), wrong)
    assert not wrong
