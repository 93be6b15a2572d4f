"""Training methods, one file each; the registry is train/registry.py."""
