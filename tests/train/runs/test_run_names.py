"""Which names a run may have, and that one process at a time has one."""

import shutil

import pytest

START = ("--ratio", 0.3, "--run", "toy")
RESUME = ("--run", "toy", "--resume")

pytestmark = pytest.mark.usefixtures("cache")


def test_a_run_that_is_not_there_lists_those_that_are(refused, finished):
    assert "no such run; choose one of toy" in refused("--run", "none", "--resume")
    shutil.rmtree(finished.parent)
    assert "no run here; start one with byov-train" in refused("--resume")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/tmp/x", "x\n", "", "a" * 300])
@pytest.mark.parametrize("how", [(), ("--resume",), ("--embed-only",)], ids=["new", "resume", "embed"])
def test_a_name_that_leads_out_of_the_folder_is_refused(refused, tmp_path, name, how):
    before = sorted(tmp_path.iterdir())
    assert "cannot be a file name" in refused("--run", name, *how)
    assert [path for path in sorted(tmp_path.iterdir()) if "command" not in path.name] == before


def test_a_name_that_is_taken_offers_to_go_on_or_another_name(refused, finished, tiny):
    (finished / "model-last.safetensors").unlink()  # as if killed right before its end
    before = sorted(finished.rglob("*"))
    message = refused(*START, *tiny)
    assert "exists; resume it with --run toy --resume, or choose another name with --run" in message
    assert sorted(finished.rglob("*")) == before


def test_the_name_of_a_finished_run_offers_another_name_or_its_scores(refused, finished, tiny, reference, contents):
    message = refused(*START, *tiny)
    assert "exists and is finished; choose another name with --run, or score it with byov-eval --run toy" in message
    assert "--resume" not in message
    assert contents(finished) == contents(reference)


@pytest.mark.usefixtures("finished")
def test_a_name_that_is_taken_is_said_before_a_dataset_is_asked_for(refused, write_cache):
    write_cache(dataset="second")
    assert "toy exists and is finished" in refused("--run", "toy")
    assert "which dataset?" in refused("--run", "other")


@pytest.mark.usefixtures("finished")
def test_resume_and_embed_only_do_not_go_together(refused):
    assert "--resume or --embed-only, not both" in refused(*RESUME, "--embed-only")


def test_two_processes_do_not_train_one_run(start_train, refused, tiny, reference, contents, run):
    first = start_train(*START, *tiny, pause_before=("metrics.jsonl", 2))
    assert first.paused()
    assert "exists" in refused(*START, *tiny)
    for arguments in (RESUME, ("--run", "toy", "--embed-only")):
        assert "another process is at work on this run" in refused(*arguments)
    assert first.finish().code == 0
    assert contents(run) == contents(reference)


def test_two_processes_that_begin_one_run_at_once_do_not_both_train_it(start_train, refused, tiny):
    first = start_train(*START, *tiny, pause_before=("config.json", 1))
    assert first.paused()
    assert "another process is at work on this run" in refused(*START, *tiny)
    assert first.finish().code == 0
