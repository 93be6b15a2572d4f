"""What BYOV learns from: masked self-view modeling, masked cross-view modeling, and, beyond the paper, cycles.

B pairs of clips; the two clips of a pair may differ in length. All sequences of a step go through the encoder in one
call and through the decoder in one call, side by side.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor

import torch
from torch import Tensor

from byov.train.autoencoder import Autoencoder, Decoder
from byov.train.cycle import cycle_loss
from byov.train.sampling import Clips
from byov.train.settings import ObjectiveSettings
from byov.train.transformer import pack, unpack

Pair = list[Tensor]  # of the ego and of the exo clips


@dataclass(frozen=True)
class MaskedEgoExo:
    """The joint loss. Which part is on, and how much is masked, are the paper's ablations."""

    settings: ObjectiveSettings

    def __call__(self, model: Autoencoder, ego: Clips, exo: Clips, generator: torch.Generator) -> dict[str, Tensor]:
        """Losses by name; "loss" is what to descend on."""
        views = (ego, exo)
        kept = {
            "self": [_draw(view, self.settings.mask_self, generator) for view in views],
            "cross": [_draw(view, self.settings.mask_cross, generator) for view in views],
        }
        latents = self._encode(model, views, kept)
        decoded = self._decode(model, views, latents, kept)
        losses = {name: self._error(views, frames_hat, kept[name]) for name, frames_hat in decoded.items()}
        total = sum(losses.values(), torch.zeros((), device=ego.frames.device))
        if self.settings.cycle:
            there, back = zip(latents["full"], (ego.padding, exo.padding), strict=True)
            losses["cycle"] = self._cycle(*there, *back) + self._cycle(*back, *there)
            total = total + self.settings.cycle * losses["cycle"]
        return {"loss": total} | losses

    @property
    def modeling(self) -> list[str]:
        """The masked objectives that are on."""
        return ["self"] * self.settings.self_view + ["cross"] * self.settings.cross_view

    def _encode(self, model: Autoencoder, views: Sequence[Clips], kept: Mapping[str, Pair]) -> dict[str, Pair]:
        """The latents of all frames ("full"), and of those that MSM ("self") and MCM ("cross") leave visible."""
        placed = [model.encoder.place(view.frames, view.index) for view in views]
        sequences, index = {}, {}
        if self.settings.cross_view or self.settings.cycle:
            sequences["full"], index["full"] = placed, [view.index for view in views]
        for name in self.modeling:
            sequences[name] = [take(frames, rows) for frames, rows in zip(placed, kept[name], strict=True)]
            index[name] = [view.index.gather(1, rows) for view, rows in zip(views, kept[name], strict=True)]
        return _pairs(sequences, model.encoder(_flat(sequences), _flat(index)))

    def _decode(
        self, model: Autoencoder, views: Sequence[Clips], latents: Mapping[str, Pair], kept: Mapping[str, Pair]
    ) -> dict[str, Pair]:
        """Reconstructions (B, T, width) of both views by each masked objective that is on."""
        if not self.modeling:
            return {}
        tokens = {name: _mask_filled(model.decoder, views, latents[name], kept[name]) for name in self.modeling}
        if "cross" in tokens:
            ego, exo = (
                model.decoder.place(model.decoder.project(latent), view.index)
                for latent, view in zip(latents["full"], views, strict=True)
            )
            tokens["cross"] = [torch.cat(pair, dim=1) for pair in zip(tokens["cross"], (exo, ego), strict=True)]
        causal = [self.settings.causal and name == "self" for name in tokens for _ in views]
        decoded = _pairs(tokens, model.decoder(_flat(tokens), causal))
        own = {
            name: [sequence[:, : view.length] for sequence, view in zip(pair, views, strict=True)]
            for name, pair in decoded.items()
        }
        return _pairs(own, unpack(model.decoder.reconstruct(pack(_flat(own))), _flat(own)))

    def _error(self, views: Sequence[Clips], decoded: Pair, kept: Pair) -> Tensor:
        """Mean squared error over the frames of each view, summed over the views."""
        total = torch.zeros((), device=decoded[0].device)
        for view, frames_hat, visible in zip(views, decoded, kept, strict=True):
            error = (frames_hat.float() - view.frames).square().mean(dim=-1)  # (B, T)
            if self.settings.masked_only:
                removed = masked(visible, view.length)
                total = total + (error * removed).sum() / removed.sum().clamp(min=1)
            else:
                total = total + error.mean()
        return total

    def _cycle(self, there: Tensor, there_padding: Tensor | None, back: Tensor, back_padding: Tensor | None) -> Tensor:
        return cycle_loss(there, back, self.settings.order_prior, there_padding, back_padding)


def visible_count(frames: int, ratio: float) -> int:
    """How many of the frames stay visible at a masking ratio; rounded down, but not for a rounding error's sake."""
    return floor(frames * (1 - ratio) + 1e-6)


def draw_visible(batch: int, frames: int, ratio: float, generator: torch.Generator) -> Tensor:
    """(B, K) indices of the frames that stay visible, in temporal order; another random choice for each item."""
    shuffled = torch.rand(batch, frames, generator=generator).argsort(dim=1)
    return shuffled[:, : visible_count(frames, ratio)].sort(dim=1).values


def take(frames: Tensor, kept: Tensor) -> Tensor:
    """(B, T, D) frames, (B, K) indices → (B, K, D)."""
    return frames.gather(1, kept[:, :, None].expand(-1, -1, frames.shape[-1]))


def fill(visible: Tensor, kept: Tensor, frames: int, mask_token: Tensor) -> Tensor:
    """Put (B, K, D) visible tokens back to their places among T frames; the others become the mask token."""
    filled = mask_token.to(visible.dtype).expand(len(visible), frames, -1)
    return filled.scatter(1, kept[:, :, None].expand(-1, -1, visible.shape[-1]), visible)


def masked(kept: Tensor, frames: int) -> Tensor:
    """(B, T): True where a frame was removed."""
    return torch.ones(len(kept), frames, dtype=torch.bool, device=kept.device).scatter(1, kept, False)


def _draw(view: Clips, ratio: float, generator: torch.Generator) -> Tensor:
    return draw_visible(len(view.frames), view.length, ratio, generator).to(view.frames.device)


def _mask_filled(decoder: Decoder, views: Sequence[Clips], visible: Pair, kept: Pair) -> Pair:
    """Visible latents at their places, mask tokens at the others, positions added."""
    return [
        decoder.place(fill(decoder.project(latents), rows, view.length, decoder.mask_token), view.index)
        for view, latents, rows in zip(views, visible, kept, strict=True)
    ]


def _flat(pairs: Mapping[str, Pair]) -> list[Tensor]:
    """Ego and exo of the first pair, then of the next, in the order in which they were put in."""
    return [tensor for pair in pairs.values() for tensor in pair]


def _pairs(names: Iterable[str], flat: Sequence[Tensor]) -> dict[str, Pair]:
    """The inverse of `_flat`."""
    return {name: [flat[2 * place], flat[2 * place + 1]] for place, name in enumerate(names)}
