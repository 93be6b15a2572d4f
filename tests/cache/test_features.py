import dataclasses
import random
import shutil

import h5py
import numpy as np
import pytest

from byov.cache.features import FeatureWriter, read_facts, read_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.verify import verify_folder
from byov.errors import CacheError

STORED = {"chunks": (64, 16), "maxshape": (None, 16), "fletcher32": True}  # as byov stores a column


@pytest.mark.parametrize("frames", [0, 1, 64, 70])
def test_what_is_written_reads_back(tmp_path, write_features, make_arrays, make_provenance, frames):
    path = write_features(tmp_path / "a.h5", frames)
    header = read_header(path)
    assert header.path == path
    assert header.provenance == make_provenance()
    assert (header.frames, header.fps, header.truncated, header.ratios) == (frames, 30.0, False, ("0.3", "1.0"))
    expected = make_arrays(frames)
    assert read_columns(path) == {name: (values.shape, str(values.dtype)) for name, values in sorted(expected.items())}
    np.testing.assert_array_equal(read_facts(path).pts_seconds, expected["pts_seconds"])
    for name, values in expected.items():
        np.testing.assert_array_equal(read_array(path, name), values)


def test_the_column_types_are_those_of_the_schema(tmp_path, write_features):
    columns = read_columns(write_features(tmp_path / "a.h5", 5))
    assert columns == {
        "cls": ((5, 16), "float16"),
        "merged/0.3": ((5, 16), "float16"),
        "merged/1.0": ((5, 16), "float16"),
        "order": ((5, 9), "uint16"),
        "pts_seconds": ((5,), "float64"),
    }


def test_odd_but_lawful_provenance_reads_back(tmp_path, write_features, make_provenance):
    odd = {"source_name": "b\udcff\n\x1b.mp4", "encoder_revision": "é" * 300, "source_bytes": 1 << 40}
    path = write_features(tmp_path / "a.h5", 1, **odd)
    assert read_header(path).provenance == make_provenance(**odd)


def test_whole_numbers_of_frames_per_second_and_truncation_read_back(tmp_path, make_provenance):
    writer = FeatureWriter(tmp_path / "a.h5", (1,), 2, 4, has_cls=False)
    writer.append({1: np.zeros((3, 4))}, np.zeros((3, 2)), None, np.arange(3.0))
    writer.finish(make_provenance(), fps=25, truncated=True)
    header = read_header(tmp_path / "a.h5")
    assert (header.fps, header.truncated, header.ratios) == (25.0, True, ("1.0",))
    assert "cls" not in read_columns(tmp_path / "a.h5")


def test_frames_counts_rows_and_closing_leaves_nothing(tmp_path):
    writer = FeatureWriter(tmp_path / "a.h5", (0.5,), 2, 4, has_cls=False)
    for _ in range(2):
        writer.append({0.5: np.zeros((64, 4))}, np.zeros((64, 2)), None, np.zeros(64))
    assert writer.frames == 128
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_class_tokens_that_the_file_has_no_place_for_are_refused(tmp_path):
    writer = FeatureWriter(tmp_path / "a.h5", (0.5,), 2, 4, has_cls=False)
    with pytest.raises(ValueError, match="cls"):
        writer.append({0.5: np.zeros((1, 4))}, np.zeros((1, 2)), np.zeros((1, 4)), np.zeros(1))
    writer.close()


@pytest.mark.parametrize("name", ["merged/0.7", "merged", "/", "", "..", "nothing", "merged/0.3/x"])
def test_a_column_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path, write_features, name):
    path = write_features(tmp_path / "a.h5")
    with pytest.raises(CacheError, match=r"a\.h5: no .*it holds cls, merged/0\.3, merged/1\.0, order, pts_seconds"):
        read_array(path, name)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for read in (read_header, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=r"none\.h5: no such file"):
            read(tmp_path / "none.h5")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(CacheError, match=tmp_path.name):
        read_header(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"not HDF5\n" * 1000, b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(9000)]
)
def test_what_is_not_hdf5_is_named(tmp_path, content):
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"a\.h5: not a readable cache file .*byov-extract"):
        read_header(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path, write_features):
    path = write_features(tmp_path / "a.h5", 3)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CacheError, match=r"a\.h5"):
            read_header(path)


