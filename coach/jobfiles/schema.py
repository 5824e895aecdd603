"""The job file's schema as a tree to look fields up in."""

from __future__ import annotations

from functools import cache
from typing import Any

from coach.core.spec import quantities
from coach.core.spec.job import TrainingJob
from coach.core.spec.types import SpecModel

Schema = dict[str, Any]

KIND = "TrainingJob"


@cache
def tree(kind: type[SpecModel] = TrainingJob) -> Schema:
    """The schema of a whole document, without `$ref` and without `null` branches. Not to be changed."""
    schema = kind.model_json_schema(by_alias=True)
    return resolve(schema, schema["$defs"])


def resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """`node` with references put in and `x | null` made `x`; keys next to a reference override those it refers to."""
    merged = dict(node)
    if "$ref" in merged:
        merged = {**definitions[merged.pop("$ref").rpartition("/")[2]], **merged}
        merged.pop("$ref", None)
    for word in ("anyOf", "oneOf"):
        branches = [branch for branch in merged.get(word, []) if branch.get("type") != "null"]
        if len(branches) < len(merged.get(word, [])) and len(branches) == 1:
            del merged[word]
            merged = {**branches[0], **merged}
            return resolve(merged, definitions)
        if branches:
            merged[word] = [resolve(branch, definitions) for branch in branches]
    if "items" in merged:
        merged["items"] = resolve(merged["items"], definitions)
    if "properties" in merged:
        merged["properties"] = {key: resolve(sub, definitions) for key, sub in merged["properties"].items()}
    if "patternProperties" in merged:  # how pydantic writes a mapping whose keys have a pattern
        merged["additionalProperties"] = next(iter(merged.pop("patternProperties").values()))
    if isinstance(merged.get("additionalProperties"), dict):
        merged["additionalProperties"] = resolve(merged["additionalProperties"], definitions)
    if merged.get("default", ...) is None:
        del merged["default"]
    elif merged.get("format") == "duration" and "default" in merged:
        merged["default"] = quantities.duration(merged["default"])
    elif "default" in merged:
        merged["default"] = _without_none(merged["default"])
    for word in ("$defs", "title"):
        merged.pop(word, None)
    return merged


def _without_none(value: Any) -> Any:
    """A default as JSON has it, where an absent field is left out."""
    if not isinstance(value, dict):
        return value
    return {key: _without_none(inner) for key, inner in value.items() if inner is not None}


def branches(node: Schema) -> tuple[Schema | None, Schema | None]:
    """The object and the word that `node` may be, each None where it may not be that."""
    options = node.get("oneOf", [node])
    objects = [option for option in options if option.get("type") == "object"]
    words = [option for option in options if option.get("type") == "string"]
    return (objects or [None])[0], (words or [None])[0]


def lookup(path: tuple[str, ...], kind: type[SpecModel] = TrainingJob) -> Schema | None:
    """The schema's node at a path of YAML keys, or None where there is none."""
    node: Schema | None = tree(kind)
    for key in path:
        found = branches(node)[0] if node else None
        if found is None:
            return None
        further = found.get("additionalProperties")
        node = found.get("properties", {}).get(key) or (further if isinstance(further, dict) else None)
    return node
