"""`coach version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer


def command() -> None:
    """Say which Coach this is, and which Python runs it.

    Example: coach version
    """
    try:
        number = metadata.version("coach-trainer")
    except metadata.PackageNotFoundError:
        number = "(not installed)"
    typer.echo(f"coach {number}, Python {platform.python_version()}")
