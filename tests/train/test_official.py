import argparse
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from byov.errors import TrainError
from byov.train.official import load_encoder

HEADS = 4  # attention heads of the golden encoder


@pytest.fixture
def lightning(golden_state):
    """The content of a Lightning checkpoint of the published code."""
    encoder = {f"encoder.{name}": weights for name, weights in golden_state.items()}
    decoder = {"decoder.mask_token": torch.zeros(1, 1, 16), "decoder.decoder.0.norm1.weight": torch.ones(16)}
    return {
        "epoch": 299,
        "global_step": 1200,
        "pytorch-lightning_version": "1.9.0",
        "state_dict": OrderedDict(encoder | decoder),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 3}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val'}": {"best_model_score": torch.tensor(0.5), "dirpath": "x"}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-5}]}],
        "lr_schedulers": [],
        "hparams_name": "args",
        "hyper_parameters": {"args": argparse.Namespace(lr=1e-5, path=Path("data"), score=np.float64(0.5))},
        "hparams_type": argparse.Namespace,
    }


@pytest.fixture
def assert_golden(golden_encoder, make_clips):
    """assert_golden(encoder): it gives the outputs of the published encoder."""

    def check(encoder):
        for name in ("input_8", "input_5", "input_21"):
            frames = torch.from_numpy(golden_encoder[name])
            frames = frames if frames.ndim == 3 else frames[None]
            expected = golden_encoder[name.replace("input", "output")].reshape(*frames.shape[:2], -1)
            index = torch.arange(frames.shape[1]).expand(len(frames), -1)
            clips = make_clips(*frames.shape[:2], features=frames, index=index)
            with torch.no_grad():
                (found,) = encoder([clips])
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, rtol=0)
            for clip, features in enumerate(frames):
                np.testing.assert_allclose(encoder.embed(features).numpy(), expected[clip], atol=1e-5, rtol=0)

    return check


def saved(content, path, **options):
    torch.save(content, path, **options)
    return path


def refused(source, **options):
    with pytest.raises(TrainError) as caught:
        load_encoder(source, **{"heads": HEADS} | options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_published_weights_give_the_published_outputs(assert_golden, golden_state, lightning, tmp_path):
    assert_golden(load_encoder(golden_state, heads=HEADS))
    assert "pos_embed" in golden_state  # the caller's dict is not changed
    assert_golden(load_encoder(lightning["state_dict"], heads=HEADS))
    assert_golden(load_encoder(saved(lightning, tmp_path / "last.ckpt"), heads=HEADS))
    assert_golden(load_encoder(str(saved(golden_state, tmp_path / "encoder.pt")), heads=HEADS))


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize("function", ["system", "eval", "mkdir"])
@pytest.mark.parametrize("place", ["beside", "inside"])
def test_a_hostile_checkpoint_executes_nothing(lightning, tmp_path, function, place):
    trap = tmp_path / "trap"
    calls = {
        "system": Calls(os.system, f"touch {trap}"),
        "eval": Calls(eval, f"open({str(trap)!r}, 'w')"),
        "mkdir": Calls(Path.mkdir, trap),
    }
    if place == "beside":
        lightning["callbacks"] = calls[function]
    else:
        lightning["state_dict"]["encoder.norm.weight"] = calls[function]
    path = saved(lightning, tmp_path / "hostile.ckpt")
    assert not trap.exists()
    if place == "beside" and function not in ("system", "mkdir"):  # PyTorch refuses all of os, and methods
        load_encoder(path, heads=HEADS)
    else:
        refused(path)
    path.write_bytes(pickle.dumps(calls[function]))  # a plain pickle
    assert "not a readable checkpoint" in refused(path)
    assert not trap.exists()


def test_files_that_are_no_checkpoint_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("encoder\nweights\n")
    for path in (tmp_path / "notes.txt", tmp_path, tmp_path / "none.ckpt"):
        assert refused(path).startswith(f"{path}: not a readable checkpoint (")
    for content in ([1, 2], torch.zeros(3), {"state_dict": 3}, 7):
        assert "not a readable checkpoint" in refused(saved(content, tmp_path / "a.ckpt"))
    assert "not an encoder of the published code (no 'pos_embed')" in refused(saved({}, tmp_path / "a.ckpt"))
    assert refused({"weight": torch.zeros(3)}).startswith("the state dict: not an encoder of the published code (")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("pos_embed", None),
        ("pos_embed", torch.zeros(1, 8, 10)),
        ("pos_embed", torch.zeros(1, 8, 24)),
        ("embedding_layer.1.weight", None),
        ("embedding_layer.0.weight", torch.zeros(3)),
        ("encoder.1.mlp.fc2.bias", None),
        ("encoder.1.attn.qkv.weight", torch.zeros(3, 3)),
        ("head.weight", torch.zeros(16)),
        ("norm.weight", "text"),
    ],
)
def test_weights_of_another_model_are_refused(golden_state, name, weights):
    state = {key: value for key, value in golden_state.items() if key != name}
    if weights is not None:
        state[name] = weights
    assert refused(state).startswith("the state dict: not an encoder of the published code (")
    for heads in (3, 0):
        assert refused(golden_state, heads=heads) == f"{heads} heads do not divide its latent of 16"
