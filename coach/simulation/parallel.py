"""Runs tasks on all cores; an interrupt keeps the results so far."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from coach import collector


def gather(
    tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
    *,
    processes: int | None = None,
    done: Callable[[int, Any], object] = lambda index, result: None,
) -> tuple[list[Any], bool]:
    """The results of all tasks (function, arguments), in their order, and whether the user interrupted.

    `done` is called with each result as it comes. After an interrupt missing results are None. An exception of a task
    is raised. Functions and arguments must be picklable, unless there is one process; then all tasks run in this one.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    results: list[Any] = [None] * len(tasks)
    try:
        if processes <= 1:
            for index, (function, arguments) in enumerate(tasks):
                results[index] = function(*arguments)
                done(index, results[index])
            return results, False
        with ProcessPoolExecutor(processes, get_context("spawn"), _begin) as pool:
            futures = {pool.submit(function, *args): index for index, (function, args) in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    index = futures[future]
                    results[index] = future.result()
                    done(index, results[index])
            except BaseException:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except KeyboardInterrupt:
        return results, True
    return results, False


def _begin() -> None:
    collector.look_seldom()
    # The terminal sends Ctrl-C to all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
