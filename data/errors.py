"""What goes wrong with videos and labels and is the user's to mend."""


class DatasetError(Exception):
    """One line: what is wrong, with which file and values, and what to do."""


class VideoError(DatasetError):
    """One video cannot be read as asked; the others may still be fine."""
