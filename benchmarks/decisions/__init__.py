"""Benchmarks of decisions and simulation: nothing trains."""
