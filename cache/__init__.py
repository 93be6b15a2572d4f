"""Feature cache (one crash-safe HDF5 file per video, one manifest per dataset) and run folders."""
