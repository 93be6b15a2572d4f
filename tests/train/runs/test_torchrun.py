"""One run in several processes, under torchrun itself: the same numbers, and no more than one voice."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from tests.processes import BEFORE_NAMING
from tests.train.runs.run_files import records

START = ("--ratio", "0.3", "--run", "toy")
RESUME = ("--run", "toy", "--resume")
TOLERANCE = 1e-5
SECONDS = 300  # far more than any of it takes
# Each of the processes imports PyTorch, DistributedDataParallel most of it.
pytestmark = pytest.mark.slow

GONE = "error: another process of this run is gone, or does not answer; resume with byov-train --run toy --resume"

# byov-train as torchrun starts it, in one respect at odds with what is usual:
# at: right before the leader names the n-th file whose name contains a text, do what `then` says.
# elsewhere: the features of the second process are not there.
# apart: the method is called past DistributedDataParallel, and no gradient leaves its process.
# Of every process it writes down its weights after every step.
WORKER = (
    BEFORE_NAMING
    + """
import hashlib, json, os, signal, sys
from pathlib import Path
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

how, folder, rank = json.loads(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
(folder / f"pid-{rank}").write_text(str(os.getpid()))

def pid_of(rank):
    return int((folder / f"pid-{rank}").read_text())

def kill(rank):
    os.kill(pid_of(rank), signal.SIGKILL)

def tell(rank):
    os.kill(pid_of(rank), signal.SIGTERM)

def tell_torchrun(number):
    # Goes on when torchrun has passed it on to this process.
    heard, hears = os.pipe()
    os.set_blocking(hears, False)
    signal.set_wakeup_fd(hears)
    os.kill(os.getppid(), number)
    os.read(heard, 1)
    signal.set_wakeup_fd(-1)

def at(text, count, then, value):
    before_naming(text, count, lambda: {"kill": kill, "tell": tell, "tell_torchrun": tell_torchrun}[then](value))

def write_down(optimizer, *_):
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            digest.update(parameter.detach().numpy().tobytes())
    with (folder / f"weights-{rank}").open("a") as file:
        file.write(digest.hexdigest() + "\\n")

register_optimizer_step_post_hook(write_down)
if "at" in how and rank == 0:
    at(*how["at"])
if "elsewhere" in how and rank == 1:
    sys.argv[sys.argv.index("--features-dir") + 1] = how["elsewhere"]
if "apart" in how:
    torch.nn.parallel.DistributedDataParallel.forward = lambda self, *inputs: self.module(*inputs)
sys.argv = ["byov-train", *sys.argv[3:]]
from byov.cli.train import main
main()
"""
)


class Together:
    """What torchrun and the processes that it started have come to."""

    def __init__(self, ran, folder):
        self.code, self.out, self.err = ran.returncode, ran.stdout, ran.stderr
        paths = sorted(folder.glob("weights-*"))
        self.weights = [path.read_text().splitlines() for path in paths]  # of each process, after each step
        assert self.err.count("Traceback") <= 1, self.err  # torchrun's own

    @property
    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture
def torchrun(tmp_path):
    """torchrun(*arguments, processes=2, ...): byov-train with its folders below tmp_path."""

    def run(*arguments, processes=2, **how):
        folder = tmp_path / "processes"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "worker.py").write_text(WORKER)
        folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, "--")
        command = (*torchrun, folder / "worker.py", json.dumps(how), folder, *folders, *arguments)
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONWARNINGS", "WORLD_SIZE")}
        ran = subprocess.run(
            [str(argument) for argument in command],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        return Together(ran, folder)

    return run


def close(ours, theirs):
    """As records of epochs, within what the order of sums changes."""
    return ours.keys() == theirs.keys() and all(
        math.isclose(ours[name], theirs[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for name in ours
    )


def same_run(run, other):
    """The same losses and scores in every epoch, the same epoch chosen, the same files."""
    assert len(records(run)) == len(records(other))
    for ours, theirs in zip(records(run), records(other), strict=True):
        assert close(ours, theirs), (ours, theirs)
    chosen = [json.loads((folder / "config.json").read_text())["training"]["validation"] for folder in (run, other)]
    assert close(*chosen)
    files = [
        {path.relative_to(folder) for path in folder.rglob("*") if "checkpoint" not in path.parts}
        for folder in (run, other)
    ]
    assert files[0] == files[1]
    optimized = [load_file(max((folder / "checkpoint").glob("step-*"))).keys() for folder in (run, other)]
    assert optimized[0] == optimized[1]  # what has no gradient has no state either


def test_two_processes_give_the_losses_and_the_model_of_one(torchrun, byov_train, write_cache, tiny, tmp_path):
    """Five pairs in batches of two: in the last step of an epoch one process has none."""
    write_cache(train=(3, 2))
    options = (*START, *tiny, "--recipe", "cycle", "--batch-size", 2, "--select", "both")
    together = torchrun(*options, "--json")
    assert together.code == 0, together.err
    assert json.loads(together.out)["steps"] == 9  # said once
    assert together.err.splitlines().count(f"features: {tmp_path}/features/toy/random--tiny at ratio 0.3") == 1
    assert together.errors == []
    assert len(together.weights) == 2
    assert len(together.weights[0]) == 9
    assert together.weights[0] == together.weights[1]
    shutil.move(tmp_path / "runs" / "toy", tmp_path / "together")
    assert byov_train(*options).code == 0
    same_run(tmp_path / "together", tmp_path / "runs" / "toy")


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (3, ("--decoder-depth", 1, "--recipe", "official", "--batch-size", 4, "--clip-grad", 1)),
        # The decoder is left unused, and its weights must not decay.
        (2, ("--decoder-depth", 1, "--no-self", "--no-cross", "--cycle", 1, "--batch-size", 3, "--weight-decay", 0.1)),
        # Groups of clips, some of them padded; of the four in an epoch, the last is a step of its own.
        (2, ("--method", "timeline", "--clips", 2, "--batch-size", 3, "--frames", 30, "--preload-gib", 0)),
        (2, ("--method", "ae2-alignment", "--backbone", "encoder", "--subset", 6, "--batch-size", 3)),
    ],
)
def test_any_method_and_any_number_of_processes(torchrun, byov_train, write_cache, tiny, tmp_path, options, processes):
    write_cache(train=(4, 3))
    place = tiny.index("--decoder-depth")  # which is of one method only
    options = (*START, *tiny[:place], *tiny[place + 2 :], *options)
    together = torchrun(*options, processes=processes)
    assert together.code == 0, together.err
    assert len(together.weights) == processes
    assert all(weights == together.weights[0] for weights in together.weights)
    shutil.move(tmp_path / "runs" / "toy", tmp_path / "together")
    alone = byov_train(*options)
    assert alone.code == 0, alone
    same_run(tmp_path / "together", tmp_path / "runs" / "toy")


@pytest.mark.long
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("carl", "the BatchNorm of its projection sees all clips of a step together"),
        (
            "actor-observer",
            "its weights are measured by all triplets of a step together (--no-weighted does without them)",
        ),
    ],
)
def test_what_sees_a_step_as_a_whole_is_trained_by_one_process(torchrun, method, why, run):
    together = torchrun(*START, "--method", method, "--batch-size", 2)
    assert together.code == 1
    assert together.errors == [f"error: {method} is trained by one process: {why}"]
    assert not run.exists()


@pytest.mark.usefixtures("cache")
def test_gradients_that_stay_in_their_process_are_noticed(torchrun, tiny, run):
    together = torchrun(*START, *tiny, "--batch-size", 2, apart=True)
    assert together.weights[0] != together.weights[1]
    (error,) = together.errors
    assert "the weights at step 2 are not the same in all 2 processes" in error
    assert together.code == 1
    assert not (run / "checkpoint").exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("then", [("tell_torchrun", signal.SIGINT), ("tell", 1)])
def test_a_signal_stops_all_at_one_step_and_one_process_goes_on(torchrun, byov_train, tiny, run, tmp_path, then):
    options = (*START, *tiny, "--batch-size", 2, "--checkpoint-every", 100)
    stopped = torchrun(*options, at=("metrics.jsonl", 1, *then))
    assert (stopped.code, stopped.out, stopped.errors) == (1, "", [])
    lines = stopped.err.splitlines()
    assert lines.count("stopped; resume with byov-train --run toy --resume") == 1
    assert lines.count("interrupted") == 1
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["step-000000001.safetensors"]
    assert [len(weights) for weights in stopped.weights] == [1, 1]
    resumed = byov_train(*RESUME)
    assert resumed.code == 0, resumed
    shutil.move(run, tmp_path / "resumed")
    assert byov_train(*options).code == 0
    same_run(tmp_path / "resumed", run)


@pytest.mark.usefixtures("cache")
def test_two_processes_go_on_where_one_was_stopped(torchrun, start_train, byov_train, tiny, run, tmp_path):
    options = (*START, *tiny, "--batch-size", 2)
    alone = start_train(*options, pause_before=("metrics.jsonl", 1))
    assert alone.paused()
    alone.send(signal.SIGINT)
    assert alone.finish().code == 130
    resumed = torchrun("--resume")  # the newest; the leader says which
    assert resumed.code == 0, resumed.err
    assert resumed.err.splitlines().count("run: toy, the newest (choose with --run)") == 1
    assert resumed.err.splitlines().count("resuming from step 1 of 6") == 1
    assert resumed.weights[0] == resumed.weights[1]
    shutil.move(run, tmp_path / "resumed")
    assert byov_train(*options).code == 0
    same_run(tmp_path / "resumed", run)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_is_killed_the_others_end_with_one_line(torchrun, byov_train, tiny, run, tmp_path, rank):
    options = (*START, *tiny, "--batch-size", 2)
    killed = torchrun(*options, at=("metrics.jsonl", 3, "kill", rank))
    assert (killed.code, killed.out, killed.errors) == (1, "", [GONE])
    assert "interrupted" not in killed.err.splitlines()
    assert byov_train(*RESUME).code == 0
    assert list(run.rglob("*.partial")) == []
    shutil.move(run, tmp_path / "resumed")
    assert byov_train(*options).code == 0
    same_run(tmp_path / "resumed", run)


@pytest.mark.usefixtures("cache")
def test_a_loss_that_is_not_finite_ends_all_with_one_line(torchrun, tiny):
    diverged = torchrun(*START, *tiny, "--batch-size", 2, "--lr", "1e30")
    (error,) = diverged.errors
    assert "Start another run with a lower --lr" in error
    assert (diverged.code, diverged.out) == (1, "")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--batch-size", "1"), "error: --batch-size 1 is less than the 2 processes"),
        (("--batch-size", "two"), "error: --batch-size two: Input should be a valid integer"),
    ],
)
def test_mistakes_are_said_once(torchrun, tiny, run, arguments, said):
    wrong = torchrun(*START, *tiny, *arguments)
    assert (wrong.code, wrong.out) == (1, "")  # torchrun's
    assert wrong.err.count(said) == 1, wrong.err
    assert wrong.err.count("exitcode  : 2") >= 1  # ours
    assert not (run / "config.json").exists()


def test_a_run_that_exists_is_left_alone(torchrun, tiny, finished, contents):
    before = contents(finished)
    wrong = torchrun(*START, *tiny, "--batch-size", 2)
    (error,) = wrong.errors
    assert "exists and is finished" in error
    assert contents(finished) == before


@pytest.mark.usefixtures("cache")
def test_what_only_one_of_them_lacks_is_said_by_it(torchrun, tiny, tmp_path):
    wrong = torchrun(*START, *tiny, "--batch-size", 2, elsewhere=str(tmp_path / "nowhere"))
    (error,) = wrong.errors
    assert f"{tmp_path}/nowhere" in error


def test_embedding_again_is_the_work_of_one(torchrun, finished, contents):
    before = contents(finished)
    shutil.rmtree(finished / "embeddings")
    again = torchrun("--run", "toy", "--embed-only", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["embedding_files"] > 0
    assert contents(finished) == before
