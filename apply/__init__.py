"""Apply trained runs: embed, align and stream videos, export models, and use runs from Python."""
