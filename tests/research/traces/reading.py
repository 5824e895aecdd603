"""Traces written and read in tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach_research.traces.draft import Note, Trace
from coach_research.traces.replay import read_trace

DATA = Path("tests/data/traces")


def read(folder: Path, content: str | bytes, kind: str = "", name: str = "trace.csv") -> Trace:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(f"{kind}:{file}" if kind else str(file))


def refusal(folder: Path, content: str | bytes, kind: str = "", name: str = "trace.csv") -> str:
    """The one line with which the file is refused, without its folder."""
    with pytest.raises(UserError) as refused:
        read(folder, content, kind, name)
    words = str(refused.value).replace(f"{folder}/", "")
    assert len(words) < 600 and "\n" not in words and words.isprintable()
    return words


def notes(of: Iterable[Note]) -> list[tuple[str, int, str]]:
    return [(note.job, note.line, note.why) for note in of]
