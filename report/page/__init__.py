"""The report for the browser: one file of HTML that needs nothing else."""
