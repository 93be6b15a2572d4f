"""What stands between a baseline's settings and clips and its pure loss: every setting arrives, and every fact too."""

import pytest
import torch
import torch.nn.functional as F

from byov.train.methods.actor_observer import RunningMeans, triplet_losses, weighted_loss
from byov.train.methods.ae2_alignment import ae2_losses
from byov.train.methods.carl import sequence_contrast
from byov.train.methods.gta import gta_losses
from byov.train.methods.tcc import cycle_back
from byov.train.methods.tcn import near_and_far, npairs, semi_hard_triplets

TRIPLETS = {"tcn_loss": "triplet", "frames": 20}
MOVED = {"crop": (0.4, 0.8)}  # clips that do not begin where their videos do


def seeded():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("method", "given", "setting", "value"),
    [
        ("tcc", {}, "tcc_loss", "mse"),
        ("tcc", {}, "tcc_loss", "classification"),
        ("tcc", {}, "similarity", "dot"),
        ("tcc", {}, "temperature", 0.5),
        ("tcc", {}, "variance_weight", 0.1),
        ("tcc", {"tcc_loss": "classification"}, "smoothing", 0.3),
        ("gta", {}, "unnormalized", True),
        ("gta", {}, "temperature", 0.5),
        ("gta", {}, "gamma", 0.5),
        ("gta", {}, "smoothing", 0.3),
        ("gta", {}, "path_weight", 0.5),
        ("ae2-alignment", {}, "contrastive", False),
        ("ae2-alignment", {}, "subset", 3),
        ("ae2-alignment", {}, "margin", 1.0),
        ("ae2-alignment", {"margin": 1.0}, "reversed_weight", 3.0),
        ("ae2-alignment", {}, "halves", True),
        ("ae2-alignment", {}, "temperature", 0.5),
        ("ae2-alignment", {}, "gamma", 0.5),
        ("carl", {}, "variance", 2.0),
        ("carl", {}, "temperature", 0.5),
        ("carl", {}, "feature_dropout", 0.5),
        ("tcn", {}, "regularization", 1.0),
        ("tcn", TRIPLETS, "margin", 0.5),
        ("tcn", TRIPLETS, "positive_radius", 2),
        ("tcn", TRIPLETS, "negative_radius", 8),
        ("actor-observer", {}, "weighted", False),
        ("actor-observer", {}, "decay", 0.5),
        ("actor-observer", {}, "means", "video"),
    ],
)
def test_a_setting_of_the_loss_changes_it(make_method, make_batches, training_data, method, given, setting, value):
    usual, other = (
        make_method(method, width=training_data.width, **(given | changed)) for changed in ({}, {setting: value})
    )
    clips = make_batches(usual).batch(0)
    other.sampler(training_data.of("train"))  # which makes what it remembers
    other.load_state_dict(usual.state_dict(), strict=False)
    with torch.no_grad():
        assert usual(clips, seeded())["loss"] != other(clips, seeded())["loss"]


@pytest.mark.parametrize(
    ("method", "given", "setting", "value"),
    [
        ("tcc", {}, "crop", (0.4, 0.8)),
        ("tcc", {}, "pairs", "views"),
        ("carl", {}, "overlap", 0.9),
        ("tcn", {}, "crop", (0.4, 0.8)),
        ("tcn", {}, "window", 1),
        ("tcn", {"tcn": "multi"}, "span", 8),
        ("tcn", TRIPLETS, "crop", (0.4, 0.8)),
        ("actor-observer", {}, "every", 2),
        ("actor-observer", {}, "far", 0.6),
    ],
)
def test_a_setting_of_the_clips_changes_them(make_method, training_data, method, given, setting, value):
    def drawn(**changed):
        sampler = make_method(method, width=training_data.width, **(given | changed)).sampler(training_data.of("train"))
        return [
            [(draw.video.id, draw.first, draw.end, draw.rows.tolist()) for draw in sampler.draw(0, 0, item)]
            for item in range(20)
        ]

    assert drawn() != drawn(**{setting: value})


def test_pairs_of_any_two_videos_are_not_bound_by_the_span(make_method, training_data):
    def drawn(span):
        sampler = make_method("tcn", width=training_data.width, tcn="unpaired", span=span).sampler(
            training_data.of("train")
        )
        return [[draw.rows.tolist() for draw in sampler.draw(0, 0, item)] for item in range(20)]

    assert drawn(580) == drawn(8)


@pytest.fixture
def of_clips(make_method, make_batches, training_data):
    """of_clips(method, **settings): the model, the first batch that has padding and clips amid their videos, its z."""

    def make(method, **settings):
        model = make_method(method, width=training_data.width, **settings)
        batches = make_batches(model)
        for step in range(50):
            clips, random = batches.batch(step), seeded()
            if any(clip.repeated.any() for clip in clips):
                break
        assert any(clip.repeated.any() and not clip.repeated.all(dim=1).any() for clip in clips)
        with torch.no_grad():
            z = model.backbone(clips, random)
        return model, clips, z, random

    return make


def loss_of(model, clips):
    with torch.no_grad():
        return model(clips, seeded())["loss"]


def test_tcc_goes_both_ways_by_the_shares_of_whole_videos(of_clips):
    model, clips, z, _ = of_clips("tcc", **MOVED)
    times = [clip.frame / clip.video_length[:, None] for clip in clips]
    assert any((clip.first > 0).any() for clip in clips)
    there = cycle_back(z[0], z[1], times[0], clips[0].repeated, clips[1].repeated)
    back = cycle_back(z[1], z[0], times[1], clips[1].repeated, clips[0].repeated)
    assert there != back
    torch.testing.assert_close(loss_of(model, clips), (there + back) / 2)


