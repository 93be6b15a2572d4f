"""Command-line interface: options, messages, progress, signals and exit codes."""
