"""`coach program-module`."""

from __future__ import annotations

from pathlib import Path

import typer


def command() -> None:
    """Print the module by which a program reports and asks.

    It is one file for your own Python, 3.8 or later, and does nothing without Coach.

    Example: coach program-module > coach_program.py
    """
    import coach.platforms.program_metrics as package

    typer.echo(Path(package.__path__[0], "coach_program.py").read_text(encoding="utf-8"), nl=False)
