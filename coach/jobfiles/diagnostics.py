"""Mistakes in job files, and how they are reported: `file:line:column field: problem (value seen) - what is right`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coach.core.errors import UserError

_LONGEST_VALUE = 72
_MAX_SHOWN = 100


def plain(text: str, longest: int = _LONGEST_VALUE) -> str:
    """`text` on one line, control and other invisible characters escaped, the end cut where it is long."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(
        character if character.isprintable() and character != "\\" else ascii(character)[1:-1] for character in cut
    )


def show(value: Any, longest: int = _LONGEST_VALUE) -> str:
    """A value as a message shows it: as YAML writes it, short, on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    if isinstance(value, int):
        return f"{value}" if abs(value) < 10**20 else f"{float(value):.3g}"
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)}" if value else "an empty mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value)}" if value else "an empty list"
    return f'"{plain(str(value), longest)}"'


def dotted(keys: Iterable[str]) -> str:
    """A path of keys as messages name a field, such as `spec.target.loss`."""
    return plain(".".join(plain(key) or '""' for key in keys), 300)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its place (line and column from 1), its field, the value seen, and what would be right."""

    path: str
    line: int
    column: int
    field: str
    problem: str
    seen: str
    right: str

    def __str__(self) -> str:
        place = f"{plain(self.path, 300)}:{self.line}:{self.column}"
        field = f" {self.field}" if self.field else ""
        return f"{place}{field}: {self.problem} ({self.seen}) - {self.right}"


class JobFileError(UserError):
    """All mistakes of all files, in `problems`; the message has one a line. Nothing was started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_MAX_SHOWN]]
        if len(self.problems) > _MAX_SHOWN:
            lines.append(f"and {len(self.problems) - _MAX_SHOWN} more")
        super().__init__("\n".join(lines))