def test_damage_anywhere_gives_a_named_error_and_verify_finds_all_that_changes_a_number(
    tmp_path, write_features, make_arrays
):
    path = write_features(tmp_path / "encoder" / "ego" / "a.h5", 3)
    Manifest("demo", (), (), (VideoEntry("a", "ego", "train", 3, 30.0, None, None),)).save(tmp_path / "manifest.json")
    whole = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(80):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 2, 8])):
            damaged[chance.randrange(len(whole))] = chance.choice([0, 255, chance.randrange(256)])
        path.write_bytes(damaged)
        (checked,) = verify_folder(path.parent.parent)
        problem = checked.problem
        try:
            read_header(path)
            arrays = {name: read_array(path, name) for name in read_columns(path)}
        except CacheError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017
            assert problem is not None
        if problem is None:
            np.testing.assert_equal(arrays, {name: make_arrays(3)[name] for name in arrays})
        else:
            refused += 1
    assert 0 < refused < 80


@pytest.mark.parametrize("column", ["merged/0.3", "cls", "order", "pts_seconds"])
def test_a_flipped_bit_in_the_data_is_found_on_reading_and_by_verify(
    encoder_folder, flip_data_byte, assert_sound, column
):
    path = encoder_folder / "ego" / "004.h5"
    flip_data_byte(path, column)
    with pytest.raises(CacheError, match=r"004\.h5"):
        read_array(path, column)
    problems = {file.path: file.problem for file in verify_folder(encoder_folder)}
    assert problems.pop(path)
    assert list(problems.values()) == [None, None]
    assert_sound(encoder_folder / "exo" / "004.h5", 64)


def test_a_plain_hdf5_file_is_not_taken_for_a_cache_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
    with pytest.raises(CacheError, match=r"a\.h5: cache schema None, this byov reads 1 and 2"):
        read_header(tmp_path / "a.h5")


@pytest.mark.parametrize("version", [0, 3, 2.0, True, np.array([2]), np.array([2, 2])])
def test_another_schema_is_refused(tmp_path, write_features, edit_h5, version):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file.attrs["schema_version"] = version
    with pytest.raises(CacheError, match=r"a\.h5: .*schema"):
        read_header(path)


@pytest.mark.parametrize("complete", [None, False, 1, "yes", np.array([True, True]), h5py.Empty("f")])
def test_a_file_not_marked_complete_is_refused(tmp_path, write_features, edit_h5, complete):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        del file.attrs["complete"]
        if complete is not None:
            file.attrs["complete"] = complete
    with pytest.raises(CacheError, match=r"a\.h5: .*complete"):
        read_header(path)


def test_each_missing_attribute_is_named(tmp_path, write_features, edit_h5, make_provenance):
    names = {field.name for field in dataclasses.fields(make_provenance())} - {"schema_version"} | {"fps", "truncated"}
    for name in names:
        path = write_features(tmp_path / "a.h5", 1)
        with edit_h5(path) as file:
            del file.attrs[name]
        with pytest.raises(CacheError, match=rf"a\.h5: incomplete header .*{name}"):
            read_header(path)


@pytest.mark.parametrize("name", ["encoder", "source_bytes", "fps", "truncated"])
@pytest.mark.parametrize(
    "value",
    ["text of variable length", np.bytes_("five"), 3j, np.zeros(3), np.zeros((0,)), h5py.Empty("f"), np.void(b"x")],
    ids=str,
)
def test_an_attribute_of_another_type_is_refused_by_name(tmp_path, write_features, edit_h5, name, value):
    if name == "encoder" and isinstance(value, np.bytes_):
        value = 7
    path = write_features(tmp_path / "a.h5", 1)
    with edit_h5(path) as file:
        file.attrs[name] = value
    with pytest.raises(CacheError, match=rf"a\.h5: .*{name}"):
        read_header(path)


