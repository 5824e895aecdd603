"""The list of a job file's fields, for the copy of its page that `make docs` makes, and their schema."""

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


#: For experiments, and what is as for a worker.
LEFT_OUT = ("- `spec.testing", "- `spec.resources.scheduler.", "- `spec.resources.server.")


def schema() -> str:
    """A job file's JSON schema, as editors read it."""
    found = TrainingJob.model_json_schema(by_alias=True)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=1) + "\n"


def fields() -> str:
    """A line for each field: name, what it may hold, default, meaning, example; without LEFT_OUT."""
    return "".join(line for line in _lines(tree(), (), True) if not line.startswith(LEFT_OUT))


def _lines(node: Schema, at: tuple[str, ...], required: bool) -> Iterator[str]:
    part, _ = branches(node)
    if at:
        holds = "a mapping" if part is not None and part is node else allowed(node)
        default = f"; default {_inline(node['default'])}" if "default" in node else "; **required**" if required else ""
        if any(isinstance(inner, dict) for inner in _mapping(node.get("default")).values()):
            default = ""
        examples = " or ".join(_inline(example) for example in node.get("examples", []))
        meaning = node.get("description", "")
        yield f"- `{'.'.join(at)}` ({holds}{default}): {meaning}{f' Example: {examples}' if examples else ''}\n"
    if part is not None:
        for key, inner in part.get("properties", {}).items():
            yield from _lines(inner, (*at, key), key in part.get("required", []))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _inline(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False)
    return f"`{text.removesuffix('...' + chr(10)).strip()}`"


def page(text: str) -> str:
    """`text` of the page with all fields. Raises ValueError without marks."""
    return between(text, BUILT, END, fields())
