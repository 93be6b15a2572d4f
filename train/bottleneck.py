"""Cross-view bottleneck: reconstruct each frame of one view from the latents of the other view
only.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.networks import full_precision, initialize
from byov.train.sampling import Batch

TEMPERATURE = 0.1  # our choice


class CrossViewBottleneck(nn.Module):
    """Decoder that reaches the other view only through attention between latents.

    The view and the mean features of the clip tell the decoder what the camera sees on average, so
    the retrieved latents only have to tell how far the action has progressed.

    Args:
        width: Width of the features.
        latent: Width of the latents.
        prior: Standard deviation, in normalized time, of the prior on corresponding frames.
    """

    def __init__(self, width: int, latent: int, prior: float) -> None:
        super().__init__()
        self.prior = prior
        self.view = nn.Parameter(torch.empty(2, latent))
        self.appearance = nn.Linear(width, latent)
        self.head = nn.Sequential(
            nn.LayerNorm(latent),
            nn.Linear(latent, 2 * latent),
            nn.GELU(),
            nn.Linear(2 * latent, width),
        )
        self.apply(initialize)
        nn.init.normal_(self.view, std=0.02)

    def forward(
        self, clips: Batch, latents: Sequence[Tensor], contexts: Sequence[Tensor]
    ) -> list[Tensor]:
        """Reconstruct the features (B, T, width) of both views.

        Args:
            clips: Clips of the ego and the exo view.
            latents: Latents (B, T, D) of each view, from which the queries are computed.
            contexts: Latents (B, T, D) of each view, which the other view retrieves; normally the
                same.
        """
        reconstructed = []
        for own, other in ((0, 1), (1, 0)):
            retrieved = retrieve(
                latents[own],
                contexts[other],
                clips[own].normalized_time,
                clips[other].normalized_time,
                clips[other].padding,
                self.prior,
            )
            mean = masked_mean(clips[own].features, ~clips[own].padding)  # (B, 1, width)
            reconstructed.append(self.head(retrieved + self.view[own] + self.appearance(mean)))
        return reconstructed


@full_precision
def retrieve(
    queries: Tensor,
    keys: Tensor,
    query_times: Tensor,
    key_times: Tensor,
    padding: Tensor,
    prior: float,
) -> Tensor:
    """Average the unit latents of the other view, weighted by similarity and by a prior on
    normalized time.

    For frame i of one view and frames j of the other,

        r_i = sqrt(D) Σ_j a_ij z_j,   a_ij = softmax_j(z_i·z_j / 0.1 - (s_i - s_j)² / (2 prior²)).

    Without the prior, a reversed matching would be as good as the correct one.

    Shapes: latents (B, T, D) and (B, S, D), normalized times s (B, T) and (B, S), padding (B, S),
    result (B, T, D).
    """
    queries = F.normalize(queries, dim=-1)
    keys = F.normalize(keys, dim=-1)
    apart = query_times[:, :, None] - key_times[:, None]  # (B, T, S)
    logits = queries @ keys.mT / TEMPERATURE - apart.square() / (2 * prior**2)
    weights = logits.masked_fill(padding[:, None], -torch.inf).softmax(dim=-1)
    retrieved: Tensor = weights @ keys * keys.shape[-1] ** 0.5
    return retrieved


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean (B, 1, D) over the counted frames of values (B, T, D)."""
    weights = counted[..., None].to(values.dtype)
    return (values * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