@pytest.mark.parametrize("fps", [float("nan"), float("inf")])
def test_frames_per_second_that_are_no_number_are_refused(tmp_path, write_features, edit_h5, fps):
    path = write_features(tmp_path / "a.h5", 1)
    with edit_h5(path) as file:
        file.attrs["fps"] = fps
    with pytest.raises(CacheError, match=r"a\.h5: .*frames per second"):
        read_header(path)


def replace_column(path, edit_h5, name, make):
    with edit_h5(path) as file:
        del file[name]
        make(file)


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file.create_group("pts_seconds"),
        lambda file: file.create_dataset("pts_seconds", data=1.0),
        lambda file: file.create_dataset("pts_seconds", data=h5py.Empty("f8")),
        lambda file: file.create_dataset("pts_seconds", data=np.zeros((3, 1)), chunks=True),
        lambda file: file.create_dataset("pts_seconds", data=np.zeros(3, "f4"), chunks=True),
        lambda file: file.create_dataset("pts_seconds", data=np.zeros(4), chunks=True),
        lambda file: file.create_dataset("pts_seconds", data=["a", "b", "c"], chunks=(3,)),
        lambda file: file.create_dataset("pts_seconds", shape=(1 << 40,), dtype="f8", chunks=(64,)),
        lambda file: file.create_dataset("pts_seconds", data=np.zeros(1 << 20), chunks=(1 << 20,), compression=9),
        lambda file: file.__setitem__("pts_seconds", np.dtype("f8")),
        lambda _: None,
    ],
    ids=["group", "scalar", "empty", "2-d", "float32", "longer", "text", "vast", "compressed", "datatype", "missing"],
)
def test_times_that_are_no_list_of_numbers_are_refused(tmp_path, write_features, edit_h5, make):
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(path, edit_h5, "pts_seconds", make)
    for read in (read_columns, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=r"a\.h5: .*pts_seconds"):
            read(path)


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_columns_of_different_length_are_refused(tmp_path, write_features, edit_h5, rows):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file["cls"].resize(rows, axis=0)
    for read in (read_columns, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=rf"a\.h5: .*'cls' has {rows} rows, pts_seconds 3"):
            read(path)


@pytest.mark.parametrize("name", ["merged/abc", "merged/0.30", "merged/\x1b[2J", "merged/0.3x/y"])
def test_a_ratio_that_is_none_is_refused(tmp_path, write_features, edit_h5, name):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file.create_dataset(name, data=np.zeros((3, 16), "f2"), chunks=(3, 16))
    with pytest.raises(CacheError, match=r"a\.h5: .*ratio|a\.h5: .*float"):
        read_header(path)


