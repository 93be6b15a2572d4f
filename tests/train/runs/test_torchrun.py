"""Tests of training in several processes with torchrun: equal results, and a single error
message.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
from safetensors.torch import load_file
from tests.processes import ROOT
from tests.train.runs.run_files import RESUME, START, contents, records

TOLERANCE = 1e-5
# Slow, because each process imports PyTorch.
pytestmark = pytest.mark.slow
LONG = pytest.mark.long

# Worker script for torchrun that runs byov-train and records the weights of every process after
# every step. Options: at: (text, n, action, value); run the action before the main process renames
# the n-th file to a name with the text. elsewhere: features folder of the second process, which
# does not exist. unsynchronized: bypass DistributedDataParallel, so that gradients are not
# averaged.
WORKER = """
import hashlib, json, os, signal, sys
from pathlib import Path
import torch
sys.path.append(os.environ["TESTS_ROOT"])
from tests.processes import before_naming
from torch.optim.optimizer import register_optimizer_step_post_hook

how, folder, rank = json.loads(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
(folder / f"pid-{rank}").write_text(str(os.getpid()))

def pid_of(rank):
    return int((folder / f"pid-{rank}").read_text())

def signal_torchrun(number):
    # Returns when torchrun has passed the signal on to this process.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    os.kill(os.getppid(), number)
    os.read(reader, 1)
    signal.set_wakeup_fd(-1)

ACTIONS = {
    "kill": lambda rank: os.kill(pid_of(rank), signal.SIGKILL),
    "signal": lambda rank: os.kill(pid_of(rank), signal.SIGTERM),
    "signal_torchrun": signal_torchrun,
}

def record_weights(optimizer, *_):
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            digest.update(parameter.detach().numpy().tobytes())
    with (folder / f"weights-{rank}").open("a") as file:
        file.write(digest.hexdigest() + "\\n")

register_optimizer_step_post_hook(record_weights)
if "at" in how and rank == 0:
    text, count, action, value = how["at"]
    before_naming(text, count, lambda: ACTIONS[action](value))
if "elsewhere" in how and rank == 1:
    sys.argv[sys.argv.index("--features-dir") + 1] = how["elsewhere"]
if "unsynchronized" in how:
    torch.nn.parallel.DistributedDataParallel.forward = lambda self, *inputs: self.module(*inputs)
sys.argv = ["byov-train", *sys.argv[3:]]
from byov.cli.train import main
main()
"""


class Result:
    """Output of torchrun and its processes."""

    def __init__(self, ran, folder):
        self.code = ran.returncode
        self.out = ran.stdout
        self.err = ran.stderr
        # [process][step].
        self.weights = [path.read_text().splitlines() for path in sorted(folder.glob("weights-*"))]
        self.errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.err.count("Traceback") <= 1, self.err  # the traceback of torchrun itself


@pytest.fixture
def torchrun(tmp_path):
    """Return a function that runs byov-train in several processes, with its folders in tmp_path."""

    def run(*arguments, processes=2, **how):
        folder = tmp_path / "processes"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "worker.py").write_text(WORKER)
        folders = ("--features-dir", tmp_path / "features", "--runs-dir", tmp_path / "runs")
        torchrun = (
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            processes,
            "--",
        )
        command = (*torchrun, folder / "worker.py", json.dumps(how), folder, *folders, *arguments)
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("PYTHONWARNINGS", "WORLD_SIZE")
        }
        ran = subprocess.run(
            [str(argument) for argument in command],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "TESTS_ROOT": ROOT},
        )
        return Result(ran, folder)

    return run


def assert_same_run(run, other):
    """Check that two runs have equal metrics up to rounding, the same best epoch and the same
    files.
    """
    close = partial(pytest.approx, rel=TOLERANCE, abs=TOLERANCE)
    for ours, theirs in zip(records(run), records(other), strict=True):
        assert ours == close(theirs)
    ours, theirs = (
        json.loads((folder / "config.json").read_text())["training"] for folder in (run, other)
    )
    assert ours["validation"] == close(theirs["validation"])
    assert contents(run).keys() == contents(other).keys()
    ours, theirs = (
        load_file(max((folder / "checkpoint").glob("step-*"))).keys() for folder in (run, other)
    )
    assert ours == theirs  # in both, parameters without gradients have no optimizer state


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        # Five pairs in batches of two: in the last step of an epoch, one process has no items.
        (2, ("--decoder-depth", 1, "--recipe", "cycle", "--batch-size", 2, "--select", "both")),
        pytest.param(
            3,
            ("--decoder-depth", 1, "--recipe", "official", "--batch-size", 4, "--clip-grad", 1),
            marks=LONG,
        ),
        # The decoder is unused, and its weights must not decay.
        (
            2,
            (
                "--decoder-depth",
                1,
                "--no-self",
                "--no-cross",
                "--cycle",
                1,
                "--batch-size",
                3,
                "--weight-decay",
                0.1,
            ),
        ),
        # Some clips are padded.
        (
            2,
            (
                "--method",
                "gta",
                "--backbone",
                "encoder",
                "--batch-size",
                3,
                "--frames",
                30,
                "--preload-gib",
                0,
            ),
        ),
        pytest.param(
            2,
            (
                "--method",
                "ae2-alignment",
                "--backbone",
                "encoder",
                "--subset",
                6,
                "--batch-size",
                3,
            ),
            marks=LONG,
        ),
    ],
)
def test_several_processes_train_the_run_of_one(
    torchrun, byov_train, write_cache, tiny, tmp_path, options, processes
):
    write_cache(train=(3, 2))
    place = tiny.index("--decoder-depth")  # only byov has this setting
    options = (*START, *tiny[:place], *tiny[place + 2 :], *options)
    together = torchrun(*options, "--json", processes=processes)
    assert (together.code, together.errors) == (0, []), together.err
    assert json.loads(together.out)["run"] == "toy"  # printed once
    assert len(together.weights) == processes
    assert all(weights == together.weights[0] for weights in together.weights)
    shutil.move(tmp_path / "runs" / "toy", tmp_path / "together")
    alone = byov_train(*options)
    assert alone.code == 0, alone
    assert_same_run(tmp_path / "together", tmp_path / "runs" / "toy")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("action", [("signal_torchrun", signal.SIGINT), ("signal", 1)])
def test_a_signal_stops_all_processes_at_one_step(
    torchrun, byov_train, tiny, run, tmp_path, action
):
    options = (*START, *tiny, "--batch-size", 2, "--checkpoint-every", 100)
    stopped = torchrun(*options, at=("metrics.jsonl", 1, *action))
    assert (stopped.code, stopped.out, stopped.errors) == (1, "", [])
    assert stopped.err.count("resume with byov-train --run toy --resume") == 1
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["step-000000001.safetensors"]
    assert [len(weights) for weights in stopped.weights] == [1, 1]
    resumed = torchrun("--resume") if action[0] == "signal" else byov_train(*RESUME)
    assert resumed.code == 0, resumed.err
    assert resumed.err.count("resuming from step 1 of 6") == 1
    shutil.move(run, tmp_path / "resumed")
    assert byov_train(*options).code == 0
    assert_same_run(tmp_path / "resumed", run)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=LONG)])
def test_a_killed_process_ends_the_others_with_one_line(
    torchrun, byov_train, tiny, run, tmp_path, rank
):
    options = (*START, *tiny, "--batch-size", 2)
    killed = torchrun(*options, at=("metrics.jsonl", 3, "kill", rank))
    (error,) = killed.errors
    assert (killed.code, killed.out) == (1, "")
    assert error.startswith("error: another process of this run has ended")
    assert error.endswith("resume with byov-train --run toy --resume")
    assert byov_train(*RESUME).code == 0
    shutil.move(run, tmp_path / "resumed")
    assert byov_train(*options).code == 0
    assert_same_run(tmp_path / "resumed", run)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("arguments", "how", "fact"),
    [
        (
            ("--batch-size", 2),
            {"unsynchronized": True},
            "weights at step 2 differ between the 2 processes",
        ),
        (("--batch-size", 2, "--lr", "1e30"), {}, "lower --lr"),
        (("--batch-size", 2), {"elsewhere": "nowhere"}, "nowhere"),
    ],
)
def test_errors_are_printed_once(torchrun, tiny, run, arguments, how, fact):
    failed = torchrun(*START, *tiny, *arguments, **how)
    (error,) = failed.errors
    assert fact in error
    assert (failed.code, failed.out) == (1, "")
    assert not (run / "checkpoint").exists()
