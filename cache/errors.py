"""What goes wrong with a cache and is the user's to mend."""


class CacheError(Exception):
    """One line: what is wrong, with which file and values, and what to do."""
