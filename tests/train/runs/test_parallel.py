"""Which part of each step a process takes; the processes themselves are in test_torchrun.py."""

import pytest
import torch

from byov.errors import TrainError
from byov.train.distributed import ALONE, Place, join, place
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.methods import build_method
from byov.train.sampling import BatchSource
from byov.train.settings import resolve_settings

VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


class CountingStore(FeatureStore):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen = []

    def read(self, video):
        self.seen.append(video.id)
        return super().read(video)


@pytest.mark.parametrize("items", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_item_is_taken_once_and_in_order(items, size):
    parts = [Place(rank, size, rank, size).own(items) for rank in range(size)]
    assert [item for part in parts for item in part] == list(range(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("method", "options"), [("byov", {"recipe": "cycle"}), ("timeline", {"clips": 2})])
@pytest.mark.parametrize("size", [2, 3])
def test_the_parts_of_a_step_are_the_step(cache, method, options, size):
    data = open_training_data(cache.parent, None, None, 0.3)
    settings = resolve_settings(method, "toy", {"frames": 8, "latent": 16, "heads": 2, "batch_size": 3} | options)
    built = build_method(data.width, settings)

    def batches(own):
        store = CountingStore(data, (), 0)
        sampler = built.sampler(data.of("train"))
        return store, BatchSource(sampler, store, seed=0, batch_size=3, prepare=built.prepare, local_items=own)

    _, whole = batches(ALONE.own)
    for step in range(2 * whole.steps_per_epoch):
        expected = whole.batch(step)
        for rank in range(size):
            own = Place(rank, size, rank, size).own(expected[0].items)
            store, source = batches(Place(rank, size, rank, size).own)
            part = source.batch(step)
            taken = own or range(1)  # one stands in where there is none
            assert len(store.seen) == len(taken) * len(part)
            for clips, of_all in zip(part, expected, strict=True):
                assert torch.equal(clips.features, of_all.features[taken.start : taken.stop])
                assert (clips.first_item, clips.items) == (taken.start, of_all.items)
                drawn, all_drawn = (c.rand(4, random=torch.Generator().manual_seed(step)) for c in (clips, of_all))
                assert torch.equal(drawn, all_drawn[taken.start : taken.stop])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("byov", {"recipe": "official"}),
        ("byov", {"recipe": "cycle", "order_prior": 0.2}),
        ("timeline", {"clips": 2}),
    ],
)
@pytest.mark.parametrize("frames", [8, 30])  # of which some videos have fewer
@pytest.mark.parametrize("size", [2, 3])
def test_losses_and_gradients_are_the_weighted_means_of_the_parts(write_cache, method, options, frames, size):
    data = open_training_data(write_cache(train=(4, 3)).parent, None, None, 0.3)
    settings = resolve_settings(
        method, "toy", {"frames": frames, "latent": 16, "depth": 1, "heads": 2, "batch_size": 4} | options
    )
    built = build_method(data.width, settings)

    def losses_and_gradients(own):
        store = FeatureStore(data, data.of("train"), 2**30)
        sampler = built.sampler(data.of("train"))
        batch = BatchSource(sampler, store, seed=0, batch_size=4, prepare=built.prepare, local_items=own).batch(1)
        built.zero_grad()
        losses = built(batch, torch.Generator().manual_seed(5))
        losses["loss"].backward()
        found = [loss.detach() for loss in losses.values()] + [p.grad.clone() for p in built.parameters()]
        return found, batch[0].items

    whole, items = losses_and_gradients(ALONE.own)
    places = [Place(rank, size, rank, size) for rank in range(size)]
    parts = [losses_and_gradients(place.own)[0] for place in places]
    shares = [len(place.own(items)) / items for place in places]
    for expected, *found in zip(whole, *parts, strict=True):
        total = sum(share * part for share, part in zip(shares, found, strict=True))
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


def test_without_torchrun_there_is_one_process(monkeypatch):
    assert place() is None
    assert join.__wrapped__() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert place() is None


def test_the_place_is_what_torchrun_says(monkeypatch):
    for variable, value in zip(VARIABLES, "4312", strict=True):
        monkeypatch.setenv(variable, value)
    assert place() == Place(rank=3, size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize(("values", "said"), [({"WORLD_SIZE": "2"}, "RANK is not set"), ({"WORLD_SIZE": "x"}, "'x'")])
def test_half_an_environment_is_an_error(monkeypatch, values, said):
    for variable, value in values.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(TrainError, match=said):
        place()
