"""Registry of training methods.

Other packages add methods through the "byov.methods" entry-point group.
"""

import torch

from byov.plugins import Registry
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


def _check(name: str, method: type[Method]) -> None:
    if (
        not issubclass(method, Method)
        or method.settings_class.model_fields["method"].default != name
    ):
        raise ValueError(f"not a Method subclass whose settings declare method {name!r}")


METHODS = Registry[type[Method]](
    "byov.methods",
    {
        "byov": Byov,
        "timeline": Timeline,
        "tcn": Tcn,
        "actor-observer": ActorObserver,
        "carl": Carl,
        "tcc": Tcc,
        "gta": Gta,
        "ae2-alignment": Ae2Alignment,
    },
    _check,
)


def build_method(width: int, settings: TrainSettings) -> Method:
    """Build a method for features of the given width, initialized with the seed in its settings."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return METHODS[settings.method](width, settings)
