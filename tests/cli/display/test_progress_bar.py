"""The progress bar of what takes long."""

from __future__ import annotations

import io
import math
import re

from rich.console import Console

from coach.cli.display.progress_bar import progress_bar


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def shown(patience: float, screen: Console) -> str:
    with progress_bar(4, "simulating", screen, patience) as show:
        for done in (1.0, 2.5, 3.0, 4.0):
            show(done)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_bar_says_what_share_is_done_and_when_it_will_end() -> None:
    text = shown(0.0, terminal())
    assert "simulating" in text
    assert "100 %" in text
    assert re.search(r"ends \d\d:\d\d:\d\d", text)


def test_what_is_soon_done_has_no_bar() -> None:
    assert "simulating" not in shown(math.inf, terminal())


def test_without_a_terminal_there_is_no_bar() -> None:
    screen = Console(file=io.StringIO(), width=100)
    assert shown(0.0, screen) == ""


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    screen = Console(file=io.StringIO(), width=100)
    with progress_bar(4, "simulating", screen, every=0.0) as show:
        for done in (0.0, 1.0, 3.0):
            show(done)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line[:16] for line in lines] == ["simulating: 25 %", "simulating: 75 %"]
    assert all(re.search(r"ends \d\d:\d\d:\d\d$", line) for line in lines)
