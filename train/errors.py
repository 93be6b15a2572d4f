class TrainError(Exception):
    """Features, settings or a run that cannot be used; the message says which and what to do."""
