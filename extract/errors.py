"""What goes wrong with an encoder and is the user's to mend."""


class EncoderError(Exception):
    """One line: what is wrong, with which encoder, and what to do."""
