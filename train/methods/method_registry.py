"""The methods by name. To add one: its settings in train/method_settings.py, its file here, and a line below."""

from typing import Any

import torch

from byov.train.methods.actor_observer import ActorObserver
from byov.train.methods.ae2_alignment import Ae2Alignment
from byov.train.methods.base import Method
from byov.train.methods.byov import Byov
from byov.train.methods.carl import Carl
from byov.train.methods.gta import Gta
from byov.train.methods.tcc import Tcc
from byov.train.methods.tcn import Tcn
from byov.train.methods.timeline import Timeline
from byov.train.settings import TrainSettings

METHODS: dict[str, type[Method]] = {
    "byov": Byov,
    "timeline": Timeline,
    "tcn": Tcn,
    "actor-observer": ActorObserver,
    "carl": Carl,
    "tcc": Tcc,
    "gta": Gta,
    "ae2-alignment": Ae2Alignment,
}


def build_method(width: int, settings: TrainSettings, training: dict[str, Any] | None = None) -> Method:
    """The method at its initialization, by the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return METHODS[settings.method](width, settings, training)
