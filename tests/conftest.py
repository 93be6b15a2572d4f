"""Fixtures that run commands in this process, or scripts in processes of their own."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import h5py
import pytest
from tests.processes import ENVIRONMENT as PLAIN_ENVIRONMENT
from tests.processes import Command, Ran

from byov.cache.digests import array_sha256, json_sha256
from byov.cache.hdf5 import read_attributes, stored_attribute

ENVIRONMENT = PLAIN_ENVIRONMENT | {"PYTHONWARNINGS": "error"}


def pytest_collection_modifyitems(items):
    """Run files with slow tests first, so that all processes finish at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def default_folders(monkeypatch):
    for variable in ("BYOV_RUNS", "BYOV_FEATURES", "BYOV_DATASETS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def one_torch_thread():
    """Small models gain nothing from more threads, and the number of threads can change the last bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def call():
    """call(main, name, *arguments): run a command in this process, where PyTorch is already imported."""

    def run(main, name, *arguments):
        out, err = io.StringIO(), io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before, sys.argv = sys.argv, [name, *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main()
        finally:
            sys.argv = before
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def clean_environment():
    return ENVIRONMENT


@pytest.fixture
def run_python():
    """run_python(script, *arguments, **environment): run a script in a process of its own, to its end."""

    def run(script, *arguments, **environment):
        words = [sys.executable, "-c", script, *map(str, arguments)]
        env = ENVIRONMENT | environment
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env=env, check=False)

    return run


@pytest.fixture
def start_python():
    """start_python(script, *arguments, **environment): start a script, with pipes to its standard streams."""
    started = []

    def start(script, *arguments, **environment):
        words = [sys.executable, "-c", script, *map(str, arguments)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen(words, **pipes, text=True, env=ENVIRONMENT | environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_command(tmp_path):
    """start_command(words, pause_before=(text, n), ...): start a command; see Command."""
    started = []

    def start(words, **how):
        folder = tmp_path / f"command-{len(started)}"
        folder.mkdir()
        started.append(Command(folder, words, **how))
        return started[-1]

    yield start
    for command in started:
        command.kill()


@pytest.fixture
def start_paused(start_command):
    """start_paused(words, before=text): start a command that pauses before a file gets a name with the text."""

    def start(words, *, before, **environment):
        command = start_command(words, pause_before=(before, 1), environment=environment)
        assert command.paused(), command.finish()
        return command

    return start


@pytest.fixture(scope="session")
def without_rights(tmp_path_factory):
    """Words that, put before a command, make file permissions apply to it even if the tests run as root."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o500)
    prefix = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("setpriv is not installed, and root may write everywhere")
    touched = subprocess.run([*prefix, "touch", str(closed / "file")], capture_output=True, text=True, check=False)
    if "Permission denied" not in touched.stderr:
        pytest.skip(f"permissions are not enforced here: {touched.stderr.strip()}")
    return prefix


@pytest.fixture
def edit_h5():
    """edit_h5(path): open an HDF5 file to forge it, then update its digests; values=True: also those of its arrays."""

    @contextlib.contextmanager
    def edit(path, *, values=False):
        with h5py.File(path, "r+", locking=False) as file:
            yield file
            # Attributes may have types that byov never writes.
            with contextlib.suppress(ValueError, TypeError, RuntimeError, KeyError):
                _update_digests(file, values=values)

    return edit


def _update_digests(file, *, values):
    attributes = read_attributes(file)
    if attributes.pop("header_sha256", None) is None:
        return
    merged = file["merged"] if isinstance(file.get("merged", getlink=True), h5py.HardLink) else ()
    names = sorted([*(f"merged/{name}" for name in merged), *(name for name in file if name != "merged")])
    recorded = json.loads(attributes["columns"])
    digests = {name: array_sha256(file[name][:]) if values else recorded.get(name, "") for name in names}
    attributes["columns"] = json.dumps(digests)
    attributes["header_sha256"] = json_sha256(attributes)
    for name in ("columns", "header_sha256"):
        file.attrs[name] = stored_attribute(attributes[name])
