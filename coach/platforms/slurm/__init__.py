"""Slurm, from a login node: each program's workers are the tasks of one Slurm job, and nothing is installed."""
