"""HTML report of a run, and its figures for a paper."""
