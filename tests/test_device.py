import pytest

from byov.device import computing_threads, pick_device, usable_cores
from byov.errors import ByovError


def test_a_device_that_is_not_there_is_refused():
    assert pick_device("cpu").type == "cpu"
    for device in ("cuda", "mps"):
        if pick_device("auto").type != device:
            with pytest.raises(ByovError, match=f"--device {device}: not available"):
                pick_device(device)


@pytest.mark.parametrize(
    ("said", "threads"), [("1", 1), ("100000", usable_cores()), ("0", usable_cores()), ("a", usable_cores())]
)
def test_a_process_computes_with_its_share_of_the_cores(monkeypatch, said, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert computing_threads() == threads
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert computing_threads() == usable_cores()
