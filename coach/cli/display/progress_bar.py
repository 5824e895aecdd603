"""The progress bar of what takes longer than two seconds: the share done, what is left, and when it will end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from coach.cli.display.output import console

#: Seconds that a command may take without a bar.
PATIENCE = 2.0
#: Seconds between two lines where there is no terminal.
LINE_SECONDS = 60.0
#: Columns of a line without the bar; a narrower terminal does without the end on the clock.
WITHOUT_BAR = 48


class EndColumn(ProgressColumn):
    """The predicted end on the clock."""

    def render(self, task: Task) -> Text:
        """Empty as long as it is not known."""
        left = task.time_remaining
        return Text("" if left is None else f"ends {datetime.now() + timedelta(seconds=left):%H:%M:%S}")


@contextmanager
def progress_bar(
    total: int,
    words: str = "simulating",
    screen: Console | None = None,
    patience: float = PATIENCE,
    every: float = LINE_SECONDS,
) -> Iterator[Callable[[float], None]]:
    """Yields the function that takes how many of `total` are done (parts count).

    The bar is on `screen` (standard error) if that is a terminal, from `patience` seconds on, and vanishes at the end.
    Elsewhere, as in a log, it is a line `every` so many seconds.
    """
    screen = screen or console(stderr=True)
    began = said = time.monotonic()
    columns = [
        TextColumn("{task.description}"), BarColumn(max(4, min(40, screen.width - WITHOUT_BAR))),
        TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(), EndColumn(),
    ]  # fmt: skip
    if screen.width < WITHOUT_BAR:
        columns.pop()
    bar = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    task = bar.add_task(words, total=total)

    def say(done: float) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= every and done > 0:
            said = now
            ends = datetime.now() + timedelta(seconds=(now - began) * (total - done) / done)
            screen.print(f"{words}: {100 * done / total:.0f} %, ends {ends:%H:%M:%S}", highlight=False)

    def show(done: float) -> None:
        bar.update(task, completed=done)
        if not bar.live.is_started and time.monotonic() - began >= patience:
            bar.start()

    try:
        yield show if screen.is_terminal else say
    finally:
        bar.stop()
