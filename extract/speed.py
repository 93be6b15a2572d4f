"""How fast an encoder is on this machine: measured by one batch of black frames."""

import time

import torch

from byov.device import Device
from byov.extract.encoder_name import EncoderName, Resize
from byov.extract.encoders import load_encoder

FRAMES = 8  # of the batch


def is_here(name: EncoderName) -> bool:
    """Can it be loaded without a download?"""
    if name.is_random or name.is_imagenet or name.is_folder:
        return True
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(name.source, file, revision=name.revision), str) for file in files)


def frames_per_second(name: EncoderName, *, resize: Resize, device: Device) -> float | None:
    """Of the encoder alone; None for one that would have to be fetched first."""
    if not is_here(name):
        return None
    encoder = load_encoder(name, resize=resize, device=device)
    size = encoder.preprocessing.size
    images = torch.zeros((FRAMES, 3, size, size), dtype=torch.uint8, device=encoder.device)
    encoder.encode(images)[0].cpu()  # the first one is slower
    started = time.perf_counter()
    encoder.encode(images)[0].cpu()
    return FRAMES / (time.perf_counter() - started)
