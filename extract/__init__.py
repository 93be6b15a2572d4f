"""Stage 1: the frozen vision model over every frame, merged tokens into the cache."""
