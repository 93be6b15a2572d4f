"""Plain EfficientNet-Lite0 with its published weights: reference for the tests and for benchmarks/extract.py."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

# expansion, kernel, stride, width, repeats
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STRIDES = [stride if repeat == 0 else 1 for _, _, stride, _, repeats in STAGES for repeat in range(repeats)]


def classify(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return ImageNet logits (B, 1000) for gray levels (B, 3, 224, 224)."""
    x = _stem(weights, images)
    for block in range(len(STRIDES)):
        x = _block(weights, x, block)
    x = F.relu6(_normalized_convolution(weights, x, "_conv_head", "_bn1"))
    return F.linear(x.mean(dim=(2, 3)), weights["_fc.weight"], weights["_fc.bias"])


def expansion(weights: Mapping[str, Tensor], images: Tensor, block: int) -> Tensor:
    """Return the expansion of a block (B, D, H, W) for gray levels (B, 3, 224, 224)."""
    x = _stem(weights, images)
    for before in range(block):
        x = _block(weights, x, before)
    return _expand(weights, x, block)


def _stem(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    return F.relu6(_normalized_convolution(weights, (images.float() - 127) / 128, "_conv_stem", "_bn0", stride=2))


def _block(weights: Mapping[str, Tensor], x: Tensor, block: int) -> Tensor:
    name = f"_blocks.{block}"
    inner = _expand(weights, x, block) if block else x  # the first block has no expansion
    depthwise = f"{name}._depthwise_conv", f"{name}._bn1", STRIDES[block], len(inner[0])
    inner = F.relu6(_normalized_convolution(weights, inner, *depthwise))
    out = _normalized_convolution(weights, inner, f"{name}._project_conv", f"{name}._bn2")
    return x + out if x.shape == out.shape else out


def _expand(weights: Mapping[str, Tensor], x: Tensor, block: int) -> Tensor:
    name = f"_blocks.{block}"
    return F.relu6(_normalized_convolution(weights, x, f"{name}._expand_conv", f"{name}._bn0"))


def _normalized_convolution(
    weights: Mapping[str, Tensor], x: Tensor, convolution: str, norm: str, stride: int = 1, groups: int = 1
) -> Tensor:
    kernel = weights[f"{convolution}.weight"]
    mean, variance, gain, shift = (
        weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    padded = _pad_same(x, kernel.shape[-1], stride)
    return F.batch_norm(F.conv2d(padded, kernel, stride=stride, groups=groups), mean, variance, gain, shift, eps=1e-3)


def _pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME padding: ceil(length / stride) outputs, with the larger part of an odd margin at the end."""
    margins = []
    for length in (x.shape[3], x.shape[2]):
        outputs = -(-length // stride)
        margin = max((outputs - 1) * stride + kernel - length, 0)
        margins += [margin // 2, margin - margin // 2]
    return F.pad(x, margins)
