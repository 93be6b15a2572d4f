import shutil
from dataclasses import replace

import pytest
from tests.factories import make_provenance

from byov.cache.layout import encoder_folders
from byov.cache.manifest import load_manifest
from byov.cache.verify import read_failures, summarize, verify_all, verify_folder
from byov.errors import CacheError


def test_encoder_folders_are_those_next_to_a_manifest(features_dir, encoder_folder, tmp_path):
    (features_dir / "no manifest" / "encoder").mkdir(parents=True)
    (features_dir / "demo" / ".hidden").mkdir()
    shutil.copytree(features_dir / "demo", features_dir / "another")
    assert [folder.parent.name for folder in encoder_folders(features_dir)] == ["another", "demo"]
    assert encoder_folders(features_dir, "demo") == [encoder_folder]
    with pytest.raises(CacheError, match="nowhere: no feature cache"):
        encoder_folders(tmp_path / "nowhere")
    with pytest.raises(CacheError, match=r"no dataset 'pour_milk'.* another, demo"):
        encoder_folders(features_dir, "pour_milk")


def test_summary_of_incomplete_and_damaged_files(encoder_folder, edit_h5):
    with edit_h5(encoder_folder / "exo" / "004.h5") as file:
        del file["merged/0.3"]
    (encoder_folder / "ego" / "004.h5").write_text("damaged")
    (encoder_folder / "ego" / "dangling.h5").symlink_to("nowhere")
    summary = summarize(encoder_folder)
    expected = {"unreadable": 2, "cached_videos": 2, "frames": 67, "ratios": ["1.0"]}
    assert expected.items() <= summary.items()
    empty = encoder_folder.with_name("other")
    empty.mkdir()
    expected = {"encoder": "other", "cached_videos": 0, "dataset_videos": 3, "ratios": []}
    assert expected.items() <= summarize(empty).items()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a":' * 100_000])
def test_damaged_failures_are_named(encoder_folder, content):
    (encoder_folder / "failures.json").write_bytes(content)
    with pytest.raises(CacheError, match=r"failures\.json: not readable .*delete it"):
        read_failures(encoder_folder)


def problems_of(folder):
    return {str(file.path.relative_to(folder)): file.problem for file in verify_folder(folder)}


SOUND = {"ego/004.h5": None, "ego/Küche 1.h5": None, "exo/004.h5": None}


def test_verify_finds_values_changed_through_hdf5(encoder_folder, edit_h5):
    with edit_h5(encoder_folder / "exo" / "004.h5") as file:
        file["order"][3, 4] += 1  # HDF5 updates its own checksum
    assert "order does not match its digest" in problems_of(encoder_folder)["exo/004.h5"]


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("encoder", "encoder"),
        ("encoder_revision", "revision"),
        ("encoder_sha256", "weights"),
        ("preprocessing", "preprocessing"),
        ("compute_dtype", "compute type"),
        ("decoder", None),
    ],
)
def test_verify_finds_mixed_identities(encoder_folder, write_features, field, what):
    write_features(encoder_folder / "exo" / "004.h5", 64, **{field: "another"})
    problem = (
        what
        and f"made with {what} 'another', expected {getattr(make_provenance(), field)!r} "
        "as in 004.h5"
    )
    assert problems_of(encoder_folder) == SOUND | {"exo/004.h5": problem}


def test_bad_first_file_does_not_make_the_others_mixed(encoder_folder, write_features):
    write_features(encoder_folder / "ego" / "004.h5", 69, encoder="another")
    assert problems_of(encoder_folder) == SOUND | {
        "ego/004.h5": "69 frames, but 70 in the manifest"
    }


def test_verify_compares_files_with_the_manifest(features_dir, encoder_folder, write_features):
    # The manifest has it only in the other view.
    write_features(encoder_folder / "exo" / "Küche 1.h5", 3)
    path = features_dir / "demo" / "manifest.json"
    manifest = load_manifest(path)
    replace(manifest, videos=(*manifest.videos[:2], replace(manifest.videos[2], frames=None))).save(
        path
    )
    assert problems_of(encoder_folder) == SOUND | {
        "exo/004.h5": "64 frames, but None in the manifest",
        "exo/Küche 1.h5": "not in the manifest",
    }


def test_summary_needs_the_manifest_and_verify_reports_it(features_dir, encoder_folder, tmp_path):
    (features_dir / "demo" / "manifest.json").unlink()
    with pytest.raises(CacheError, match=r"manifest\.json: no such file"):
        summarize(encoder_folder)
    checked = list(verify_all(features_dir, tmp_path / "runs", "demo"))
    assert [file.path.name for file in checked if file.problem] == ["manifest.json"]
    assert len(checked) == 4


def test_verify_finds_swapped_and_deleted_files(encoder_folder):
    path = encoder_folder / "ego" / "004.h5"
    path.rename(encoder_folder / "ego" / "Küche 1.h5")
    problems = problems_of(encoder_folder)
    assert "features of ego/004, not of ego/Küche 1" in problems["ego/Küche 1.h5"]
    assert problems["."] == "1 of 3 files are missing (first: ego/004.h5)"
    (encoder_folder / "failures.json").write_text('{"004": "ends early"}')
    assert "." not in problems_of(encoder_folder)
