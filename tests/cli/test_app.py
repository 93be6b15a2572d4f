"""Tests of errors, exit codes, --config and --help for all commands."""

from pathlib import Path

import pytest
import typer
from tests.cli.conftest import APP, SCRIPTS
from tests.factories import write_file

from byov.cli import train
from byov.cli.app import FAILED, App
from byov.cli.options import Config, RunsDir, UsageError, check_folder, check_outputs
from byov.errors import CacheError
from byov.train.registry import all_settings, option_name


@pytest.fixture
def typed(call):
    """Run a command line, such as "byov-eval --task tau"."""
    return lambda line: call(SCRIPTS[line.split()[0]].load(), *line.split())


def error_line(done):
    """Check that a command printed nothing but a one-line error, and return that line."""
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (CacheError("a\x1b[2J\nb"), "error: a\\x1b[2J\\nb\n", 2),
        (
            FileNotFoundError(2, "No such file", "/nowhere/\x1b"),
            "error: /nowhere/\\x1b: No such file\n",
            1,
        ),
        (OSError("Unable to open file"), "error: Unable to open file\n", 1),
        (MemoryError(), "error: out of memory (allocation failed)", 1),
        (
            RuntimeError("CUDA out of memory.\nTried"),
            "error: out of memory (CUDA out of memory.)",
            1,
        ),
        (
            RuntimeError("can't start new thread"),
            "error: out of memory (can't start new thread)",
            1,
        ),
        (typer.Exit(FAILED), "", 1),
    ],
)
def test_errors_are_one_line_and_an_exit_code(run_app, error, message, code):
    def work():
        print("before")
        raise error

    ran = run_app(work)
    assert (ran.code, ran.out) == (code, "before\n")
    assert ran.err.startswith(message)
    assert ran.err.count("\n") == bool(message)


@pytest.mark.parametrize(
    "bug", [ValueError("a bug"), RuntimeError("mat1 and mat2 shapes cannot be multiplied")]
)
def test_bugs_keep_their_traceback(run_app, bug):
    def work():
        raise bug

    with pytest.raises(type(bug)):
        run_app(work)


