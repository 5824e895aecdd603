"""The table of a job file's fields, for the copy of its page that `make docs` makes, and their schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coach.core.spec.job import TrainingJob
from coach.jobfiles.hints import allowed
from coach.jobfiles.schema import Schema, branches, tree
from scripts.generate.marks import BUILT, END, between

PAGE = Path("docs/reference/job-file.md")
#: For editors.
SCHEMA = Path("docs/reference/job-file.schema.json")


def schema() -> str:
    """A job file's JSON schema, as editors read it."""
    found = TrainingJob.model_json_schema(by_alias=True)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=1) + "\n"


def table() -> str:
    """One row a field: name, what it may hold, default, meaning, example; without `testing`, for experiments."""
    lines = ["| field | holds | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
    rows = [row for row in _rows(tree(), (), True) if not row[0].startswith("`spec.testing")]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _rows(node: Schema, at: tuple[str, ...], required: bool) -> Iterator[tuple[str, ...]]:
    part, _ = branches(node)
    if at:
        default = _inline(node["default"]) if "default" in node else "**required**" if required else "-"
        if any(isinstance(inner, dict) for inner in _mapping(node.get("default")).values()):
            default = "see below"
        examples = " or ".join(_inline(example) for example in node.get("examples", []))
        holds = "a mapping" if part is not None and part is node else allowed(node)
        yield f"`{'.'.join(at)}`", holds, default, node.get("description", ""), examples
    if part is not None:
        for key, inner in part.get("properties", {}).items():
            yield from _rows(inner, (*at, key), key in part.get("required", []))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _inline(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(text: str) -> str:
    """`text` of the page with the table. Raises ValueError without marks."""
    return between(text, BUILT, END, table())
