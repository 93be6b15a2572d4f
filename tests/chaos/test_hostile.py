"""Replace files by malformed and hostile ones, and read them with commands.

Each command must end within seconds without an unexpected exception and without using much memory.
"""

import json
import os
import random
import resource
import signal
import struct
import zipfile
from contextlib import contextmanager
from itertools import product

import pytest
import transformers
from tests.chaos.conftest import EVALUATE, EXTRACT
from tests.factories import write_file

CHAOS = "CHAOS" in os.environ
SECONDS = 60
MAX_GROWTH_KIB = 2 << 20

RESUME = ("train", "--run", "first", "--resume")
EMBED = ("train", "--run", "first", "--embed-only")
CHECK = (*EXTRACT, "--check")
VERIFY = ("cache", "verify")
ROBOT = ("extract", "--lerobot", "robot", "--ego", "a", "--exo", "b", "--check")
# The commands that read each file.
READERS = {
    "runs/first/config.json": (("runs",), EVALUATE, RESUME, VERIFY),
    "runs/first/metrics.jsonl": (("runs",), RESUME, VERIFY),
    "runs/first/model.safetensors": (EVALUATE, EMBED, VERIFY),
    "runs/first/checkpoint/{checkpoint}": (RESUME, VERIFY),
    "runs/first/embeddings/ego/test_ego.h5": (EVALUATE, VERIFY),
    "features/mine/manifest.json": (("cache", "ls"), EVALUATE, EMBED, CHECK, VERIFY),
    "features/mine/index.json": (CHECK,),
    "features/mine/random--tiny/failures.json": (("cache", "ls"), VERIFY),
    "features/mine/random--tiny/ego/test_ego.h5": (EVALUATE, EMBED, CHECK, VERIFY),
    "features/mine/random--tiny/ego/train_ego.h5": (EVALUATE, RESUME),
    "mine.csv": (CHECK,),
    "mine/train_ego.mp4": (CHECK, ("embed", "mine/train_ego.mp4", "-o", "a.h5", "--overwrite")),
    "grid.toml": (("sweep", "grid.toml", "--dry-run"),),
    "run.toml": (("train", "--config", "run.toml"),),
    "own.npz": (("eval", "--task", "tau", "--embeddings", "own.npz"),),
    "vit/config.json": (("extract", "--manifest", "mine.csv", "--encoder", "./vit"),),
    "vit/preprocessor_config.json": (("extract", "--manifest", "mine.csv", "--encoder", "./vit"),),
    "robot/meta/info.json": (ROBOT,),
    "robot/meta/episodes.jsonl": (ROBOT,),
}
DEEP = 100_000
CONTENTS = [
    b"",
    b"\0",
    b"\xff\xfe\x00",
    random.Random(0).randbytes(5000),
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"a = " + b"[" * DEEP,
    b".".join([b"a"] * 30_000) + b" = 1",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"NaN",
    b"9" * 10_000,
    b"\n" * DEEP,
    b"path,view,split\n" + b"," * DEEP,
    b"\x89HDF\r\n\x1a\n" + bytes(200),
    struct.pack("<Q", 1 << 62) + b"{}",
    struct.pack("<Q", DEEP) + b"[" * DEEP,
]
VALUES = [None, True, -1, 10**400, 1e308, "", "\x1b[2J", "../../etc", [], [[]], {}, {"a": {}}]


def large(path):
    path.touch()
    os.truncate(path, 3 << 30)


SPECIAL = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "nothing": lambda path: path.symlink_to("nothing"),
    "large": large,
}


@contextmanager
def time_limit():
    def stop(*_):
        raise TimeoutError(f"no end after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def crashes(byov):
    """Return a function that returns the commands that do not end with a one-line error or a
    result.
    """

    def run(commands):
        failed = []
        for command in commands:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                with time_limit():
                    ran = byov(*command)
                errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
                assert ran.code in (0, 1, 2), ran
                assert len(errors) <= 1, ran
                assert errors or ran.code != 2, ran
                growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
                assert growth < MAX_GROWTH_KIB, f"{growth} KiB"
            except Exception as error:
                failed.append((command, repr(error)[:300]))
        return failed

    return run


@pytest.fixture
def inputs(project):
    """Write the files of `READERS` that are not part of the project."""
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16
    )
    transformers.ViTModel(config).save_pretrained(project / "vit")
    settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "crop_size": {"height": 32}}
    write_file(project / "vit/preprocessor_config.json", json.dumps(settings))
    write_file(project / "features/mine/random--tiny/failures.json", '{"a": "too short"}')
    info = {
        "codebase_version": "v2.1",
        "video_path": "{video_key}/{episode_index:06d}.mp4",
        "fps": 10,
        "chunks_size": 1000,
        "features": {"a": {"dtype": "video"}, "b": {"dtype": "video"}},
    }
    episode = {"episode_index": 0, "tasks": ["pour"], "length": 20}
    write_file(project / "robot/meta/info.json", json.dumps(info))
    write_file(project / "robot/meta/episodes.jsonl", json.dumps(episode))
    return project


def target_path(project, target):
    newest = max((project / "runs/first/checkpoint").glob("*.safetensors")).name
    path = project / target.format(checkpoint=newest)
    if path.is_file() or path.is_symlink():
        path.unlink()
    return path


def replace(path, content):
    """Replace a file by bytes, or by what the function `content` makes."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("target", READERS)
def test_malformed_files(inputs, restore, crashes, record, target):
    newest = max((inputs / "runs/first/checkpoint").iterdir()).name
    path = inputs / target.format(checkpoint=newest)
    cases = list(product((*SPECIAL, *CONTENTS), READERS[target]))
    cases = random.Random(target).sample(cases, min(len(cases), 30 if CHAOS else 4))
    failed = []
    for content, command in cases:
        replace(path, SPECIAL.get(content, content))
        failed += [(content[:20], crash) for crash in crashes([command])]
        restore()
    record("malformed file", len(cases), failed)
    assert not failed


def changed_values(value):
    """Yield copies of a JSON value in which one of the values in it is replaced."""
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            for changed in (*VALUES, *changed_values(child)):
                copy = value.copy()
                copy[key] = changed
                yield copy


JSON_FILES = [name for name in READERS if name.endswith((".json", ".jsonl"))]


@pytest.mark.slow
@pytest.mark.parametrize("target", JSON_FILES)
def test_wrong_values(inputs, restore, crashes, record, target):
    path = inputs / target
    lines = path.read_text().splitlines() if target.endswith("l") else [path.read_text()]
    value = json.loads(lines[0])
    value.pop("file_sha256", None)
    cases = list(product(changed_values(value), READERS[target]))
    cases = random.Random(target).sample(cases, min(len(cases), 50 if CHAOS else 5))
    failed = []
    for version, command in cases:
        replace(path, json.dumps(version).encode())
        failed += crashes([command])
        restore()
    record("JSON file with a wrong value", len(cases), failed)
    assert not failed


@pytest.mark.slow
def test_wrong_array_headers(project, crashes, record):
    headers = [
        "",
        "{",
        "(" * 5000,
        "-" * 5000 + "1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 10**9)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000, 2000000000)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', 1)], 'fortran_order': 1, 'shape': 'x'}",
    ]
    failed = []
    for header in headers:
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        with zipfile.ZipFile(project / "own.npz", "w") as archive:
            archive.writestr("test_embeddings.npy", content)
        failed += crashes(READERS["own.npz"])
    record("malformed file", len(headers), failed)
    assert not failed
