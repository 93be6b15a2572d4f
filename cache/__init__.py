"""The feature cache: one crash-safe HDF5 file per video, and a manifest per dataset."""
