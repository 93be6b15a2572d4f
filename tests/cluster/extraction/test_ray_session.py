"""What is refused before Ray is asked, or by Ray at once."""

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from byov.cli.extract import main
from byov.cluster.ray_session import ClusterOptions, ray_session
from byov.errors import ClusterError


@pytest.fixture
def extract(call: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """byov-extract of one's own videos, of which there are none."""
    return lambda *options: call(main, "byov-extract", "--manifest", tmp_path / "none.csv", *options)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "local", "--shard", "1/2"), "Omit --shard"),
        (("--cluster", "ray://10.0.0.1:10001"), "expected local, auto or HOST:PORT"),
        (("--cluster", "somewhere"), "expected local, auto or HOST:PORT"),
        (("--cluster", "local", "--device", "cuda"), "--gpus-per-worker"),
        (("--workers", "2"), "--workers needs --cluster"),
        (("--gpus-per-worker", "1"), "--gpus-per-worker needs --cluster"),
    ],
)
def test_options_that_do_not_go_together(extract, options, said):
    pytest.importorskip("ray")
    ran = extract(*options)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_without_ray_one_line_names_the_extra(extract, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = extract("--cluster", "local")
    assert ran.code == 2
    assert ran.err == "error: this needs Ray, which is not installed: pip install 'byov-egoexo[cluster]'\n"


def test_nobody_at_the_address():
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        pytest.raises(ClusterError, match=f"127.0.0.1:{port}: nobody answers there .*ray start"),
        ray_session(ClusterOptions(f"127.0.0.1:{port}")),
    ):
        pass
