"""Stage 2: train one of eight methods on cached features."""
