"""Runs side by side: what is done is kept, whatever happens to the rest."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach import collector
from coach.simulation.parallel import REPORT_SECONDS, advancing, gather
from tests.functions.hosting import is_alive

pytestmark = pytest.mark.standard


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell that starts the tests in the background may have them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def double(x: int) -> int:
    return 2 * x


def interrupted(x: int) -> int:
    """The user presses Ctrl-C: the terminal signals the first process."""
    os.kill(os.getpid(), signal.SIGINT)
    return x


def parent_interrupted(x: int) -> int:
    os.kill(os.getppid(), signal.SIGINT)
    return asleep(x)


def asleep(x: int) -> int:
    """Longer than any test lasts."""
    time.sleep(600)
    return x


def test_results_come_in_the_order_of_the_tasks() -> None:
    reported: list[tuple[int, int]] = []
    results, stopped = gather([(double, (n,)) for n in range(5)], processes=2, done=lambda *one: reported.append(one))
    assert (results, stopped) == ([0, 2, 4, 6, 8], False)
    assert sorted(reported) == [(n, 2 * n) for n in range(5)]


def halves(x: int, seen: Path) -> int:
    """Waits after its first half until that was seen."""
    for half in advancing([0, 1]):
        if half == 0:
            time.sleep(REPORT_SECONDS)
        until = time.monotonic() + 60
        while half == 1 and not seen.exists() and time.monotonic() < until:
            time.sleep(0.01)
    return x


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_counts_the_parts_of_tasks_that_are_under_way(processes: int, tmp_path: Path) -> None:
    seen: list[float] = []

    def note(done: float) -> None:
        seen.append(done)
        if done % 1:
            (tmp_path / "seen").touch()

    tasks = [(halves, (1, tmp_path / "seen")), (double, (1,))]
    assert gather(tasks, processes=processes, progress=note) == ([1, 2], False)
    assert seen == sorted(seen)
    assert seen[-1] == 2
    assert (tmp_path / "seen").exists()


def test_an_interrupt_keeps_what_is_done() -> None:
    tasks = [(double, (1,)), (double, (2,)), (interrupted, (3,)), (double, (4,))]
    assert gather(tasks, processes=1) == ([2, 4, None, None], True)


def test_an_interrupt_ends_the_other_processes_too() -> None:
    tasks = [(double, (1,)), (asleep, (2,)), (parent_interrupted, (3,)), (double, (4,))]
    results, stopped = gather(tasks, processes=2)
    assert stopped
    # The first may have been on its way here when the interrupt came.
    assert results in ([2, None, None, None], [None, None, None, None])
    # The pool's own thread waits for them too: who comes second learns of their end a moment later.
    until = time.monotonic() + 60
    while multiprocessing.active_children():
        assert time.monotonic() < until, multiprocessing.active_children()
        time.sleep(0.01)


def test_a_failed_run_is_not_hidden() -> None:
    with pytest.raises(TypeError):
        gather([(double, (1, 2))], processes=1)


def test_the_garbage_collector_looks_seldom_there_too() -> None:
    expected = (collector.YOUNG, collector.MIDDLE, collector.OLD)
    assert gc.get_threshold() != expected
    assert gather([(gc.get_threshold, ())] * 2, processes=2) == ([expected] * 2, False)


def begun(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    asleep(0)


def test_a_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("spawn").Process(
        target=gather, args=([(begun, (tmp_path,))] * 2,), kwargs={"processes": 2}
    )
    parent.start()
    until = time.monotonic() + 60
    while len(children := [int(one.name) for one in tmp_path.iterdir()]) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    parent.kill()
    parent.join()
    while any(is_alive(child) for child in children):
        assert time.monotonic() < until, children
        time.sleep(0.05)
