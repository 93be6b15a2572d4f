"""Networks that random/<architecture> builds from a fixed seed, without a download.

`tiny` is the demo's and the tests' encoder; the others have exactly the shape of the published models of that name.
"""

from typing import Any

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)

# How images of a family are normalised when a model comes without a preprocessor_config.json.
NORMALISATION = {
    "clip_vision_model": (CLIP_MEAN, CLIP_STD),
    "siglip_vision_model": (HALF, HALF),
}

# architecture → (model type of transformers, settings that differ from that type's defaults)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "clip_vision_model",
        {
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 16,
            "image_size": 128,
        },
    ),
    "clip-vit-base-patch16": ("clip_vision_model", {"patch_size": 16}),
    "clip-vit-large-patch14": (
        "clip_vision_model",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "patch_size": 14,
        },
    ),
    "resnet-50": ("resnet", {}),
    "dinov2-base": ("dinov2", {"patch_size": 14, "image_size": 518}),
    "siglip-base-patch16-224": ("siglip_vision_model", {}),
}
