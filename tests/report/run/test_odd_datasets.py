"""Datasets that lack what a part needs: it says so, and all else is there."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from byov.cache.manifest import Manifest
from byov.report.content import Unavailable
from byov.report.failures import find_failures, pair_taus
from byov.report.gallery import Gallery
from byov.report.vectors import compared_material

TRAIN = ("train_ego_0", "train_ego_1", "train_exo_0", "train_exo_1")
PARTS = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "vectors")


def missing(content):
    parts = {name: getattr(content, name) for name in PARTS}
    return {name: part.reason for name, part in parts.items() if isinstance(part, Unavailable)}


def test_without_labels_points_have_no_phase_and_all_is_there(project):
    manifest = project.manifest()
    videos = tuple(replace(video, labels=None) for video in manifest.videos)
    Manifest(manifest.dataset, (), (), videos).save(project.manifest_path)
    content = project.collect()
    assert content.phases == ()
    assert all(video.labels is None for video in content.videos)
    assert missing(content) == {}
    assert "kendalls_tau/all" in [column.score for column in content.tables[0].columns]


def test_one_view_cannot_be_matched_with_itself(project, keep_videos):
    keep_videos(project, *TRAIN, "test_exo_0", "test_exo_1")
    content = project.collect()
    only_exo = "the test split has only exo videos"
    assert missing(content) == dict.fromkeys(("strips", "similarity"), only_exo)
    assert len(content.projection.frames) == 31 + 22
    assert [content.videos[clip.video].view for clip in content.tokens] == ["exo"]
    assert len(content.failures.worst) == 2


def test_one_video_has_no_pairs(project, keep_videos):
    keep_videos(project, *TRAIN, "test_ego_1")
    content = project.collect()
    assert missing(content).keys() == {"strips", "similarity", "vectors", "failures"}
    assert content.failures.reason == "the test split has only one video: none to match it with"
    assert content.videos[0].sheet.frames == tuple(range(29))


def test_one_frame_is_too_few_for_a_map(project, keep_videos):
    keep_videos(project, *TRAIN, "still")
    content = project.collect()
    assert missing(content)["projection"] == "a map needs at least 5 frames, the videos have 1"
    assert content.tokens[0].frames == (0,)


def test_a_video_of_one_frame_matches_the_nearest(project, keep_videos):
    keep_videos(project, *TRAIN, "still", "test_exo_0")
    content = project.collect()
    assert missing(content).keys() == {"failures"}
    assert "no pair of videos has a Kendall's tau" in content.failures.reason
    assert content.similarity.distances.shape == (1, 31)
    assert content.similarity.tau is None
    assert [len(rows) for rows in content.vectors[0].of_video] == [31, 1]
    assert len(content.strips) == 1 + 3  # the only frame is a query once


def test_without_test_videos_the_val_split_is_shown(project, keep_videos, caplog):
    caplog.set_level("INFO")
    keep_videos(project, *TRAIN, "val_ego", "val_exo")
    content = project.collect()
    assert content.split == "val"
    assert "val split" in content.tables[0].title
    assert {video.name for video in content.videos} == {"ego/val_ego", "exo/val_exo"}
    assert "tea has no test videos: the figures are of the val split" in caplog.text


def test_with_train_videos_only_there_is_nothing_to_score(project, keep_videos):
    keep_videos(project, *TRAIN)
    content = project.collect()
    assert content.split == "train"
    assert missing(content) == {"tables": "tea has neither test nor val videos: there is nothing to score"}
    assert len(content.videos) == 4


def test_without_train_videos_nothing_can_be_learned_from(project, keep_videos):
    keep_videos(project, "test_ego_1", "test_exo_0")
    assert missing(project.collect())["tables"].startswith("tea has no train videos")


def test_the_split_can_be_chosen(project):
    material = project.material("val")
    assert [segment.name for segment in material.segments] == ["ego/val_ego", "exo/val_exo"]
    assert find_failures(material, Gallery(len(material)), pair_taus(material)).worst


def test_a_run_that_has_not_embedded_the_videos_is_in_the_tables_only(project, caplog):
    caplog.set_level("INFO")
    shutil.copytree(project.run, project.runs_dir / "second")
    material = project.material()
    beside = compared_material(material, "second")
    assert beside.reader.run.name == "second"
    np.testing.assert_array_equal(beside.embeddings(1), material.embeddings(1))
    shutil.rmtree(project.runs_dir / "second" / "embeddings")
    assert compared_material(material, "second") is None
    assert "second is in the tables only: runs/second/embeddings: no embeddings of 6 of 6 test videos" in caplog.text


def test_a_run_of_another_method_has_no_recipe(project):
    from byov.report.provenance import facts, provenance

    material = project.material()
    assert facts(material)[0] == ("Recipe", "paper")
    material.reader.run.training["settings"] = {"method": "timeline"}
    assert facts(material)[0][0] == "Method"
    assert {"Method", "Settings other than the method's"} <= dict(provenance(material, [], [], 0)).keys()


@pytest.mark.parametrize("settings", [None, "text", {"latent": 3}])
def test_settings_of_another_version_are_said_to_be(project, settings):
    from byov.report.provenance import provenance

    material = project.material()
    material.reader.run.training["settings"] = settings
    assert dict(provenance(material, [], [], 0))["Settings other than the recipe's"] == "of another version of byov"