def test_a_name_that_is_not_utf8_is_refused(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file[b"merged/\xff\xfe"] = np.zeros(3)
    for read in (read_header, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=r"a\.h5"):
            read(path)


def external_link(file, other):
    file["cls"] = h5py.ExternalLink(str(other), "cls")


def soft_link_through_external(file, other):
    file["door"] = h5py.ExternalLink(str(other), "/")
    file["cls"] = h5py.SoftLink("/door/cls")


def raw_storage(file, other):
    file.create_dataset("cls", (3, 16), "f2", external=[(str(other), 0, 96)])


def virtual(file, other):
    layout = h5py.VirtualLayout((3, 16), "f2")
    layout[:] = h5py.VirtualSource(str(other), "cls", shape=(3, 16))
    file.create_virtual_dataset("cls", layout)


@pytest.mark.parametrize("make", [external_link, soft_link_through_external, raw_storage, virtual])
def test_a_file_cannot_make_us_read_another_file(tmp_path, write_features, edit_h5, make):
    secret = write_features(tmp_path / "secret.h5", 3)
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(path, edit_h5, "cls", lambda file: make(file, secret))
    with h5py.File(path, "r") as file:
        assert file["cls"].shape == (3, 16)  # HDF5 itself follows it
    with pytest.raises(CacheError, match=r"a\.h5: .*cls"):
        read_array(path, "cls")


@pytest.mark.parametrize("make", [external_link, soft_link_through_external, raw_storage, virtual])
def test_verify_does_not_take_another_files_array_for_a_column(tmp_path, write_features, edit_h5, make):
    secret = write_features(tmp_path / "secret.h5", 3)
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(path, edit_h5, "cls", lambda file: make(file, secret))
    try:
        assert "cls" not in read_columns(path)
    except CacheError as error:
        assert "'cls' is not an array that byov writes" in str(error)  # noqa: PT017


def test_a_group_that_is_an_external_link_is_not_entered(tmp_path, write_features, edit_h5):
    secret = write_features(tmp_path / "secret.h5", 3)
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(
        path, edit_h5, "merged", lambda file: file.__setitem__("merged", h5py.ExternalLink(secret, "merged"))
    )
    assert read_header(path).ratios == ()
    with pytest.raises(CacheError, match=r"no merged/0\.3; it holds cls, order, pts_seconds"):
        read_array(path, "merged/0.3")


@pytest.mark.parametrize("dtype", [">f2", "<f4", "<i2"])
def test_a_column_of_another_type_is_refused_even_if_its_bytes_are_right(tmp_path, write_features, edit_h5, dtype):
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(path, edit_h5, "cls", lambda file: file.create_dataset("cls", (3, 16), dtype, chunks=(3, 16)))
    with edit_h5(path) as file:
        file["cls"][:] = 1
    for read in (read_columns, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=r"a\.h5: .*'cls' is"):
            read(path)


def test_missing_blocks_are_an_error_and_not_zeros(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    replace_column(path, edit_h5, "cls", lambda file: file.create_dataset("cls", (3, 16), "f2", **STORED))
    for read in (read_columns, lambda path: read_array(path, "cls")):
        with pytest.raises(CacheError, match=r"a\.h5: .*'cls' lacks blocks"):
            read(path)


def test_groups_that_hold_each_other_do_not_go_on_for_ever(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file["merged/loop"] = file["/"]
    for read in (read_header, read_columns):
        with pytest.raises(CacheError, match=r"a\.h5: .*loop"):
            read(path)


def test_a_claim_of_more_bytes_than_the_file_has_is_refused(tmp_path, write_features, edit_h5):
    path = write_features(tmp_path / "a.h5", 3)
    with edit_h5(path) as file:
        file["cls"].resize(1 << 40, axis=0)
    with pytest.raises(CacheError, match=r"a\.h5: .*'cls' claims"):
        read_array(path, "cls")


def test_a_copy_reads_like_the_original(tmp_path, write_features, assert_sound):
    shutil.copy(write_features(tmp_path / "a.h5", 70), tmp_path / "b.h5")
    assert_sound(tmp_path / "b.h5", 70)


def test_one_process_may_read_while_another_has_the_file_open(tmp_path, write_features, start_python, assert_sound):
    path = write_features(tmp_path / "a.h5", 3)
    script = "import h5py, sys; file = h5py.File(sys.argv[1], 'r'); print(len(file), flush=True); sys.stdin.readline()"
    reader = start_python(script, path)
    assert reader.stdout.readline() == "4\n"
    write_features(path, 70)  # replaced under its reader
    assert_sound(path, 70)


def test_more_tokens_than_order_can_number_are_refused(tmp_path):
    FeatureWriter(tmp_path / "a.h5", (0.5,), 65536, 4, has_cls=False).close()
    with pytest.raises(CacheError, match=r"b\.h5: 65537 tokens a frame; the cache numbers at most 65536"):
        FeatureWriter(tmp_path / "b.h5", (0.5,), 65537, 4, has_cls=False)
    assert not list(tmp_path.iterdir())
