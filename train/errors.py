class TrainError(Exception):
    """Features, settings or a run that cannot be used; the message says which and what to do."""


class Diverged(Exception):
    """A training that has gone wrong by itself: the loss or the weights are no longer finite."""
