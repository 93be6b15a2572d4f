class EvaluationError(Exception):
    """Embeddings, labels or results that cannot be used; the message says which and what to do."""
