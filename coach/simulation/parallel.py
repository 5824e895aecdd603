"""Runs tasks on all cores; an interrupt keeps the results so far."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from typing import Any, ClassVar, TypeVar

from coach import collector

#: Seconds between two reports of progress.
REPORT_SECONDS = 0.5

T = TypeVar("T")


class _Here:
    """The task of this process: its index, the parts done of all tasks, and whom to tell."""

    task = 0
    parts: ClassVar[MutableSequence[float]] = [0.0]
    report: ClassVar[Callable[[], object] | None] = None
    reported = 0.0


def advance(part: float) -> None:
    """Report that the share `part` (0 to 1) of the task that calls this is done; elsewhere it does nothing."""
    _Here.parts[_Here.task] = part
    if _Here.report is not None and (now := time.monotonic()) - _Here.reported >= REPORT_SECONDS:
        _Here.reported = now
        _Here.report()


def advancing(items: Sequence[T]) -> Iterator[T]:
    """The items; the share of them that was taken is reported as the part done."""
    for number, item in enumerate(items):
        advance(number / len(items))
        yield item


def gather(
    tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
    *,
    processes: int | None = None,
    done: Callable[[int, Any], object] = lambda index, result: None,
    progress: Callable[[float], object] = lambda done: None,
) -> tuple[list[Any], bool]:
    """The results of all tasks (function, arguments), in their order, and whether the user interrupted.

    `done` is called with each result as it comes, `progress` again and again with how many are done (parts, by
    `advance`, count). After an interrupt missing results are None. An exception of a task is raised. Functions and
    arguments must be picklable, unless there is one process; then all tasks run in this one.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    results: list[Any] = [None] * len(tasks)
    try:
        if processes <= 1:
            parts = [0.0] * len(tasks)
            _Here.parts, _Here.report = parts, lambda: progress(sum(parts))
            for index, (function, arguments) in enumerate(tasks):
                _Here.task = index
                results[index] = function(*arguments)
                parts[index] = 1.0
                done(index, results[index])
                progress(sum(parts))
            return results, False
        context = get_context("spawn")
        shared = context.RawArray("d", len(tasks))
        with ProcessPoolExecutor(processes, context, _begin, (shared,)) as pool:
            futures = {pool.submit(_run, index, *task): index for index, task in enumerate(tasks)}
            try:
                waiting = set(futures)
                while waiting:
                    ended, waiting = wait(waiting, REPORT_SECONDS, FIRST_COMPLETED)
                    for future in ended:
                        index = futures[future]
                        results[index] = future.result()
                        done(index, results[index])
                    progress(sum(shared))
            except BaseException:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except KeyboardInterrupt:
        return results, True
    finally:
        _Here.task, _Here.parts, _Here.report = 0, [0.0], None
    return results, False


def _begin(shared: MutableSequence[float]) -> None:
    _Here.parts = shared
    collector.look_seldom()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    # The terminal sends Ctrl-C to all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_the_parent() -> None:
    """A parent that was killed leaves no process behind, not even one that works."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _run(index: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    _Here.task = index
    result = function(*arguments)
    _Here.parts[index] = 1.0
    return result
