"""Kills on a machine with several GPUs."""
