"""EfficientNet-Lite0 up to its last 14 x 14 feature map, optimized for CPUs.

The network is the published one: TensorFlow's SAME padding, batch normalization, ReLU6, no
squeeze-and-excitation. For speed, normalization is folded into the convolutions, the memory format
is channels-last, and explicit padding is used only where nn.Conv2d does not support it.
tests/extract/naive_efficientnet.py contains a plain implementation.
"""

from collections import OrderedDict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_weights

SIZE = 224
# Equivalent to (x - 127) / 128 for gray levels x in 0..255, since Preprocessing normalizes values
# in 0..1.
MEAN = (127 / 255,) * 3
STD = (128 / 255,) * 3
NORM_EPSILON = 1e-3
STEM_WIDTH = 32
# Per stage: expansion, kernel, stride, width, repeats. The last two (192 and 320 wide) and the head
# are not needed.
STAGES = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3))
WIDTH = 6 * 112
# Names of the convolutions and of the normalization layers after them in the weight file.
_PUBLISHED = {
    "stem": ("_conv_stem", "_bn0"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
_NORM_PARTS = ("weight", "bias", "running_mean", "running_var")


class SameConvolution(nn.Conv2d):
    """Convolution with TensorFlow's SAME padding, for even input sizes.

    At stride 2 the padding is asymmetric, which nn.Conv2d does not support.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            inputs,
            outputs,
            kernel,
            stride,
            padding=kernel // 2 if stride == 1 else 0,
            groups=groups,
        )
        first = (kernel - stride) // 2
        last = (kernel - stride + 1) // 2
        self.margins = None if stride == 1 else (first, last, first, last)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.margins is None else F.pad(x, self.margins))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection, with a skip connection if the shape
    permits.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = SameConvolution(inputs, inner) if expansion > 1 else None
        self.depthwise = SameConvolution(inner, inner, kernel, stride, groups=inner)
        self.project = SameConvolution(inner, outputs)
        self.has_skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out: Tensor = self.project(F.relu6(self.depthwise(inner), inplace=True))
        return out.add_(x) if self.has_skip else out


class EfficientNetTokens(nn.Module):
    """Network that returns the expansion of block 11, its last and widest 14 x 14 feature map, as
    tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConvolution(3, STEM_WIDTH, kernel=3, stride=2)
        blocks = list[nn.Module]()
        inputs = STEM_WIDTH
        for expansion, kernel, stride, width, repeats in STAGES:
            for repeat in range(repeats):
                blocks.append(
                    InvertedResidual(inputs, width, expansion, kernel, stride if repeat == 0 else 1)
                )
                inputs = width
        last = OrderedDict(expand=SameConvolution(inputs, WIDTH), activation=nn.ReLU6(inplace=True))
        self.blocks = nn.Sequential(*blocks, nn.Sequential(last))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        images = images.contiguous(memory_format=torch.channels_last)
        # (B, N, D).
        return self.blocks(F.relu6(self.stem(images), inplace=True)).flatten(2).mT, None


def build_tokens(published: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build the network with normalization folded in; also return the published weights that it
    uses.
    """
    tokens = EfficientNetTokens()
    folded = dict[str, Tensor]()
    used = dict[str, Tensor]()
    for name, module in tokens.named_modules():
        if isinstance(module, SameConvolution):
            block, _, part = name.rpartition(".")
            convolution, norm = (
                f"_{block}.{theirs}" if block else theirs for theirs in _PUBLISHED[part]
            )
            names = [f"{convolution}.weight", *(f"{norm}.{part}" for part in _NORM_PARTS)]
            used |= {name: published[name] for name in names}
            weight, gain, shift, mean, variance = (published[key].double() for key in names)
            folded[f"{name}.weight"], folded[f"{name}.bias"] = fuse_conv_bn_weights(
                weight, None, mean, variance, NORM_EPSILON, gain, shift
            )
    tokens.load_state_dict(folded)
    return tokens.to(memory_format=torch.channels_last), used  # type: ignore[call-overload]
