"""What goes wrong and is the user's to mend. The text of each is one line: what is wrong, with which file and values,
and what to do."""


class ByovError(Exception):
    """All of the below, for those who catch them together."""


class DatasetError(ByovError):
    """A dataset that is not as it should be."""


class VideoError(DatasetError):
    """A video that cannot be decoded as it should be."""


class CacheError(ByovError):
    """A file of the cache or of a run that cannot be used."""


class EncoderError(ByovError):
    """A frame encoder that cannot be loaded or used."""


class TrainError(ByovError):
    """Features, settings or a run that cannot be trained with."""


class SettingsError(TrainError):
    """Settings of a training that cannot be, or do not go together."""


class ClusterError(ByovError):
    """A cluster that cannot be reached, or workers that cannot do the work."""


class Interrupted(Exception):
    """Work that was asked to stop, and has left what it needs to be resumed."""


class Diverged(Exception):
    """A training that has gone wrong by itself: the loss or the weights are no longer finite, or processes disagree."""


class ProcessLost(Exception):
    """Work that several processes share, of which one is gone."""


class EvaluationError(ByovError):
    """Embeddings, labels or results that cannot be scored."""


class SweepError(ByovError):
    """A grid of runs that cannot be, or runs that stand in its way."""


class ApplyError(ByovError):
    """A run, a video or an output that cannot be used."""
