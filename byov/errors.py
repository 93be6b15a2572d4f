"""Exceptions. Each message states on one line what is wrong and how to fix it."""

import re


class ByovError(Exception):
    """Base class for errors that the user can fix."""


class DatasetError(ByovError):
    """Raised if a dataset is invalid."""


class VideoError(DatasetError):
    """Raised if a video cannot be decoded."""


class CacheError(ByovError):
    """Raised if a file in the cache or in a run folder cannot be used."""


class StaleError(CacheError):
    """Raised if the features or the model that a file was computed from have changed."""


class EncoderError(ByovError):
    """Raised if a frame encoder cannot be loaded or used."""


class TrainError(ByovError):
    """Raised if a run cannot be trained on the given features and settings."""


class SettingsError(TrainError):
    """Raised if training settings are invalid or conflict with each other."""


class EvaluationError(ByovError):
    """Raised if embeddings cannot be scored."""


class ApplyError(ByovError):
    """Raised if a run cannot be applied to a video, or its output cannot be written."""


class UnknownVideoError(ApplyError, KeyError):
    """Raised if a mapping does not contain a video."""

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class ClusterError(ByovError):
    """Raised if a cluster cannot be reached or its workers fail."""


class SweepError(ByovError):
    """Raised if a grid of runs is invalid or conflicts with existing runs."""


class Interrupted(Exception):
    """Raised if a computation was stopped before its end; it can be resumed later."""


class Diverged(Exception):
    """Raised if the loss or the weights are not finite, or if training processes are out of
    sync.
    """


class ProcessLost(Exception):
    """Raised when a worker process dies."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that Python, PyTorch or the dynamic linker ran out of
    memory.
    """
    texts = "allocate memory|not enough memory|out of memory|start new thread|failed to map segment"
    return isinstance(error, MemoryError) or re.search(texts, str(error)) is not None
