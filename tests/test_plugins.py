"""Tests of plug-ins from other packages, found through entry points."""

import math
import sys

import pytest

from byov import plugins
from byov.plugins import Registry


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package named `sample` with entry points in the
    byov.samples group.
    """

    def write(source, *entries):
        (tmp_path / "sample.py").write_text(source)
        info = tmp_path / "sample-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(["[byov.samples]", *entries]))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "sample", raising=False)
        monkeypatch.setattr(plugins, "PROBLEMS", [])

    return write


def test_plug_ins_come_after_the_built_in_objects(install):
    install("value = 2", "second = sample:value")
    registry = Registry("byov.samples", {"first": 1})
    assert dict(registry) == {"first": 1, "second": 2}
    assert len(registry) == 2
    assert plugins.PROBLEMS == []


def test_built_in_objects_may_be_loaded_on_first_use(install):
    install("value = 2", "second = sample:value")
    assert dict(Registry("byov.samples", {"first": "math:pi"})) == {"first": math.pi, "second": 2}


@pytest.mark.parametrize(
    ("source", "entry", "reason"),
    [
        ("value = 2", "first = sample:value", "taken"),
        ("value = 2", "second = sample:other", "other"),
        ("import nowhere_to_be_found", "second = sample:value", "nowhere_to_be_found"),
        ("raise SyntaxError('two\\nlines')", "second = sample:value", "two lines"),
        ("value = 'text'", "second = sample:value", "not a number"),
        ("import sys; sys.exit('bye')", "second = sample:value", "bye"),
        ("raise KeyboardInterrupt", "second = sample:value", "KeyboardInterrupt"),
    ],
)
def test_unusable_plug_ins_are_skipped_and_named_in_one_line(install, source, entry, reason):
    def check(_, value):
        if not isinstance(value, int):
            raise ValueError("not a number")

    install(source, entry)
    assert dict(Registry("byov.samples", {"first": 1}, check)) == {"first": 1}
    (line,) = plugins.PROBLEMS
    assert entry in line
    assert "of sample" in line
    assert reason in line
    assert "\n" not in line
