"""Small commands that run in their own process."""

import pytest

APP = """
import os, signal, sys
from byov.cli import common
from byov.cli.signals import deferred_stop, interruptible, run_in_thread
from byov.cli.terminal import note
from byov.errors import CacheError
app = common.new_app()

@app.command()
def work() -> None:
    {body}

common.run(app)
"""


@pytest.fixture
def run_command(run_python):
    """Run a command with the given body to its end."""
    return lambda body: run_python(APP.format(body=body))


@pytest.fixture
def start_command(start_python):
    """Start a command that prints "ready" and then waits for its standard input."""

    def start(body, **environment):
        process = start_python(APP.format(body=body), **environment)
        assert process.stdout.readline() == "ready\n"
        return process

    return start
