"""The report's figures for papers, as PNG and PDF."""
