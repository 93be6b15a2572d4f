"""Parallel extraction and sweeps, on the cores of one machine or on a Ray cluster."""
