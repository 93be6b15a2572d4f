"""Load encoders trained with the published BYOV code.

Its Lightning checkpoints are pickles. They are read with `weights_only=True`, with a stub for all classes they name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from byov.errors import TrainError
from byov.train.networks import Encoder

_PREFIX = "encoder."  # prefix of the encoder's parameters in a Lightning checkpoint
_RENAMED = (
    ("embedding_layer.", "project."),
    ("encoder.", "blocks."),
    (".attn.qkv.", ".qkv."),
    (".attn.proj.", ".proj."),
    (".mlp.fc", ".fc"),
)


def load_encoder(state_dict_or_ckpt_path: Mapping[str, Tensor] | str | Path, heads: int = 16) -> Encoder:
    """Load a published encoder.

    Args:
        state_dict_or_ckpt_path: State dict of the encoder or of the whole model, or a checkpoint file.
        heads: Number of attention heads, which the weights do not contain.

    Raises:
        TrainError: If the file cannot be read or holds another model.
    """
    if isinstance(state_dict_or_ckpt_path, Mapping):
        state, source = dict(state_dict_or_ckpt_path), "the state dict"
    else:
        state, source = _read_checkpoint(Path(state_dict_or_ckpt_path)), str(state_dict_or_ckpt_path)
    if f"{_PREFIX}pos_embed" in state:
        state = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
    try:
        positions = state.pop("pos_embed")
        latent, width = state["embedding_layer.1.weight"].shape
        if type(heads) is not int or heads < 1 or latent % heads:
            raise TrainError(f"{heads} heads do not divide its latent of {latent}")
        depth = len({name.split(".")[1] for name in state if name.startswith("encoder.")})
        encoder = Encoder(
            width=width, latent=latent, depth=depth, heads=heads, frames=positions.shape[-2], norm="before"
        )
        for theirs, ours in _RENAMED:
            state = {name.replace(theirs, ours, 1): value for name, value in state.items()}
        encoder.load_state_dict(state)
        table = encoder.positions.table
        if not torch.allclose(positions.float().reshape(table.shape), table, atol=1e-3):  # float16 rounds by 5e-4
            raise ValueError("its position table is not the fixed sine-cosine table")
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
        raise TrainError(f"{source}: not an encoder of the published code ({reason})") from error
    return encoder.eval()


class _Stub:
    """Stands for any class or function that a checkpoint names and a state dict does not need."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        with torch.serialization.safe_globals([(_Stub, name) for name in unknown]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        state = checkpoint.get("state_dict", checkpoint)
        if not isinstance(state, Mapping):
            raise ValueError("no state dict")
        return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    except Exception as error:  # a damaged file can raise anything; PyTorch's messages advise to load it unsafely
        raise TrainError(f"{path}: not a readable checkpoint ({type(error).__name__})") from error
