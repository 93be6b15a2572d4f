"""Tests of losses and gradients against the published code, on synthetic embeddings; see
tests/golden.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from byov.train.methods.actor_observer import (
    LOSS_DECAY,
    RunningMeans,
    ScoreHeads,
    triplet_losses,
    weighted_triplet_loss,
)
from byov.train.methods.ae2_alignment import SCALE, ae2_losses, take_half
from byov.train.methods.carl import sequence_contrastive_loss
from byov.train.methods.gta import gta_losses
from byov.train.methods.tcc import tcc_loss
from byov.train.methods.tcn import npairs, positive_and_negative, semi_hard_triplets
from byov.train.soft_dtw import matching_costs, soft_dtw

GOLDEN = Path(__file__).parents[1] / "golden"
TRIPLET = ("exo", "ego_positive", "ego_negative")


def load_cases(name):
    """Load the cases in a file as a dict mapping names to (arrays, constants)."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    cases = {}
    for case, constants in json.loads(str(arrays.pop("cases"))).items():
        own = {
            key.removeprefix(f"{case}/"): value
            for key, value in arrays.items()
            if key.startswith(f"{case}/")
        }
        precision = getattr(torch, constants["precision"])
        tensors = {key: torch.from_numpy(value) for key, value in own.items()}
        cases[case] = (
            {
                key: value.to(precision) if value.is_floating_point() else value
                for key, value in tensors.items()
            },
            constants,
        )
    return cases


def assert_golden(expected, loss, **gradients):
    """Compare a loss and its gradients, with a tolerance of 1e-9 in double precision and a larger
    one in float32.
    """
    single = expected["loss"].dtype == torch.float32
    torch.testing.assert_close(
        loss.detach(), expected["loss"], rtol=0, atol=1e-5 if single else 1e-9
    )
    assert gradients.keys() == {name for name in expected if name.startswith("gradient")}
    for name, gradient in gradients.items():
        allowed = 5e-4 * expected[name].abs().max().item() if single else 1e-9
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=allowed)


def assert_clips_golden(golden, loss_of):
    """Compare the loss of clips (1, T, D) and its gradients with the golden values."""
    names = [name for name in golden if name.startswith("embeddings_")]
    clips = [golden[name][None].requires_grad_() for name in names]
    loss = loss_of(clips)
    gradients = torch.autograd.grad(loss, clips)
    assert_golden(
        golden,
        loss,
        **{
            name.replace("embeddings", "gradient"): grad[0]
            for name, grad in zip(names, gradients, strict=True)
        },
    )


def no_padding(clips):
    return torch.zeros(clips.shape[:2], dtype=torch.bool)


TCN = load_cases("tcn")


@pytest.mark.parametrize("case", ["npairs", "npairs_unit_norm", "npairs_labels"])
def test_npairs(case):
    golden, constants = TCN[case]
    anchors, positives = (golden[name][None].requires_grad_() for name in ("anchors", "positives"))
    labels = golden["labels"][None] if "labels" in golden else None
    loss = npairs(
        anchors,
        positives,
        no_padding(anchors),
        regularization=constants["reg_lambda"],
        labels=labels,
    )
    loss.backward()
    assert_golden(
        golden, loss, gradient_anchors=anchors.grad[0], gradient_positives=positives.grad[0]
    )


def test_triplets_of_one_view():
    golden, constants = TCN["triplet_one_view"]
    embeddings = golden["embeddings"][None].requires_grad_()
    pairs = positive_and_negative(
        golden["timesteps"][None], constants["pos_radius"], constants["neg_radius"]
    )
    loss = semi_hard_triplets(
        embeddings, *pairs, no_padding(embeddings), margin=constants["margin"]
    )
    loss.backward()
    assert_golden(golden, loss, gradient=embeddings.grad[0])


def test_triplets_of_two_views():
    golden, constants = TCN["triplet_two_views"]
    views = [golden[name][None].requires_grad_() for name in ("anchors", "positives")]
    embeddings = torch.cat(views, dim=1)
    pairs = positive_and_negative(golden["labels"].repeat(2)[None], 0, 0)
    loss = semi_hard_triplets(
        embeddings, *pairs, no_padding(embeddings), margin=constants["margin"]
    )
    loss.backward()
    assert_golden(
        golden, loss, gradient_anchors=views[0].grad[0], gradient_positives=views[1].grad[0]
    )


ACTOR_OBSERVER = load_cases("actor_observer")


def test_actor_observer_triplets():
    golden, _ = ACTOR_OBSERVER["ratio"]
    frames = [golden[name].requires_grad_() for name in TRIPLET]
    losses = triplet_losses(*frames)
    torch.testing.assert_close(losses, golden["each"], rtol=0, atol=1e-9)
    losses.sum().backward()
    gradients = {
        f"gradient_{name}": frame.grad for name, frame in zip(TRIPLET, frames, strict=True)
    }
    assert_golden(golden, losses.sum(), **gradients)


