"""A model or a checkpoint of another run is refused by all that would use it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import byov
from byov.cache.digests import BLANK_SEAL, seal
from byov.cli.align import main as align_main
from byov.cli.cache import main as cache_main
from byov.cli.embed import main as embed_main
from byov.cli.evaluate import main as evaluate_main
from byov.cli.report import main as report_main
from byov.cli.train import main as train_main
from byov.errors import CacheError

IDENTITY = re.compile(rb'(identity\\": \\")([0-9a-f]{64})')
SEAL = re.compile(rb'(file_sha256\\": \\")([0-9a-f]{64})')
SEED = re.compile(rb'(seed\\": )0')
COMMANDS = {
    "embed-only": (train_main, ("--embed-only",)),
    "embed": (embed_main, ("videos/one.mp4", "-o", "a.h5")),
    "align": (align_main, ("videos/one.mp4", "videos/two.mp4", "-o", "a.mp4")),
    "eval": (evaluate_main, ("--task", "tau")),
    "report": (report_main, ()),
}


def of_another_run(content: bytes) -> bytes:
    """The same weights, as a run of seed 7 would have written them."""
    other = SEED.sub(rb"\g<1>7", IDENTITY.sub(rb"\g<1>" + b"ab" * 32, content))
    assert other != content
    blank = BLANK_SEAL["file_sha256"].encode()
    return seal(SEAL.sub(rb"\g<1>" + blank, other))


@pytest.fixture
def other(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like `trained`, in which the model of the run toy is another run's."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "runs" / "toy" / "model.safetensors"
    model.write_bytes(of_another_run(model.read_bytes()))
    return tmp_path


@pytest.mark.parametrize("unfinished", [False, True], ids=["finished", "unfinished"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_model_of_another_run_is_refused(
    other: Path, call: Callable[..., Any], command: str, unfinished: bool
) -> None:
    if unfinished:  # config.json does not have the digests of the run's files yet
        config = json.loads((other / "runs/toy/config.json").read_text())
        del config["file_sha256"], config["training"]["files_sha256"]
        (other / "runs/toy/config.json").write_text(json.dumps(config))
    main, arguments = COMMANDS[command]
    ran = call(main, f"byov-{command}", "--run", "toy", *arguments)
    assert ran.code == 2, ran
    told = "runs/toy/model.safetensors: a model of another run (the method byov, seed 7, step "
    assert told in ran.err.splitlines()[-1]


def test_resuming_writes_the_run_s_own_again(other: Path, trained: Path, call: Callable[..., Any]) -> None:
    """Of a run that keeps its last model, and has a checkpoint of it; one that keeps its best model refuses."""
    ran = call(train_main, "byov-train", "--run", "toy", "--resume")
    assert ran.code == 0, ran
    model = "runs/toy/model.safetensors"
    assert (other / model).read_bytes() == (trained / model).read_bytes()


def test_python_refuses_it_too(other: Path) -> None:
    run = byov.load_run("toy", runs_dir=other / "runs", features_dir=other / "features")
    with pytest.raises(
        CacheError, match=r"model\.safetensors: a model of another run \(the method byov, seed 7, step "
    ):
        run.model  # noqa: B018


@pytest.mark.usefixtures("other")
def test_verify_finds_it(call: Callable[..., Any]) -> None:
    bad = call(cache_main, "byov-cache", "verify", "--json").json["bad"]
    assert [path for path, said in bad.items() if "a model of another run" in str(said)] == [
        "runs/toy/model.safetensors"
    ]


def test_its_checkpoints_are_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "runs/toy/checkpoint").iterdir():
        path.write_bytes(of_another_run(path.read_bytes()))
    ran = call(train_main, "byov-train", "--run", "toy", "--resume")
    assert ran.code == 2, ran
    assert "it is of another run: the method byov, seed 7, step " in ran.err
    bad = call(cache_main, "byov-cache", "verify", "--json").json["bad"]
    assert [path for path, said in bad.items() if "a checkpoint of another run" in str(said)] == sorted(bad)
    assert bad
