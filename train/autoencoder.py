"""The masked ego-exo autoencoder: B clips, T frames, width of the features, D latent dimensions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from torch import Tensor, nn

from byov.errors import TrainError
from byov.train.checkpoint import load_weights
from byov.train.model_card import card_text
from byov.train.packing import group, pack, unpack, within
from byov.train.positions import Positions
from byov.train.settings import Norm, Position, Standardize
from byov.train.standardize import standardized
from byov.train.transformer import Block


class Encoder(nn.Module):
    """Frame features → latents. Positions are added to the features, before the projection."""

    def __init__(
        self,
        *,
        width: int,
        latent: int,
        depth: int,
        heads: int,
        frames: int,
        position: Position = "interpolated",
        norm: Norm = "after",
        attention_window: int | None = None,
    ) -> None:
        super().__init__()
        self.norm_first, self.attention_window = norm == "before", attention_window
        self.positions = Positions(frames, width, position)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(latent)

    def forward(self, sequences: Sequence[Tensor], frame_index: Sequence[Tensor]) -> list[Tensor]:
        """Latents of several sequences of placed frames, (B, T_i, width) each, in one pass; none sees another.

        frame_index: (B, T_i) number of each frame in its clip.
        """
        groups = group(sequences)
        if self.attention_window is not None:
            groups = within(groups, pack(frame_index), self.attention_window)
        x = self._enter(pack(sequences))
        for block in self.blocks:
            x = block(x, groups)
        return unpack(self._leave(x), sequences)

    def place(self, frames: Tensor, frame_index: Tensor) -> Tensor:
        """(B, T, width) features with their positions added."""
        placed: Tensor = frames + self.positions(frame_index)
        return placed

    @torch.no_grad()
    def embed(self, frames: Tensor) -> Tensor:
        """(T, width) features of a whole clip → (T, D); T may be large."""
        frame_index = torch.arange(len(frames), device=frames.device)[None]
        x = self._enter(self.place(frames[None], frame_index)[0])
        for block in self.blocks:
            assert isinstance(block, Block)
            x = block.forward_long(x, self.attention_window)
        return self._leave(x)

    def _enter(self, placed: Tensor) -> Tensor:
        x: Tensor = self.project(placed)
        return self.norm(x) if self.norm_first else x

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.norm_first else self.norm(x)


class Decoder(nn.Module):
    """Latents and mask tokens → frame features."""

    def __init__(self, *, width: int, latent: int, depth: int, heads: int, frames: int, position: Position) -> None:
        super().__init__()
        # Mask tokens differ by nothing but their positions, so there are always some.
        self.positions = Positions(frames, latent, "index" if position == "index" else "interpolated")
        self.project = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, latent))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, latent))
        self.blocks = nn.ModuleList(Block(latent, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(latent), nn.Linear(latent, width))

    def place(self, tokens: Tensor, frame_index: Tensor) -> Tensor:
        placed: Tensor = tokens + self.positions(frame_index)
        return placed

    def forward(self, sequences: Sequence[Tensor], causal: Sequence[bool]) -> list[Tensor]:
        """Several sequences of placed tokens, (B, T_i, D) each, in one pass; none sees another."""
        groups = group(sequences, causal)
        x = pack(sequences)
        for block in self.blocks:
            x = block(x, groups)
        return unpack(x, sequences)

    def reconstruct(self, tokens: Tensor) -> Tensor:
        """(B, T, D) decoded tokens → (B, T, width) frame features."""
        frames: Tensor = self.head(tokens)
        return frames


class Autoencoder(nn.Module, PyTorchModelHubMixin, library_name="byov", tags=["ego-exo", "video"], license="mit"):
    """Encoder and decoder; `from_pretrained`, `save_pretrained` and `push_to_hub` as usual.

    training: what the model was trained on and how; carried along in config.json, used by nothing here.
    """

    def __init__(
        self,
        width: int = 768,
        latent: int = 256,
        depth: int = 12,
        decoder_depth: int = 4,
        heads: int = 16,
        frames: int = 32,
        position: Position = "interpolated",
        norm: Norm = "after",
        attention_window: int | None = None,
        standardize: Standardize = "none",
        training: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_choice("position", position, Position)
        _check_choice("norm", norm, Norm)
        _check_choice("standardize", standardize, Standardize)
        if attention_window is not None and (type(attention_window) is not int or attention_window < 1):
            raise TrainError(f"attention_window is {attention_window!r}; it must be a number of frames, or None")
        if not isinstance(training, dict | None):
            raise TrainError(f"training is {training!r}; it must be a mapping, or None")
        _check_sizes(width=width, latent=latent, depth=depth, decoder_depth=decoder_depth, heads=heads, frames=frames)
        self.width, self.latent, self.standardize, self.record = width, latent, standardize, training or {}
        self.encoder = Encoder(
            width=width,
            latent=latent,
            depth=depth,
            heads=heads,
            frames=frames,
            position=position,
            norm=norm,
            attention_window=attention_window,
        )
        self.decoder = Decoder(
            width=width, latent=latent, depth=decoder_depth, heads=heads, frames=frames, position=position
        )
        self.apply(_initialise)
        nn.init.normal_(self.decoder.mask_token, std=0.02)

    def forward(self, frames: Tensor) -> Tensor:
        """(B, T, width) features of whole clips → (B, T, D) latents."""
        frame_index = torch.arange(frames.shape[1], device=frames.device)[None].expand(len(frames), -1)
        latents: Tensor = self.encoder([self.encoder.place(frames, frame_index)], [frame_index])[0]
        return latents

    def embed(self, features: Tensor) -> Tensor:
        """(T, width) features of a clip as they stand in the cache → (T, D) frame embeddings."""
        features = features.float()
        return self.encoder.embed(standardized(features) if self.standardize == "video" else features)

    @classmethod
    def _load_as_safetensor(cls, model: "Autoencoder", model_file: str, map_location: str, _: bool) -> "Autoencoder":  # type: ignore[override]
        """As the mixin's, but all weights must be there."""
        load_weights(model, Path(model_file))
        return model.to(map_location).eval()

    @classmethod
    def _load_as_pickle(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:  # noqa: ARG003
        raise TrainError(f"{model_file}: weights as a pickle; byov reads model.safetensors only")

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor was called with."""
        arguments = self._hub_mixin_config
        return dict(arguments) if isinstance(arguments, dict) else {}

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        return ModelCard(card_text(self.record, sum(parameter.numel() for parameter in self.parameters())))


def _initialise(module: nn.Module) -> None:
    """As in MAE; the paper does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise TrainError(f"{name} is {value!r}; it must be one of {', '.join(get_args(choices))}")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise TrainError(f"{name} is {size!r}; it must be a whole number above 0")
    if sizes["latent"] % sizes["heads"]:
        raise TrainError(f"{sizes['heads']} heads do not divide a latent of {sizes['latent']}")
    for name in ("width", "latent"):
        if sizes[name] % 2:
            raise TrainError(f"{name} is {sizes[name]}; positions need an even number")
