"""Measurements: each module is a command that writes its table under results/."""
