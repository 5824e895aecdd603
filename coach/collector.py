"""How drivers set Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New objects before the young ones are looked at (Python's own 700), and how often that is before the older ones are.
YOUNG, MIDDLE, OLD = 50_000, 20, 50


def look_seldom() -> None:
    """Look at objects less often: decisions and journals are read as many small tuples that form no cycles.

    For the process.
    """
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def paused() -> Iterator[None]:
    """Without the search for cycles while a decision on many jobs is made: what it makes stays, and has no cycles.

    Of the first decision for 10,000 jobs the search took a third of the time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
