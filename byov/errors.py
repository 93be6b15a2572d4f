"""Exceptions. The message of each error says in one line what is wrong and what to do."""


class ByovError(Exception):
    """Base class of all errors that a user can fix."""


class DatasetError(ByovError):
    """Invalid dataset."""


class VideoError(DatasetError):
    """Video that cannot be decoded."""


class CacheError(ByovError):
    """File of the cache or of a run that cannot be used."""


class EncoderError(ByovError):
    """Frame encoder that cannot be loaded or used."""


class TrainError(ByovError):
    """Features, settings or a run that cannot be trained."""


class SettingsError(TrainError):
    """Invalid or conflicting training settings."""


class EvaluationError(ByovError):
    """Embeddings, labels or results that cannot be scored."""


class ApplyError(ByovError):
    """Run, video or output that cannot be used."""


class ClusterError(ByovError):
    """Cluster that cannot be reached, or workers that fail."""


class SweepError(ByovError):
    """Invalid grid of runs, or existing runs that conflict with it."""


class Interrupted(Exception):
    """Work that was stopped and can be resumed."""


class Diverged(Exception):
    """Training whose loss or weights are no longer finite, or whose processes disagree."""


class ProcessLost(Exception):
    """Distributed work of which one process is gone."""
