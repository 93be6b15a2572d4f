"""That cycles with an order prior bring two views together that have nothing in common at first."""

import json

import pytest
import torch

from byov.train.feature_store import open_training_data
from byov.train.method_settings import choose
from byov.train.run import Machine, train_run


@pytest.mark.slow
def test_views_with_a_gap_are_aligned(tmp_path, load_benchmark):
    load_benchmark("view_gap").write_toy(tmp_path / "features")
    source = open_training_data(tmp_path / "features", None, None, 0.3)
    settings = choose(
        "toy",
        recipe="cycle",
        position="none",
        attention_window=10,
        crop=(1.0, 1.0),
        cycle=50.0,
        order_prior=0.15,
        latent=64,
        depth=2,
        decoder_depth=1,
        heads=4,
        epochs=60,
        batch_size=4,
        lr=1e-3,
        select="both",
    )
    machine = Machine(torch.device("cpu"), preload_bytes=1 << 30, checkpoint_every=60)
    learned = train_run(tmp_path / "run", source, settings, machine, resume=False)["validation"]
    untrained = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert learned["retrieval"] > untrained["retrieval"] + 0.3
    assert learned["trimmed"] > untrained["trimmed"] + 0.15
    assert learned["tau"] > untrained["tau"] + 0.4
