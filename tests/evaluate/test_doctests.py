import doctest
from importlib import import_module

import pytest

MODULES = ("classification", "frames", "kendalls_tau", "progress_error", "progression", "retrieval")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    ran = doctest.testmod(import_module(f"byov.evaluate.{name}"))
    assert ran.attempted > 0
    assert ran.failed == 0
