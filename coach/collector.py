"""Python's garbage collector, told to look seldom."""

import gc

#: New objects before the young ones are looked at (Python's own 700), and how often that is before the older ones are.
YOUNG, MIDDLE, OLD = 50_000, 20, 50


def look_seldom() -> None:
    """Look at objects less often: decisions and journals are read as many small tuples that form no cycles.

    For the process.
    """
    gc.set_threshold(YOUNG, MIDDLE, OLD)