def test_two_steps_of_weighted_triplets():
    golden, constants = ACTOR_OBSERVER["weighted"]
    assert constants["final_decay"] == LOSS_DECAY
    means = RunningMeans(4, decay=constants["decay"]).double()
    heads = ScoreHeads(16).double()
    parameters = {
        "ego_weight": heads.ego.weight,
        "ego_bias": heads.ego.bias,
        "scales": heads.scales,
    }
    parameters |= {"exo_weight": heads.exo.weight, "exo_bias": heads.exo.bias}
    for name, parameter in parameters.items():
        parameter.data.copy_(golden[name])
    for step, videos in enumerate(constants["videos"]):
        expected = {
            name.split("/")[1]: value
            for name, value in golden.items()
            if name.startswith(f"step{step}/")
        }
        frames = {name: expected[name].requires_grad_() for name in TRIPLET}
        heads.zero_grad()
        index = torch.tensor(["abcd".index(video) for video in videos])
        loss = weighted_triplet_loss(*frames.values(), heads(*frames.values()), index, means)
        loss.backward()
        learned = frames | {
            name: parameters[name] for name in ("ego_weight", "exo_weight", "scales")
        }
        assert_golden(
            expected, loss, **{f"gradient_{name}": tensor.grad for name, tensor in learned.items()}
        )


CARL = {
    name: case
    for name, case in load_cases("carl").items()
    if case[1]["negatives"] == "single_noself"
}


@pytest.mark.parametrize("case", CARL)
def test_carl(case):
    golden, constants = CARL[case]
    clips = range(len(golden["mask"]))  # two crops of the first video, two crops of the second, ...
    embeddings = [golden[f"embeddings_{clip}"].requires_grad_() for clip in clips]
    frames = torch.stack([golden[f"frames_{clip}"] for clip in clips])
    arguments = [
        torch.stack([values[::2], values[1::2]])
        for values in (torch.stack(embeddings), frames, golden["mask"] == 0)
    ]
    loss = sequence_contrastive_loss(
        *arguments, variance=constants["variance"], temperature=constants["temperature"]
    )
    loss.backward()
    assert_golden(golden, loss, **{f"gradient_{clip}": embeddings[clip].grad for clip in clips})


TCC = {name: case for name, case in load_cases("tcc").items() if case[1]["similarity_type"] == "l2"}
TCC_LOSSES = {
    "regression_mse_var": "variance",
    "regression_mse": "mse",
    "classification": "classification",
}


@pytest.mark.parametrize("case", TCC)
def test_tcc(case):
    golden, constants = TCC[case]
    names = {"variance_lambda": "variance_weight", "label_smoothing": "label_smoothing"}
    options = {ours: constants[theirs] for theirs, ours in names.items() if theirs in constants}

    def loss_of(clips):
        pairs = [(i, i + 1) for i in range(0, len(clips), 2)]
        if constants["pairs"].startswith("every ordered pair"):
            pairs = [(i, j) for i in range(len(clips)) for j in range(len(clips)) if i != j]
        home = torch.cat([clips[i] for i, _ in pairs])
        away = torch.cat([clips[j] for _, j in pairs])
        times = [
            golden[f"frames_{i}"].double() / golden["video_lengths"][i].double() for i, _ in pairs
        ]
        return tcc_loss(
            home,
            away,
            torch.stack(times),
            no_padding(home),
            no_padding(away),
            loss=TCC_LOSSES[constants["loss_type"]],
            temperature=constants["temperature"],
            **options,
        )

    assert_clips_golden(golden, loss_of)


GTA = {
    name: case
    for name, case in load_cases("gta").items()
    if case[1]["softning"] == "dtw_prob" and case[1]["alignment_type"].endswith("consistency")
}


@pytest.mark.parametrize("case", GTA)
def test_gta(case):
    golden, constants = GTA[case]

    def loss_of(clips):
        first = torch.cat([clips[0]] * (len(clips) - 1))
        second = torch.cat(clips[1:])
        losses = gta_losses(
            first,
            second,
            no_padding(first),
            no_padding(second),
            gamma=constants["gamma_s"],
            temperature=constants["gamma_f"],
            label_smoothing=constants["label_smoothing"],
            scale=constants.get("outer_factor", 1.0),
        )
        return sum(losses)

    assert_clips_golden(golden, loss_of)


AE2 = load_cases("ae2_alignment")


@pytest.mark.parametrize("case", AE2)
def test_ae2(case):
    golden, constants = AE2[case]
    assert constants["scale_factor"] == SCALE

    def loss_of(clips):
        pairs = [(i, i + 1) for i in range(0, len(clips), 2)]
        subsets = None
        if "subset_0" in golden:
            subsets = [
                torch.stack([golden[f"subset_{pair[side]}"] for pair in pairs]) for side in (0, 1)
            ]
            if constants["cyclic_half"] is not None:
                later = torch.tensor([constants["cyclic_half"] == 1] * len(pairs))
                subsets = [take_half(subset, later) for subset in subsets]
        first = torch.cat([clips[i] for i, _ in pairs])
        second = torch.cat([clips[j] for _, j in pairs])
        alignment, hinge = ae2_losses(
            first,
            second,
            no_padding(first),
            no_padding(second),
            subsets,
            hinge_weight=constants["ratio"],
            margin=constants["beta"],
            gamma=constants["gamma_s"],
            temperature=constants["gamma_f"],
        )
        assert hinge.item() == pytest.approx(golden["weighted_hinge"].item(), rel=1e-5, abs=1e-6)
        return alignment + hinge

    assert_clips_golden(golden, loss_of)


@pytest.mark.parametrize("case", AE2)
def test_soft_dtw_costs_and_tables(case):
    golden, constants = AE2[case]
    first, second = (golden[f"embeddings_{clip}"][None] for clip in (0, 1))
    costs = matching_costs(first, second, constants["gamma_f"], no_padding(first))
    table = soft_dtw(costs, constants["gamma_s"])
    torch.testing.assert_close(costs[0], golden["cost_of_first_pair"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(table[0], golden["table_of_first_pair"], rtol=1e-5, atol=1e-5)
