"""The pure part of Coach: every decision, no I/O, no clock, no threads, no randomness of its own."""
