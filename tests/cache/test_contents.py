import shutil
from dataclasses import replace

import pytest

from byov.cache.features import check_same_identity, read_header
from byov.cache.layout import encoder_folders
from byov.cache.manifest import load_manifest
from byov.cache.verify import failures_path, read_failures, summarize, verify_folder
from byov.errors import CacheError


def test_encoder_folders_are_those_beside_a_manifest(features_dir, encoder_folder):
    (features_dir / "no manifest" / "encoder").mkdir(parents=True)
    (features_dir / "demo" / ".hidden").mkdir()
    shutil.copytree(features_dir / "demo", features_dir / "another")
    assert [str(folder.relative_to(features_dir)) for folder in encoder_folders(features_dir)] == [
        "another/openai--clip-vit-base-patch16",
        "demo/openai--clip-vit-base-patch16",
    ]
    assert encoder_folders(features_dir, "demo") == [encoder_folder]


def test_no_cache_says_how_to_make_one(tmp_path):
    with pytest.raises(CacheError, match="nowhere: no feature cache here; make one with byov-extract"):
        encoder_folders(tmp_path / "nowhere")


def test_an_empty_cache_holds_nothing(tmp_path):
    assert encoder_folders(tmp_path) == []


def test_an_unknown_dataset_lists_those_that_are_there(features_dir, tmp_path):
    with pytest.raises(CacheError, match="no dataset 'pour_milk'; it holds demo"):
        encoder_folders(features_dir, "pour_milk")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CacheError, match="it holds nothing"):
        encoder_folders(tmp_path / "empty", "demo")


def test_a_summary_counts_videos_frames_and_bytes(encoder_folder):
    summary = summarize(encoder_folder)
    assert (summary.dataset, summary.encoder) == ("demo", "openai/clip-vit-base-patch16")
    assert (summary.cached_videos, summary.dataset_videos, summary.frames) == (3, 3, 137)
    assert summary.ratios == ("0.3", "1.0")
    assert summary.disk_bytes == sum(path.stat().st_size for path in encoder_folder.rglob("*.h5"))
    assert (summary.unreadable, summary.failures) == (0, 0)


def test_a_summary_names_only_ratios_that_every_file_has(encoder_folder, edit_h5):
    with edit_h5(encoder_folder / "exo" / "004.h5") as file:
        del file["merged/0.3"]
    assert summarize(encoder_folder).ratios == ("1.0",)


def test_a_summary_counts_damaged_files_and_dangling_links_as_unreadable(encoder_folder):
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    (encoder_folder / "ego" / "dangling.h5").symlink_to("nowhere")
    (encoder_folder / "ego" / "folder.h5").mkdir()
    summary = summarize(encoder_folder)
    assert (summary.unreadable, summary.cached_videos, summary.frames) == (3, 2, 67)


def test_a_folder_without_files_is_summarized_under_its_own_name(features_dir):
    (features_dir / "demo" / "other").mkdir()
    summary = summarize(features_dir / "demo" / "other")
    assert (summary.encoder, summary.cached_videos, summary.dataset_videos, summary.ratios) == ("other", 0, 3, ())


def test_failures_are_read_and_counted(encoder_folder):
    assert read_failures(encoder_folder) == {}
    failures_path(encoder_folder).write_text('{"004": "ends early", "005": "ä"}', encoding="utf-8")
    assert read_failures(encoder_folder) == {"004": "ends early", "005": "ä"}
    assert summarize(encoder_folder).failures == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_damaged_list_of_failures_is_named(encoder_folder, content):
    failures_path(encoder_folder).write_bytes(content)
    with pytest.raises(CacheError, match=r"failures\.json: not readable .*delete it"):
        read_failures(encoder_folder)


def problems_of(folder):
    return {str(file.path.relative_to(folder)): file.problem for file in verify_folder(folder)}


def test_a_sound_folder_verifies_file_by_file(encoder_folder):
    assert problems_of(encoder_folder) == {"ego/004.h5": None, "ego/Küche 1.h5": None, "exo/004.h5": None}


