"""Benchmarks of PyTorch jobs: beside plain PyTorch and torchrun, on cores and on a GPU."""
