"""Fixtures that run small commands in this process or in a subprocess."""

from importlib.metadata import entry_points

import pytest

from byov.cli.app import App

SCRIPTS = {
    point.name: point
    for point in entry_points(group="console_scripts")
    if point.name.startswith("byov-")
}
APP = """
import os, signal, sys
from byov.cli.app import App
from byov.cli.signals import interruptible
app = App()

@app.command()
def work() -> None:
    {body}

app()
"""


@pytest.fixture
def run_app(call):
    """Run a function as a command in this process."""

    def run(body):
        app = App()
        app.command()(body)
        return call(app, "byov-work")

    return run


@pytest.fixture
def start_command(start_python):
    """Start a command in a subprocess and wait until it prints "ready"."""

    def start(body, **environment):
        process = start_python(APP.format(body=body), **environment)
        assert process.stdout.readline() == "ready\n"
        return process

    return start
