"""MXNet 1.9.1: all that is its own. Importing this imports MXNet, without starting a thread or an operation."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np

# Threads are set in each child (limit_threads). A pool made here would not survive the fork.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
# The role is a member's, not the machine's: with one of these MXNet would turn into a server while being imported.
for _variable in [name for name in os.environ if name.startswith(("DMLC_", "PS_"))]:
    del os.environ[_variable]
os.environ.pop("PORT", None)  # ps-lite would bind its members' sockets there

# MXNet 1.9.1 uses names that NumPy removed in 1.24; NumPy 1.23 has them, with a warning.
if tuple(int(part) for part in np.__version__.split(".")[:2]) >= (1, 24):
    for _name, _type in (("bool", bool), ("int", int), ("float", float), ("object", object), ("str", str)):
        if not hasattr(np, _name):
            setattr(np, _name, _type)

# MXNet tries to import both for parts nobody here uses; leaving them out halves the import (2.8 s to 1.5 s). A model
# file can still import them itself.
_hidden = [name for name in ("sklearn", "scipy") if name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = None  # type: ignore[assignment]
try:
    import mxnet as mx
finally:
    for _name in _hidden:
        del sys.modules[_name]


def limit_threads(threads: int) -> None:
    """Let MXNet's operations in this process use so many threads.

    MXNet switches OpenMP off in a forked process (its fork handler), and OpenBLAS has no pool; both are set again.
    """
    folder = Path(mx.__file__).parent
    ctypes.CDLL(str(folder / "libopenblas.so.0")).openblas_set_num_threads(threads)
    mx.base._LIB.MXSetNumOMPThreads(ctypes.c_int(threads))


#: In the text of an MXNetError: a memory pool, mshadow's own buffers, C++'s new.
_NO_MEMORY = ("Failed to allocate", "AlignedMallocPitch", "bad_alloc")


def failure(error: Exception) -> tuple[str, str] | None:
    """The reason and message behind MXNet's own errors; None for others."""
    if not isinstance(error, mx.base.MXNetError):
        return None
    text = str(error).split("\nStack trace:")[0].strip()
    if any(sign in text for sign in _NO_MEMORY):
        return "OutOfMemory", text
    return "Internal", f"MXNet: {text}"
