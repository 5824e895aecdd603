"""The pure part of Coach: all decisions, without I/O, clock, threads or randomness of its own."""
