"""The commands' help, which `make docs` writes into its copy of docs/reference/cli.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from coach.cli.commands import COMMANDS, app
from scripts.generate.marks import BUILT, END, between

PAGE = Path("docs/reference/cli.md")
WIDTH = 80
#: So many commands have an option of many.
MANY = 2


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
    """The commands as Markdown: first the options of many, which each of these commands only names."""
    own = {name: text for name, text in helps() if name.partition(" ")[0] in {"", *COMMANDS}}  # none of a package
    shown = [found for text in own.values() for found in _options(text)]
    times = Counter(meaning for _, meaning, _ in shown)
    many = {meaning: text for _, meaning, text in shown if times[meaning] >= MANY}
    parts = [_block("Options of many commands", "\n".join(many.values()))]
    parts += [_block(f"coach {name}".rstrip(), _without(text, many)) for name, text in own.items()]
    return "\n".join(parts)


def _block(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n"


def _options(text: str) -> list[tuple[str, str, str]]:
    """Each option of a help: its name, its words without the spaces between them, and its lines."""
    after = text.partition("\nOptions:\n")[2]
    found = re.findall(r"^(  -.*(?:\n {6,}.*)*)\n?", after, re.MULTILINE)
    return [(re.findall(r"--[a-z-]+", lines)[0], " ".join(lines.split()), lines) for lines in found]


def _without(text: str, many: Mapping[str, str]) -> str:
    """A help in which the options of many commands are names alone."""
    names = []
    for name, meaning, lines in _options(text):
        if meaning in many:
            names.append(name)
            text = text.replace(f"{lines}\n", "", 1) if f"{lines}\n" in text else text.replace(lines, "", 1)
    text = re.sub(r"\n\n(?!Options)[A-Z][^\n]*:(?=\n\n|\s*$)", "", text)  # a panel of which nothing is left
    return text.replace("\nOptions:\n", f"\nOptions (as above: {', '.join(names)}):\n") if names else text


def page(text: str) -> str:
    """`text` of the page with the commands' help. Raises ValueError without marks."""
    return between(text, BUILT, END, section())
