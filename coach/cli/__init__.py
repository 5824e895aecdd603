"""The command line: one file a command, and rendering only. Scripts can call everything that it calls."""
