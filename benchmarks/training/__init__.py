"""Benchmarks that train real jobs on this machine."""