@pytest.mark.parametrize(
    "body", ["print('x')", "table_console().print('x')", "raise BrokenPipeError"]
)
def test_command_without_standard_output(run_python, body):
    script = APP.format(body=f"from byov.cli.terminal import table_console; {body}")
    done = run_python(
        "import os, sys; python = sys.executable; os.close(1); os.execv(python, [python, '-c', "
        f"{script!r}])"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", int(body.startswith("raise")))


@pytest.mark.parametrize("command", [*SCRIPTS, "byov-cache verify"])
def test_help_at_80_columns_cuts_nothing(typed, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    done = typed(f"{command} -h")
    assert (done.code, done.err, max(map(len, done.out.splitlines()))) == (0, "", 80)
    assert "…" not in done.out


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--method", "ti"), ["timeline"]),
        (("--dataset", ""), ["cups", "toy"]),
        (("--run", ""), ["first"]),
        (("--runs-dir", "elsewhere", "--run", ""), []),
    ],
)
def test_shells_complete_values(typed, tmp_path, monkeypatch, words, values):
    for path in (
        "features/toy/manifest.json",
        "features/cups/manifest.json",
        "runs/first/config.json",
    ):
        write_file(tmp_path / path, "{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_BYOV_TRAIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("byov-train", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    done = typed("byov-train")
    assert done.out.split() == values, done


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("byov-train --epochs=many", "--epochs: it is 'many'; it must be a valid integer. See"),
        ("byov-train --size tiny", "--size: 'tiny' is not one of 'paper', 'small'. See"),
        ("byov-sweep papr", "Pass paper, benchmark or"),
        ("byov-train --datset demo", "--dataset"),
        ("byov-train --epochs", "--epochs"),
        ("byov-train demo", "demo"),
        ("byov-train --learning-rate 1e-3", "Did you mean --lr? See"),
        ("byov-train --crop 0.5", "--crop 0.5: expected 2 comma-separated numbers"),
        ("byov-train --ratio 30", "such as 0.3"),
        ("byov-train --ratio 30%", "such as 0.3"),
        ("byov-train --ratio abc", "such as 0.3"),
        (
            "byov-train --features-dir .",
            "has no features. Extract some: byov-extract --dataset demo",
        ),
        (
            "byov-train --features-dir /proc/1",
            "has no features. Extract some: byov-extract --dataset demo",
        ),
        ("byov-eval --task tau --run ../evil", "letters, digits and .-_"),
        ("byov-eval --task tau", "create one with byov-extract"),
        ("byov-eval --task retreival", "retrieval"),
        ("byov-extract", "--dataset"),
        ("byov-extract --ratios 0.3,10 --dataset demo", "ratios (0.3, 10.0)"),
        ("byov-extract --ratios a --dataset demo", "--ratios a"),
        ("byov-extract --shard 3/2 --dataset demo", "shard 3/2"),
        ("byov-extract --split 60,20,20 --folder .", "0.6,0.2,0.2"),
        ("byov-extract --split 0.5,0.5 --folder .", "0.6,0.2,0.2"),
        ("byov-extract --dataset pour_milk --encoder clip", "openai/clip-vit-base-patch16"),
        ("byov-extract --dataset pour_milk --encoder tinny", "tinny"),
        ("byov-extract --workers 2 --dataset demo", "--cluster"),
        ("byov-extract --folder .", "Expected files like ego/1.mp4"),
        ("byov-extract --manifest /etc/passwd", "the columns path,view,split"),
        ("byov-extract --manifest .", "missing or a folder"),
        ("byov-extract --folder notes.txt", "Pass the folder that contains the videos"),
        ("byov-extract --lerobot notes.txt", "folder of a LeRobot dataset"),
        ("byov-extract --dataset pour_milk --datasets-dir files", "is missing or not a folder"),
        (
            "byov-extract --dataset demo --encoder files/pour_milk",
            "neither a folder nor a Hugging Face id",
        ),
        ("byov-sweep paper --out notes.txt", "Choose another output with --out"),
        ("byov-export run model.onnx --frames model.onnx", "--frames"),
        ("byov-runs lst", "Did you mean 'ls'? See"),
        ("byov-cache rm demo", "'rm'. Choose one of ls, show, verify. See"),
        ("byov-embed", "Usage: byov-embed [OPTIONS] VIDEOS --out OUT. See"),
        ("byov-cache ls --json", "features: no feature cache"),
        ("byov-cache verify demo", "features: no feature cache"),
        ("byov-cache show none.h5", "none.h5"),
        ("byov-cache show", "file"),
        ("byov-cache show .", "is a directory"),
        ("byov-cache show notes.txt", "not a readable cache file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(typed, tmp_path, monkeypatch, line, text):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "notes.txt", "path,view\n")
    write_file(tmp_path / "files/pour_milk")
    message = error_line(typed(line))
    assert text in message
    assert "delete" not in message


def test_empty_argument_is_not_the_current_folder(call):
    ran = call(SCRIPTS["byov-train"].load(), "byov-train", "--config", "")
    assert error_line(ran) == "error: The argument after --config is empty."


def test_command_without_arguments_shows_its_help(typed):
    done = typed("byov-cache")
    assert (done.code, done.err) == (2, "")
    assert "verify" in done.out


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")]
)
def test_unusable_folder_names_the_option_that_moves_it(call, tmp_path, error):
    app = App()

    @app.command()
    def work(runs_dir: RunsDir = tmp_path) -> None:
        error.filename = str(runs_dir / "a" / "config.json")
        raise error

    ran = call(app, "byov-work")
    expected = (
        f"error: {tmp_path}/a/config.json: {error.strerror}. Choose another folder with "
        "--runs-dir\n"
    )
    assert (ran.code, ran.err) == (1, expected)


def test_folders_of_outputs_are_checked_first(tmp_path):
    check_outputs([tmp_path / "new" / "a.html"], (), overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"is a file, not a folder\. Choose another output with --out"
    ):
        check_folder(tmp_path / "file" / "new", "--out")
    with pytest.raises(
        UsageError, match=r"/proc: not writable \(.*\)\. Choose another output with -o"
    ):
        check_outputs([Path("/proc/new/a.html")], (), overwrite=False)


@pytest.fixture
def configured(call, tmp_path):
    """Run a command that prints its option values, with `text` in its --config file (None for no
    file).
    """
    app = App()

    @app.command()
    def work(
        lr: float = 1.0,
        run: list[str] | None = None,
        crop: str = "",
        fast: bool = True,
        batch_size: int = 1,
        _config: Config = None,
    ) -> None:
        print([lr, run, crop, fast, batch_size])

    def main(text, *arguments):
        path = tmp_path / "a.toml"
        if text is not None:
            path.write_text(text)
        return call(app, "byov-work", "--config", path, *arguments)

    return main


CONFIG = 'lr = 1e-3\nrun = ["a", "b"]\ncrop = [0.5, 1.0]\nfast = false\nbatch_size = 4\n'


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((), [0.001, ["a", "b"], "0.5,1.0", False, 4]),
        (("--lr=2", "--fast", "--run", "c", "--batch-size", 8), [2.0, ["c"], "0.5,1.0", True, 8]),
    ],
)
def test_config_file_sets_defaults(configured, arguments, values):
    done = configured(CONFIG, *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{values}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lrr = 1\n", "'lrr'"),
        ("lr = \n", "cannot read"),
        ("lr = {a = 1}\n", "--lr"),
        ("lr = 'x'\n", "--lr"),
        ("batch-size = true\n", "--batch-size"),
        (None, "No such file"),
    ],
)
def test_unusable_config_file(configured, text, expected):
    assert expected in error_line(configured(text))


def test_every_described_setting_is_an_option_of_train():
    options = {name for option in typer.main.get_command(train.app).params for name in option.opts}
    described = {name for name, field in all_settings().items() if field.description}
    assert {f"--{option_name(name)}" for name in described} <= options
