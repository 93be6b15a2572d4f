class PipelineError(Exception):
    """A run, a video or an output that cannot be used; the message says which and what to do."""
