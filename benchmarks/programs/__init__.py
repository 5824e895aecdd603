"""Benchmarks of programs under Coach."""
