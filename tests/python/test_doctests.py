"""The examples of the Python interface's own docstrings are true."""

import doctest
from importlib import import_module

import pytest

import byov


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", ["byov", "byov.folders", *sorted({*byov._HOMES.values()} - {"byov.errors"})])
def test_examples_are_true(name):
    module = import_module(name)
    ran = doctest.testmod(module, extraglobs={"byov": byov}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert ran.failed == 0
    assert ran.attempted > 0 or name == "byov.evaluate.tasks"
