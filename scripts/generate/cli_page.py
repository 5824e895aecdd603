"""The commands' help, which `make docs` writes into its copy of docs/reference/cli.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from coach.cli.main import app
from scripts.generate.marks import BUILT, END, between

PAGE = Path("docs/reference/cli.md")
WIDTH = 80
#: What each command has; the page says it once.
COMMON = ("--help", "-o, --output ")


def helps() -> Iterator[tuple[str, str]]:
    """Each command's name (the empty one first: `coach` itself) with its help."""
    group: Any = typer.main.get_command(app)
    above = group.context_class(group, info_name="coach", terminal_width=WIDTH, max_content_width=WIDTH)
    yield "", group.get_help(above)
    yield from _below(group, above)


def _below(group: Any, above: Any, names: str = "") -> Iterator[tuple[str, str]]:
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        context = command.context_class(
            command, info_name=name, parent=above, terminal_width=WIDTH, max_content_width=WIDTH
        )
        yield f"{names}{name}", command.get_help(context)
        if hasattr(command, "commands"):
            yield from _below(command, context, f"{names}{name} ")


def section() -> str:
    """The commands as Markdown."""
    parts = []
    for name, text in helps():
        title = f"## coach {name}" if name else "## coach"
        parts.append(f"{title}\n\n```text\n{_trimmed(text)}\n```\n")
    return "\n".join(parts)


def _trimmed(text: str) -> str:
    """The help without the options that each command has."""
    lines, common = [], False
    for line in text.splitlines():
        if line.startswith("  -"):
            common = line.lstrip().startswith(COMMON)
        elif not line.startswith("   "):
            common = False
        if not common:
            lines.append(line.rstrip())
    return "\n".join(lines).strip().removesuffix("Options:").rstrip()


def page(text: str) -> str:
    """`text` of the page with the commands' help. Raises ValueError without marks."""
    return between(text, BUILT, END, section())
