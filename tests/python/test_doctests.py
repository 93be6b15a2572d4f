"""The doctests of the public API."""

import doctest
from importlib import import_module

import pytest

import byov


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", ["byov", "byov.folders", *sorted({*byov._MODULES.values()} - {"byov.errors"})])
def test_doctests(name):
    module = import_module(name)
    result = doctest.testmod(module, extraglobs={"byov": byov}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0 or name == "byov.evaluate.tasks"
