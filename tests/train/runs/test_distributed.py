"""Tests of how a batch is split over processes; test_torchrun.py starts real processes."""

import pytest
import torch
from tests.train.runs.run_files import train_run

from byov.errors import TrainError
from byov.train.distributed import SINGLE_PROCESS, Processes, init_processes
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.methods.base import build_method, training_batches
from byov.train.registry import resolve


@pytest.mark.parametrize("items", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_partitions_cover_all_items_evenly(items, world_size):
    parts = [Processes(rank, world_size).local_items(items) for rank in range(world_size)]
    assert [item for part in parts for item in part] == list(range(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("method", "options"),
    [("byov", {"recipe": "cycle"}), ("timeline", {"clips": 4, "backbone": "encoder"})],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_local_batches_are_parts_of_the_whole_batch(cache, method, options, world_size):
    data = open_training_data(cache.parent, None, None, 0.3)
    config = resolve(
        method, "toy", {"frames": 8, "latent": 16, "heads": 2, "batch_size": 3, **options}
    )
    model = build_method(data.width, config)

    def batches(local):
        store = FeatureStore(data, (), 0)
        return training_batches(model, data.split("train"), store, config, local)

    whole = batches(SINGLE_PROCESS.local_items)
    for step in range(whole.steps_per_epoch * 2):
        expected = whole.batch(step)
        for rank in range(world_size):
            items = Processes(rank, world_size).local_items(expected[0].items)
            source = batches(Processes(rank, world_size).local_items)
            taken = items or range(1)  # a process without items uses the first one, with weight 0
            for clips, whole_clips in zip(source.batch(step), expected, strict=True):
                assert torch.equal(clips.features, whole_clips.features[taken.start : taken.stop])
                assert (clips.first_item, clips.items) == (taken.start, whole_clips.items)


def test_processes_come_from_the_environment_of_torchrun(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert init_processes.__wrapped__() is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert init_processes.__wrapped__() is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainError, match="LOCAL_RANK"):
        init_processes.__wrapped__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "carl", "batch_size": 2}, "carl cannot be trained in several processes"),
        (
            {"method": "actor-observer", "batch_size": 2},
            "actor-observer cannot be trained in several processes",
        ),
        ({"batch_size": 1}, "--batch-size 1 is less than"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(cache, run, options, message):
    with pytest.raises(TrainError, match=message):
        train_run(
            "toy",
            features_dir=cache.parent,
            runs_dir=run.parent,
            processes=Processes(0, 2),
            **options,
        )
    assert not run.exists()
