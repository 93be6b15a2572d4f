import json
import re

import pytest

from byov.cache.runs import choose_runs, read_run
from byov.cli.command import UsageMistake
from byov.cli.evaluate import choose_columns, choose_dataset, parse_column, parse_ks, say_differences
from byov.errors import CacheError

CLIP_FOLDER = "openai--clip-vit-base-patch16"


def test_ks():
    assert parse_ks("10, 5,5") == (5, 10)
    for text in ("", "0", "5;10", "-1", "1e3", "9999999"):
        with pytest.raises(UsageMistake, match="whole numbers from 1"):
            parse_ks(text)


def test_columns():
    assert [parse_column(text) for text in ("cls", "merged:0.3", "merged/1")] == ["cls", "merged/0.3", "merged/1.0"]
    for text in ("merged:2", "merged:nan"):
        with pytest.raises(UsageMistake, match="a ratio is a share of the tokens, above 0 and at most 1"):
            parse_column(text)
    for text, advice in (("merged:2", "like merged:0.3"), ("merged:30", "did you mean merged:0.3?")):
        with pytest.raises(UsageMistake, match=re.escape(advice)):
            parse_column(text)
    for text in ("order", "merged", "cls:1", "../x"):
        with pytest.raises(UsageMistake, match="expected cls or merged:RATIO"):
            parse_column(text)


def test_the_newest_run_is_taken_and_said(runs_dir, write_run, caplog):
    caplog.set_level("INFO")
    write_run("first", embedded=False)
    assert [run.name for run in choose_runs(runs_dir, [], None)] == ["first"]
    assert "run: first, the only one" in caplog.text
    write_run("second", embedded=False)
    assert [run.name for run in choose_runs(runs_dir, [], None)] == ["second"]
    assert "run: second, the newest one" in caplog.text


def test_a_broken_run_is_passed_over(runs_dir, write_run, caplog):
    caplog.set_level("INFO")
    write_run("first", embedded=False)
    (runs_dir / "broken").mkdir()
    (runs_dir / "broken" / "config.json").write_text("{}")
    assert [run.name for run in choose_runs(runs_dir, [], None)] == ["first"]
    assert "broken: not looked at" in caplog.text


def test_no_run_is_no_error_here(runs_dir, write_run):
    assert choose_runs(runs_dir, [], None) == []
    write_run("first", embedded=False)
    assert choose_runs(runs_dir, [], "other") == []


def test_runs_of_two_datasets_do_not_go_together(runs_dir, write_run):
    write_run("first", embedded=False)
    write_run("second", dataset="milk", embedded=False)
    with pytest.raises(CacheError, match="first of tea, second of milk"):
        choose_runs(runs_dir, ["first", "second"], None)
    with pytest.raises(CacheError, match="one table is of one dataset"):
        choose_runs(runs_dir, ["first"], "milk")


def test_the_dataset(features_dir, runs_dir, write_run, manifest, capsys):
    write_run("first", dataset="milk", embedded=False)
    assert choose_dataset(features_dir, None, [read_run(runs_dir, "first")]) == "milk"
    assert choose_dataset(features_dir, None, []) == "tea"
    assert "dataset: tea, the only one" in capsys.readouterr().err
    manifest.save(features_dir / "coffee" / "manifest.json")
    (features_dir / "coffee" / "random--tiny").mkdir()
    with pytest.raises(UsageMistake, match=r"which dataset\? --dataset coffee | tea"):
        choose_dataset(features_dir, None, [])


def test_the_encoder(features_dir, runs_dir, write_run, capsys):
    write_run("first", embedded=False)
    run = [read_run(runs_dir, "first")]
    assert choose_columns(features_dir, "tea", ["cls"], None, run) == [(CLIP_FOLDER, "cls")]
    assert "that of the run" in capsys.readouterr().err
    named = choose_columns(features_dir, "tea", ["merged:1.0", "merged:0.3"], "random/tiny", [])
    assert named == [("random--tiny", "merged/1.0"), ("random--tiny", "merged/0.3")]
    assert choose_columns(features_dir, "tea", [], None, []) == []
    with pytest.raises(
        UsageMistake, match=r"which encoder's features\? --encoder openai/clip-vit-base-patch16 \| random"
    ):
        choose_columns(features_dir, "tea", ["cls"], None, [])
    with pytest.raises(UsageMistake, match="no features of other/model for tea"):
        choose_columns(features_dir, "tea", ["cls"], "other/model", [])
    with pytest.raises(UsageMistake, match=r"has no cls; it has merged:0\.3, merged:1\.0"):
        choose_columns(features_dir, "tea", ["cls"], "random/tiny", [])
    with pytest.raises(UsageMistake, match="--encoder goes with --features"):
        choose_columns(features_dir, "tea", [], "random/tiny", [])


def test_runs_that_differ_in_more_than_their_seed_are_told(runs_dir, write_run, capsys):
    write_run("first", embedded=False)
    folder = write_run("second", embedded=False)
    say_differences(choose_runs(runs_dir, ["first", "second"], None))
    assert capsys.readouterr().err == ""
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"paper"', '"cycle"'))
    say_differences(choose_runs(runs_dir, ["first", "second"], None))
    assert "the runs differ in recipe (cycle, paper)" in capsys.readouterr().err
    said = json.loads(config.read_text())
    said["training"] |= {"recipe": "tcn-multi", "settings": {"method": "tcn"}}
    config.write_text(json.dumps(said))
    say_differences(choose_runs(runs_dir, ["first", "second"], None))
    assert capsys.readouterr().err.startswith("the runs differ in method (byov, tcn-multi): there is no mean")
