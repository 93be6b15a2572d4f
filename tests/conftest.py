"""Fixtures that run commands in this process, or commands and scripts in separate processes."""

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
from tests.ray_processes import RayProcesses, TwoMachines

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
    """Use one PyTorch thread: more threads do not speed up small models and can change the last
    bit.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def call():
    """Return a function that runs a command in this process, where PyTorch is already imported."""

    def run(main, name, *arguments):
        out = io.StringIO()
        err = io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = sys.argv
        sys.argv = [name, *map(str, arguments)]
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit) as ended,
            ):
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
    """Return a function that runs a Python script in a separate process and waits for it to end."""

    def run(script, *arguments, **environment):
        words = [sys.executable, "-c", script, *map(str, arguments)]
        env = ENVIRONMENT | environment
        return subprocess.run(
            words, capture_output=True, text=True, timeout=300, env=env, check=False
        )

    return run


@pytest.fixture
def start_python():
    """Return a function that starts a Python script in a new process group, with pipes to its
    standard streams.
    """
    started = []

    def start(script, *arguments, **environment):
        words = [sys.executable, "-c", script, *map(str, arguments)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        env = ENVIRONMENT | environment
        started.append(subprocess.Popen(words, **pipes, text=True, env=env, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_command(tmp_path):
    """Return a function that starts a command in a separate process; see `Command`."""
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
    """Return a function that starts a command and waits until it is about to rename a file to a
    given name.
    """

    def start(words, *, before, **environment):
        command = start_command(words, pause_before=(before, 1), environment=environment)
        assert command.paused(), command.finish()
        return command

    return start


@pytest.fixture(scope="session")
def without_rights(tmp_path_factory):
    """Command prefix that enforces file permissions even if the tests run as root."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o500)
    prefix = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("setpriv is not installed, and root may write everywhere")
    touched = subprocess.run(
        [*prefix, "touch", str(closed / "file")], capture_output=True, text=True, check=False
    )
    if "Permission denied" not in touched.stderr:
        pytest.skip(f"permissions are not enforced here: {touched.stderr.strip()}")
    return prefix


@pytest.fixture
def edit_h5():
    """Return a context manager to edit an HDF5 file and update its digests (for arrays only if
    `values` is True).
    """

    @contextlib.contextmanager
    def edit(path, *, values=False):
        with h5py.File(path, "r+", locking=False) as file:
            yield file
            # The changed attributes may have invalid types.
            with contextlib.suppress(ValueError, TypeError, RuntimeError, KeyError):
                _update_digests(file, values=values)

    return edit


def _update_digests(file, *, values):
    attributes = read_attributes(file)
    if attributes.pop("header_sha256", None) is None:
        return
    merged = file["merged"] if isinstance(file.get("merged", getlink=True), h5py.HardLink) else ()
    names = sorted(
        [*(f"merged/{name}" for name in merged), *(name for name in file if name != "merged")]
    )
    recorded = json.loads(attributes["columns"])
    digests = {
        name: array_sha256(file[name][:]) if values else recorded.get(name, "") for name in names
    }
    attributes["columns"] = json.dumps(digests)
    attributes["header_sha256"] = json_sha256(attributes)
    for name in ("columns", "header_sha256"):
        file.attrs[name] = stored_attribute(attributes[name])


@pytest.fixture(scope="module")
def ray():
    processes = RayProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def machines(ray):
    machines = TwoMachines(ray)
    yield machines
    machines.close()
