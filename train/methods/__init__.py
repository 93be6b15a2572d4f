"""The methods by name. Adding one takes a file in this folder and a line below."""

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


def build_method(width: int, settings: TrainSettings) -> Method:
    """Construct a method for features of this width, initialized from the seed of its settings."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return METHODS[settings.method](width, settings)
