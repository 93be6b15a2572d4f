"""Naive EfficientNet-Lite0 for the published weights, as a reference for tests."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

# Strides of the blocks; other sizes follow from the weights.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def classify(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return ImageNet logits (B, 1000) for gray levels (B, 3, 224, 224)."""
    x = F.relu6(_convolution(weights, _blocks(weights, images, len(STRIDES)), "_conv_head", "_bn1"))
    return F.linear(x.mean(dim=(2, 3)), weights["_fc.weight"], weights["_fc.bias"])


def expansion(weights: Mapping[str, Tensor], images: Tensor, block: int) -> Tensor:
    """Return the expansion of a block (B, D, H, W) for gray levels (B, 3, 224, 224)."""
    return _expand(weights, _blocks(weights, images, block), block)


def _blocks(weights: Mapping[str, Tensor], images: Tensor, count: int) -> Tensor:
    """Return the output of the first `count` blocks."""
    x = F.relu6(_convolution(weights, (images.float() - 127) / 128, "_conv_stem", "_bn0", stride=2))
    for block in range(count):
        name = f"_blocks.{block}"
        inner = _expand(weights, x, block) if block else x  # the first block has no expansion
        depthwise = f"{name}._depthwise_conv", f"{name}._bn1", STRIDES[block], inner.shape[1]
        inner = F.relu6(_convolution(weights, inner, *depthwise))
        out = _convolution(weights, inner, f"{name}._project_conv", f"{name}._bn2")
        x = x + out if x.shape == out.shape else out
    return x


def _expand(weights: Mapping[str, Tensor], x: Tensor, block: int) -> Tensor:
    return F.relu6(
        _convolution(weights, x, f"_blocks.{block}._expand_conv", f"_blocks.{block}._bn0")
    )


def _convolution(
    weights: Mapping[str, Tensor], x: Tensor, name: str, norm: str, stride: int = 1, groups: int = 1
) -> Tensor:
    """Convolve square images with TensorFlow's SAME padding, whose larger part is at the end, and
    normalize.
    """
    kernel = weights[f"{name}.weight"]
    length = x.shape[-1]
    margin = max((-(-length // stride) - 1) * stride + kernel.shape[-1] - length, 0)
    x = F.conv2d(
        F.pad(x, (margin // 2, margin - margin // 2) * 2), kernel, stride=stride, groups=groups
    )
    mean, variance, gain, shift = (
        weights[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, variance, gain, shift, eps=1e-3)
