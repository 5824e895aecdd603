"""PyTorch 1.13 or later: all that is its own. Importing this imports torch; it starts no thread and no operation."""

import os

# Threads are set in each child (limit_threads). A pool made here would not survive the fork.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)
