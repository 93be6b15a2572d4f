"""Feature cache, with one crash-safe HDF5 file per video and a manifest per dataset, and run
folders.
"""
