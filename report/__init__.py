"""HTML report of a run, and figures for a paper."""
