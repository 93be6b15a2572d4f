"""The labels of frames, which all rooms share: indices of phases, and one number for a frame that has no label."""

UNLABELLED = -1  # in the place of a phase's index
