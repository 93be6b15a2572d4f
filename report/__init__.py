"""A run as one page: what it shows, and how that is drawn."""
