"""The commands: arguments, messages, progress bars, signals, exit codes."""
