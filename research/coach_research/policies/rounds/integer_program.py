"""scipy's `milp`, which leaves standard output to the program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

from scipy.optimize import milp


def solve(*args: Any, **options: Any) -> Any:
    """What `scipy.optimize.milp` gives for the same arguments."""
    with output_to_errors():
        return milp(*args, **options)


@contextlib.contextmanager
def output_to_errors() -> Iterator[None]:
    """Send what a library in C writes to standard output to standard error: HiGHS does, whatever it is asked for.

    A command's table or JSON is on standard output (scipy 1.17.1).
    """
    sys.stdout.flush()
    library = ctypes.CDLL(None)
    library.fflush(None)
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        library.fflush(None)
        os.dup2(output, 1)
        os.close(output)
