"""The feature cache: one crash-safe HDF5 file per video, and the manifest beside them."""
