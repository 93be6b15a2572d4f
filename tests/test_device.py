import pytest

from byov.device import computing_threads, pick_device, usable_cores
from byov.errors import ByovError


def test_unavailable_devices_are_rejected():
    assert pick_device("cpu").type == "cpu"
    for device in {"cuda", "mps"} - {pick_device("auto").type}:
        with pytest.raises(ByovError, match=f"--device {device} is not available"):
            pick_device(device)


@pytest.mark.parametrize(
    ("variable", "threads"),
    [("1", 1), ("100000", usable_cores()), ("0", usable_cores()), ("a", usable_cores())],
)
def test_omp_num_threads_limits_the_threads(monkeypatch, variable, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert computing_threads() == threads
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert computing_threads() == usable_cores()
