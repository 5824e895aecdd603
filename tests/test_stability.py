"""What is public (docs/reference/stability.md) is what `tests/data/public_names.txt` has: a break is seen and named.

COACH_UPDATE_GOLDEN=1 writes the file anew. A line that goes or changes is a break: the changelog says so.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coach
from coach.core import policies
from coach.service import client
from scripts.generate.crd import crd, job_schema

ROOT = Path(__file__).parents[1]
SNAPSHOT = ROOT / "tests/data/public_names.txt"


def public_names() -> list[str]:
    """A line for each public name."""
    crd_version = crd()["spec"]["versions"][0]
    lines = [
        *(f"coach: {name}" for name in sorted(coach.__all__)),
        *(line for name in client.__all__ for line in of_python("client", name, getattr(client, name))),
        *(line for name in policies.__all__ for line in of_python("policies", name, getattr(policies, name))),
        *of_schema("job file: ", job_schema()),
        f"CRD: {crd()['metadata']['name']} {crd_version['name']}",
        *of_schema("CRD: ", {"properties": {"status": schema_of(crd_version)["properties"]["status"]}}),
        *of_http(json.loads((ROOT / "docs/reference/openapi.json").read_text())),
    ]
    return list(dict.fromkeys(lines))


def schema_of(version: dict[str, Any]) -> Any:
    return version["schema"]["openAPIV3Schema"]


def of_python(group: str, name: str, value: Any) -> Iterator[str]:
    """A class with its fields, members and methods, or a function with its parameters."""
    if not isinstance(value, type):
        yield f"{group}: {name}{parameters(value)}"
        return
    yield f"{group}: {name}"
    if issubclass(value, enum.Enum):
        yield from (f"{group}: {name}.{member.name} = {member.value}" for member in value)
        return
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    fields |= set(getattr(value, "_fields", ()))
    is_policy = value in {policies.CoachPolicy, policies.StaticPolicy}  # its parameters are public
    members = fields if is_policy else {at for at in dir(value) if not at.startswith("_")} | fields
    for at in sorted(members - set(dir(tuple)) if issubclass(value, tuple) else members):
        member = inspect.getattr_static(value, at, None)
        member = getattr(member, "make", member)  # of an operation
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        yield f"{group}: {name}.{at}{parameters(member) if inspect.isfunction(member) else ''}"


def parameters(function: Any) -> str:
    """`(job, *, wait=)`: names and what has a default."""
    shown, named = [], False
    for one in inspect.signature(function).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not named:
            shown.append("*")
            named = True
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        shown.append(star + one.name + ("=" if one.default is not one.empty else ""))
    return f"({', '.join(shown)})"


def of_schema(prefix: str, node: Any) -> Iterator[str]:
    """The fields below a node of a JSON schema, each with its type, words, and whether it is required."""
    for branch in (node, *node.get("anyOf", ()), *node.get("oneOf", ())):
        for key, part in branch.get("properties", {}).items():
            kind = part.get("type", "") if isinstance(part.get("type", ""), str) else "/".join(part["type"])
            words = "|".join(map(str, part.get("enum", ())))
            required = " required" if key in branch.get("required", ()) else ""
            yield f"{prefix}{key}: {words or kind or 'any'}{required}"
            yield from of_schema(f"{prefix}{key}.", part)
        if "items" in branch:
            yield from of_schema(f"{prefix}[].", branch["items"])


def of_http(document: Any) -> Iterator[str]:
    """Requests with their parameters and status codes, and the fields of what is sent and answered."""
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            given = (one["name"] + ("" if one.get("required") else "=") for one in what.get("parameters", ()))
            yield f"HTTP: {method.upper()} {path} ({', '.join(given)}) -> {' '.join(what['responses'])}"
    for name, schema in document["components"]["schemas"].items():
        words = "|".join(map(str, schema.get("enum", ())))
        yield f"HTTP: {name}{f': {words}' if words else ''}"
        required = schema.get("required", ())
        yield from (f"HTTP: {name}.{key}{' required' * (key in required)}" for key in schema.get("properties", {}))


def test_no_public_name_goes_or_changes_unseen() -> None:
    now = public_names()
    if os.environ.get("COACH_UPDATE_GOLDEN") == "1":
        SNAPSHOT.write_text("\n".join(now) + "\n")
    before = SNAPSHOT.read_text().splitlines()
    broken = [line for line in before if line not in set(now)]
    added = [line for line in now if line not in set(before)]
    assert not broken and not added, (
        "breaks: " + "; ".join(broken or ["none"]) + "\nnew: " + "; ".join(added or ["none"])
        + "\nif this is right: COACH_UPDATE_GOLDEN=1 and run again; a break needs a line in CHANGELOG.md"
    )  # fmt: skip


def test_a_field_that_goes_is_a_break() -> None:
    before = list(of_schema("", {"properties": {"loss": {"type": "number"}}, "required": ["loss"]}))
    assert before == ["loss: number required"]
    assert list(of_schema("", {"properties": {"loss": {"type": "number"}}})) == ["loss: number"]