@pytest.mark.parametrize("content", [b"", b"text"])
def test_verify_names_what_cannot_be_read_and_goes_on(encoder_folder, content):
    (encoder_folder / "ego" / "004.h5").write_bytes(content)
    problems = problems_of(encoder_folder)
    assert "not a readable cache file" in problems["ego/004.h5"]
    assert str(encoder_folder) not in problems["ego/004.h5"].split("(")[0]  # the path is given beside it
    assert (problems["ego/Küche 1.h5"], problems["exo/004.h5"]) == (None, None)


def test_verify_finds_values_changed_behind_the_checksums_back(encoder_folder, edit_h5):
    with edit_h5(encoder_folder / "exo" / "004.h5") as file:
        file["order"][3, 4] += 1
    assert "order does not match its digest" in problems_of(encoder_folder)["exo/004.h5"]


@pytest.mark.parametrize("digest", [None, 3, "text of variable length"])
def test_verify_finds_a_missing_or_strange_digest(encoder_folder, edit_h5, digest):
    with edit_h5(encoder_folder / "exo" / "004.h5") as file:
        del file["cls"].attrs["sha256"]
        if digest is not None:
            file["cls"].attrs["sha256"] = digest
    assert problems_of(encoder_folder)["exo/004.h5"] is not None


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("encoder", "encoder"),
        ("encoder_revision", "revision"),
        ("encoder_sha256", "weights"),
        ("preprocessing", "preprocessing"),
        ("compute_dtype", "compute type"),
    ],
)
def test_verify_names_both_sides_of_a_mixed_identity(encoder_folder, write_features, make_provenance, field, what):
    write_features(encoder_folder / "exo" / "004.h5", 64, **{field: "another"})
    expected = f"{what} 'another', but 004.h5 has {getattr(make_provenance(), field)!r}"
    assert problems_of(encoder_folder) == {"ego/004.h5": None, "ego/Küche 1.h5": None, "exo/004.h5": expected}


@pytest.mark.parametrize("field", ["decoder", "source_name", "source_sha256", "byov_version"])
def test_files_of_other_sources_and_machines_may_stand_together(encoder_folder, write_features, field):
    write_features(encoder_folder / "exo" / "004.h5", 64, **{field: "another"})
    assert set(problems_of(encoder_folder).values()) == {None}


def test_a_damaged_first_file_does_not_make_the_others_a_mixture(encoder_folder, write_features):
    write_features(encoder_folder / "ego" / "004.h5", 69, encoder="another")  # wrong frames, wrong identity
    problems = problems_of(encoder_folder)
    assert problems["ego/004.h5"] == "69 frames, 70 in the manifest"
    assert (problems["ego/Küche 1.h5"], problems["exo/004.h5"]) == (None, None)


def test_the_same_identity_passes_and_another_names_the_file(encoder_folder):
    header = read_header(encoder_folder / "exo" / "004.h5")
    check_same_identity(header, header)
    other = replace(header, provenance=replace(header.provenance, preprocessing="crop"))
    with pytest.raises(CacheError, match=r"exo/004\.h5: preprocessing 'crop', but 004\.h5 has 'squash 224'"):
        check_same_identity(other, header)


@pytest.mark.parametrize(("frames", "said"), [(63, "63"), (None, "None")])
def test_verify_compares_frames_with_the_manifest(features_dir, encoder_folder, frames, said):
    path = features_dir / "demo" / "manifest.json"
    manifest = load_manifest(path)
    videos = (*manifest.videos[:2], replace(manifest.videos[2], frames=frames))
    replace(manifest, videos=videos).save(path)
    assert problems_of(encoder_folder)["exo/004.h5"] == f"64 frames, {said} in the manifest"


def test_verify_names_files_that_the_manifest_does_not_know(encoder_folder, write_features):
    write_features(encoder_folder / "exo" / "Küche 1.h5", 3)  # known of the other view only
    assert problems_of(encoder_folder)["exo/Küche 1.h5"] == "not in the manifest"


def test_verify_and_summary_need_the_manifest(features_dir, encoder_folder):
    (features_dir / "demo" / "manifest.json").unlink()
    for read in (summarize, lambda folder: list(verify_folder(folder))):
        with pytest.raises(CacheError, match=r"manifest\.json: no such file"):
            read(encoder_folder)
