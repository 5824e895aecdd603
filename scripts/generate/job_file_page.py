"""The reference of all fields in docs/reference/job-file.md, from the types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coach.core.spec.job import TrainingJob
from coach.jobfiles.hints import allowed
from coach.jobfiles.schema import Schema, branches, tree

PAGE = Path("docs/reference/job-file.md")
BEGIN = "<!-- fields: written by python -m scripts.generate -->"
END = "<!-- end of fields -->"
#: For editors.
SCHEMA = Path("docs/reference/job-file.schema.json")


def schema() -> str:
    """A job file's JSON schema, as editors read it."""
    found = TrainingJob.model_json_schema(by_alias=True)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=1) + "\n"


def table() -> str:
    """One row a field: name, what it may hold, default, meaning, example."""
    lines = ["| field | holds | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in _rows(tree(), (), True)]
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


def between(text: str, begin: str, end: str, content: str) -> str:
    """`text` of a page with `content` between its two marks. Raises ValueError without marks."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks the line {end if found else begin}")
    return f"{before}{begin}\n\n{content}\n{end}{after}"


def page(text: str) -> str:
    """`text` of the page with the table written anew. Raises ValueError without marks."""
    return between(text, BEGIN, END, table())
