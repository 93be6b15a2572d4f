"""Small commands, in this process or in their own."""

from importlib.metadata import entry_points

import pytest

from byov.cli import common

SCRIPTS = {point.name: point for point in entry_points(group="console_scripts") if point.name.startswith("byov-")}
APP = """
import os, signal, sys
from byov.cli import common
from byov.cli.signals import run_in_thread
app = common.App()

@app.command()
def work() -> None:
    {body}

app()
"""


@pytest.fixture
def run_app(call):
    """run_app(function): run a command with this body in this process."""

    def run(body):
        app = common.App()
        app.command()(body)
        return call(app, "byov-work")

    return run


@pytest.fixture
def start_command(start_python):
    """Start a command that prints "ready" and then waits for its standard input."""

    def start(body, **environment):
        process = start_python(APP.format(body=body), **environment)
        assert process.stdout.readline() == "ready\n"
        return process

    return start
