"""What is learned, and from which clips: one file per method."""
