"""Stage 1: run a frozen vision model over every frame and cache the merged tokens."""
