"""The command line: one file a command, and rendering only. What it can do, a script can do too."""
