"""Use trained runs: embed and align any videos, load and evaluate runs from Python."""
