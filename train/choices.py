"""The words that settings take. Without PyTorch, so that a command can show its help at once."""

from typing import Literal

Recipe = Literal["paper", "official", "cycle"]
Position = Literal["interpolated", "index", "none"]
Norm = Literal["after", "before"]  # the encoder's last LayerNorm: after its blocks, or before them
Standardize = Literal["none", "video"]
Pairs = Literal["views", "any"]  # an ego with an exo video, or any two
Schedule = Literal["constant", "cosine"]
Select = Literal["retrieval", "trimmed", "both", "tau", "last"]
Device = Literal["auto", "cpu", "cuda", "mps"]
