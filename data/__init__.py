"""Datasets of ego and exo videos, and the decoder that reads them."""
