"""Self-contained HTML page of a report."""
