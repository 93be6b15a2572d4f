import pytest

from byov.device import pick_device
from byov.errors import ByovError


def test_a_device_that_is_not_there_is_refused():
    assert pick_device("cpu").type == "cpu"
    for device in ("cuda", "mps"):
        if pick_device("auto").type != device:
            with pytest.raises(ByovError, match=f"--device {device}: PyTorch finds none here"):
                pick_device(device)
