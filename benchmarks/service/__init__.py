"""Benchmarks of the handler and its service."""
