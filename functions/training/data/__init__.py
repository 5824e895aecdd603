"""Data sets: formats, shards, cache."""
