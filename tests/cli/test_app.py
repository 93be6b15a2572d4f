"""What every command has in common: -h, --config, completion, and an answer to a word too many."""

import tomllib

import pytest

from byov.cli import cache, command, evaluate, extract, manage_runs, train
from byov.cli.option_file import OptionFileMistake, expand, to_toml

MAINS = {
    "byov-cache": cache.main,
    "byov-eval": evaluate.main,
    "byov-extract": extract.main,
    "byov-runs": manage_runs.main,
    "byov-train": train.main,
}


@pytest.fixture
def typed(call):
    """typed("byov-eval retrieval"): the command as if it were typed."""
    return lambda line: call(MAINS[line.split()[0]], *line.split())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("byov-train demo", "'demo' is a word too many; did you mean byov-train --dataset demo?"),
        ("byov-eval retrieval", "'retrieval' is a word too many; did you mean byov-eval --task retrieval?"),
        ("byov-eval --task tau --json x", "did you mean byov-eval --dataset x?"),
        ("byov-extract mine.csv", "did you mean byov-extract --manifest mine.csv?"),
        ("byov-extract /tmp", "did you mean byov-extract --folder /tmp?"),
        ("byov-extract /tmp/no/such", "'/tmp/no/such' is a word too many; byov-extract -h shows the options"),
        ("byov-eval new.npz", "did you mean byov-eval --embeddings new.npz?"),
        ("byov-extract --check true", "--check is a switch and takes no value; leave 'true' out"),
        ("byov-cache ls x", "'x' is a word too many; byov-cache ls -h shows the options"),
    ],
)
def test_a_word_too_many_is_answered_by_what_was_meant(typed, line, said):
    ran = typed(line)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert ran.err.endswith(said + "\n")


def test_the_name_of_a_run_is_taken_for_one(typed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").touch()
    assert "did you mean byov-eval --run mine?" in typed(f"byov-eval --runs-dir {tmp_path} mine").err


@pytest.mark.parametrize("line", ["byov-train -h", "byov-cache -h", "byov-cache ls -h", "byov-extract -h"])
def test_short_help_shows_no_values_of_switches(typed, line):
    ran = typed(line)
    assert ran.code == 0
    assert "Usage" in ran.out
    assert "<bool>" not in ran.out


@pytest.fixture
def options():
    """The options of a small command."""
    from typer.main import get_command

    app = command.new_app()

    @app.command()
    def work(lr: float = 1.0, run: list[str] | None = None, crop: str = "", fast: bool = True) -> None:
        print(lr, run, crop, fast)

    return get_command(app).params


def test_options_of_a_file_come_first_and_give_way_to_the_command_line(options, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('lr = 1e-3\nrun = ["a", "b"]\ncrop = [0.5, 1.0]\nfast = false\n')
    assert expand(["--config", str(path)], options) == [
        *("--lr", "0.001", "--run", "a", "--run", "b", "--crop", "0.5,1.0", "--no-fast")
    ]
    assert expand(["--lr=2", f"--config={path}", "--fast", "--run", "c"], options) == [
        *("--crop", "0.5,1.0", "--lr=2", "--fast", "--run", "c")
    ]
    assert expand(["--lr", "2", "--", "--config"], options) == ["--lr", "2", "--", "--config"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lrr = 1\n", "no option 'lrr' of this command; did you mean lr?"),
        ("zzz = 1\n", "no option 'zzz' of this command; see --help"),
        ("lr = \n", "not a readable TOML file"),
        ("lr = {a = 1}\n", "expected a number, a text, or a list"),
        (None, "no such file"),
    ],
)
def test_a_file_of_options_that_cannot_be_used(options, tmp_path, text, said):
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    with pytest.raises(OptionFileMistake) as error:
        expand(["--config", str(tmp_path / "a.toml")], options)
    assert said in str(error.value)
    with pytest.raises(OptionFileMistake, match="needs a file"):
        expand(["--config"], options)


def test_values_written_as_toml_are_read_back():
    values = {"a": 1, "b": 0.0003, "c": 'é "x" \\ \n', "d": True, "e": [0.5, 1.0], "f": None}
    assert tomllib.loads(to_toml(values)) == {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "byov-train --ratio 30",
            "--ratio 30: a ratio is a share of the tokens, above 0 and at most 1; did you mean 0.3?",
        ),
        ("byov-train --ratio 0", "like 0.3"),
        ("byov-extract --ratios 10,30 --dataset demo", "--ratios 10: a ratio is a share"),
        ("byov-extract --dataset pour_milk --encoder clip", "did you mean --encoder openai/clip-vit-base-patch16?"),
        (
            "byov-extract --dataset pour_milk --encoder efficientnet",
            "did you mean --encoder imagenet/efficientnet-lite0?",
        ),
        ("byov-extract --dataset pour_milk --encoder tinny", "did you mean --encoder random/tiny?"),
        ("byov-extract --dataset pour_milk --encoder xyzzy", "give one like openai/clip-vit-base-patch16"),
    ],
)
def test_values_that_are_nearly_right(typed, line, said):
    ran = typed(line)
    assert ran.code == 2
    assert said in ran.err


def test_a_folder_of_the_cache_is_not_taken_for_a_damaged_file(typed, tmp_path):
    (tmp_path / "ego").mkdir()
    assert "a folder, and show takes one file of it; byov-cache ls" in typed(f"byov-cache show {tmp_path}").err
    (tmp_path / "ego" / "1.h5").touch()
    assert f"byov-cache show {tmp_path}/ego/1.h5\n" in typed(f"byov-cache show {tmp_path}").err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("byov-train --ratio 30%", "--ratio 30%: Input should be a valid number"),
        ("byov-train --epochs=many", "--epochs many: Input should be a valid integer"),
        ("byov-train --datset demo", "No such option: --datset (Possible options: --dataset"),
        ("byov-train --epochs", "Option '--epochs' requires an argument"),
        ("byov-eval --task retreival", "--task retreival: 'retreival' is not one of 'classification', 'retrieval'"),
        ("byov-cache bogus", "No such command 'bogus'"),
        ("byov-cache --bogus", "No such option: --bogus"),
        ("byov-cache show", "Missing argument 'file'"),
    ],
)
def test_what_the_command_line_library_finds_wrong_is_one_line_too(typed, line, said):
    ran = typed(line)
    assert (ran.code, ran.out) == (2, "")
    (said_line,) = ran.err.splitlines()
    assert said_line.startswith(f"error: {said}")
    assert said_line.endswith(" -h shows the options")
