"""Run commands on read-only disks, without permissions, and in other unusual environments."""

import json
import os
import subprocess
import sys

import pytest
from tests.chaos.conftest import EVALUATE, EXTRACT, TINY_OPTIONS
from tests.factories import read_files

# Run several commands in one process to import PyTorch only once.
COMMANDS = """
import json, sys
from importlib import import_module
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv = [f"byov-{name}", *arguments]
    module = {"eval": "evaluate"}.get(name, name)
    try:
        import_module(f"byov.cli.{module}").main()
    except SystemExit as ended:
        print(f"{name} ended with {ended.code or 0}", file=sys.__stderr__, flush=True)
"""
TRAIN = ("train", "--dataset", "mine", "--run", "new", *TINY_OPTIONS)


@pytest.fixture
def run(clean_environment):
    """Return a function that runs commands in a new process, prefixed by `before`, and returns the
    exit code of each.
    """

    def start(commands, before=(), **environment):
        words = json.dumps([[str(word) for word in command] for command in commands])
        ran = subprocess.run(
            [*before, sys.executable, "-c", COMMANDS, words],
            capture_output=True,
            text=True,
            timeout=300,
            env=clean_environment
            | {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
            | environment,
            check=False,
        )
        assert "Traceback" not in ran.stderr, ran.stderr
        ended = [line.split() for line in ran.stderr.splitlines() if " ended with " in line]
        return [int(words[-1]) for words in ended]

    return start


@pytest.fixture(params=["disk", "permissions"])
def closed(request, project):
    """Make features/ and runs/first read-only; yield the words to prefix to commands."""
    folders = (project / "features", project / "runs" / "first")
    if request.param == "permissions":
        before = request.getfixturevalue("without_rights")
        for folder in folders:
            for path in (folder, *folder.rglob("*")):
                path.chmod(path.stat().st_mode & ~0o222)  # pytest can still remove them
        yield before
        return
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a disk read-only")
    mounted = []
    try:
        for folder in folders:
            if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
                pytest.skip("mounting is not permitted here")
            mounted.append(folder)
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield ()
    finally:
        for folder in mounted:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_complete_folders_are_only_read(project, closed, run, record):
    folders = (project / "features", project / "runs" / "first")
    before = [read_files(folder) for folder in folders]
    codes = run((EXTRACT, ("cache", "verify"), TRAIN, EVALUATE), closed)
    record("unusual environment", 4, [code for code in codes if code])
    assert codes == [0] * 4
    assert [read_files(folder) for folder in folders] == before


def limited(option):
    return ("prlimit", option)


def shell(script):
    return ("sh", "-c", f'{script}; exec "$@"', "sh")


# Words to prefix to commands, environment variables, and the exit codes of the commands.
ENVIRONMENTS = {
    "no home": ((), {"HOME": "/nonexistent"}, {0}),
    "no folder for temporary files": ((), {"TMPDIR": "/nonexistent"}, {0}),
    "ASCII": ((), {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {0}),
    "no variables": (("env", "-i"), {}, {0}),
    "one column": ((), {"COLUMNS": "1"}, {0}),
    "no Hub": ((), {"HF_HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"}, {0}),
    "optimized": ((), {"PYTHONOPTIMIZE": "1"}, {0}),
    "private files": (shell("umask 077"), {}, {0}),
    "no output": (shell("exec >&-"), {}, {0, 1}),
    "full output": (shell("exec >/dev/full"), {}, {0, 1}),
    "small files": (limited("--fsize=20000"), {}, {0, 1, 2}),
    "few open files": (limited("--nofile=100"), {}, {0, 1, 2}),
    "one processor": (("taskset", "1"), {}, {0}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(run, byov, record, name):
    before, environment, allowed = ENVIRONMENTS[name]
    commands = ((*EXTRACT, "--overwrite"), TRAIN, EVALUATE, ("runs",), ("cache", "ls"))
    codes = run(commands, before, **environment)
    unexpected = [code for code in codes if code not in allowed]
    failed = [*unexpected, *range(len(commands) - len(codes))]
    verified = byov("cache", "verify")
    record("unusual environment", len(commands), failed or [verified.out] * verified.code)
    assert not failed
    assert verified.code == 0, verified