def test_gta_aligns_unit_vectors_without_padding(of_clips):
    model, clips, z, _ = of_clips("gta", **MOVED)
    units = [F.normalize(latents, dim=-1) for latents in z]
    torch.testing.assert_close(loss_of(model, clips), gta_losses(*units, *(clip.repeated for clip in clips))[0])


def test_ae2_aligns_raw_vectors_and_random_frames_of_each_clip(of_clips):
    model, clips, z, random = of_clips("ae2-alignment", **MOVED)
    expected = ae2_losses(*z, *(clip.repeated for clip in clips), model.positions(clips, random))[0]
    torch.testing.assert_close(loss_of(model, clips), expected)


def test_ae2_draws_other_frames_and_either_half(of_clips):
    model, clips, _, _ = of_clips("ae2-alignment", subset=4)
    drawn = [model.positions(clips, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert len({str(positions[0][0].tolist()) for positions in drawn}) > 3
    halved, clips, _, _ = of_clips("ae2-alignment", subset=6, halves=True)  # of all six frames
    longest = max(range(len(clips[0].features)), key=lambda item: (~clips[0].repeated[item]).sum())
    halves = {
        str(halved.positions(clips, torch.Generator().manual_seed(seed))[0][longest].tolist()) for seed in range(20)
    }
    assert halves == {"[0, 1, 2]", "[3, 4, 5]"}


def test_carl_compares_frames_by_their_numbers_in_the_video(of_clips):
    model, clips, z, _ = of_clips("carl", frames=12)
    with torch.no_grad():
        projected = model.projection(torch.cat(z).flatten(0, 1)).unflatten(0, (-1, clips[0].sampled))
    first, second = F.normalize(projected, dim=-1).chunk(2)
    facts = [*(clip.frame for clip in clips), *(clip.repeated for clip in clips)]
    torch.testing.assert_close(loss_of(model, clips), sequence_contrast(first, second, *facts))
    assert any((clip.first > 0).any() for clip in clips)


def test_tcn_of_one_view_finds_the_frame_before(of_clips):
    model, clips, z, _ = of_clips("tcn", **MOVED)
    torch.testing.assert_close(loss_of(model, clips), npairs(*z, clips[0].repeated))


@pytest.mark.parametrize("tcn", ["multi", "unpaired"])
def test_ego_frames_of_one_exo_frame_are_one_moment_to_tcn(make_method, make_clips, tcn):
    model = make_method("tcn", tcn=tcn, context=0)
    ego = make_clips(1, 6, seed=1)
    exo = make_clips(1, 6, seed=2, index=torch.tensor([[0, 0, 1, 2, 2, 2]]), length=torch.tensor([3]))
    with torch.no_grad():
        swapped = (ego.rand(6, random=seeded_after(model, (ego, exo))) < 0.5)[..., None]
        z = model.backbone((ego, exo), seeded())
        anchors, positives = torch.where(swapped, z[1], z[0]), torch.where(swapped, z[0], z[1])
        expected = npairs(anchors, positives, ego.repeated, labels=exo.index)
        torch.testing.assert_close(loss_of(model, (ego, exo)), expected)
        assert expected != npairs(anchors, positives, ego.repeated)


def seeded_after(model, clips):
    """The generator as the backbone leaves it."""
    random = seeded()
    model.backbone(clips, random)
    return random


@pytest.mark.parametrize("tcn", ["single", "multi"])
def test_triplets_of_tcn_are_by_frames_or_by_moments(of_clips, tcn):
    model, clips, z, _ = of_clips("tcn", tcn=tcn, **TRIPLETS)
    if tcn == "single":
        near, far = near_and_far(clips[0].frame)
    else:
        near, far = near_and_far(clips[1].index.repeat(1, 2), positive_radius=0, negative_radius=0)
    padding = torch.cat([clip.repeated for clip in clips], dim=1)
    expected = semi_hard_triplets(F.normalize(torch.cat(z, dim=1), dim=-1), near, far, padding)
    torch.testing.assert_close(loss_of(model, clips), expected)


def test_the_plain_triplets_of_actor_observer_are_a_mean_of_items_without_padding(of_clips):
    model, clips, z, _ = of_clips("actor-observer", weighted=False, frames=12)
    counted = ~clips[0].repeated
    items = [triplet_losses(*(latents[item] for latents in z))[counted[item]].mean() for item in range(len(counted))]
    torch.testing.assert_close(loss_of(model, clips), torch.stack(items).mean())


def test_the_weighted_triplets_of_actor_observer_are_by_video_and_without_padding(of_clips):
    model, clips, z, _ = of_clips("actor-observer", frames=12)
    counted = ~clips[0].repeated
    videos = clips[0].video[:, None].expand_as(counted)[counted]
    assert len(videos.unique()) > 1
    triplets = [latents[counted] for latents in z]
    means = RunningMeans(5)
    with torch.no_grad():
        expected, _ = weighted_loss(*triplets, model.heads(*triplets), videos, means)
    torch.testing.assert_close(loss_of(model, clips), expected)
    for name, tensor in model.memory().items():
        torch.testing.assert_close(tensor, means.tensors()[name])
