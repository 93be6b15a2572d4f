"""The manifest after a run: from what the plan has seen of the files, unless they changed since."""

import shutil

import pytest

from byov.cache import header_index
from byov.cache.manifest import load_manifest
from byov.data.own_videos import read_own_videos
from byov.extract.encoder_names import parse_encoder
from byov.extract.extract_features import update_manifest
from byov.extract.plan import make_plan


@pytest.fixture
def features(tmp_path):
    return tmp_path / "features"


@pytest.fixture
def plan(byov_extract, make_dataset, features, monkeypatch):
    """Of videos of 3 and of 4 frames, which are both cached."""
    monkeypatch.setattr(header_index, "SETTLED_NS", -(10**15))  # although they have just been written
    table = make_dataset([3, 4])
    assert byov_extract("--manifest", table, "--encoder", "random/tiny").code == 0
    dataset = read_own_videos("mine", table)
    plan = make_plan(dataset, features, parse_encoder("random/tiny"), resize="squash", ratios=[0.3])
    assert plan.count() == {"cached": 2}
    return plan


def frames(features):
    return [video.frames for video in load_manifest(features / "mine" / "manifest.json").videos]


def test_files_that_the_plan_has_seen_are_not_looked_into_again(plan, features, monkeypatch):
    monkeypatch.setattr(header_index, "read_facts", None)
    (features / "mine" / "manifest.json").unlink()
    update_manifest(plan, features, {})
    assert frames(features) == [3, 4]


def test_a_file_that_changed_since_the_plan_is_read(plan, features):
    shutil.copyfile(plan.jobs[1].path, plan.jobs[0].path)
    update_manifest(plan, features, {})
    assert frames(features) == [4, 4]


def test_a_file_that_is_gone_since_the_plan_leaves_what_was_known(plan, features):
    plan.jobs[0].path.unlink()
    update_manifest(plan, features, {})
    assert frames(features) == [3, 4]
    (features / "mine" / "manifest.json").unlink()
    update_manifest(plan, features, {})
    assert frames(features) == [None, 4]
