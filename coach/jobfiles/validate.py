"""From a document's nodes to a TrainingJob, or to its mistakes with their places.

The types find all mistakes of the fields at once; those between the fields of `spec` once every field is right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, TypeVar

import pydantic
from pydantic_core import ErrorDetails

from coach.core.errors import UserError
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.training import Framework
from coach.core.spec.types import IN_WORDS, OF_KEYS, CrossFieldError, SpecModel
from coach.jobfiles import optimizers, prices
from coach.jobfiles.diagnostics import Problem, dotted, show
from coach.jobfiles.hints import right_for
from coach.jobfiles.schema import branches, lookup
from coach.jobfiles.yaml_nodes import YamlNode

Path = tuple[str, ...]
Read = TypeVar("Read", bound=SpecModel)

_ENOUGH = 200  #: mistakes in one document; a file with more is no slip


def check(
    document: YamlNode,
    path: str,
    framework: Framework | None = None,
    knows: optimizers.Knows = optimizers.nothing_known,
) -> tuple[TrainingJob | None, list[Problem]]:
    """The job that a document holds, or None, and its mistakes.

    `framework`: that of a document that does not say it. `knows`: which optimizers a framework has.
    """
    if document.kind is not dict:
        right = "apiVersion, kind, metadata and spec"
        seen = show(document.plain())
        return None, [Problem(path, document.line, document.column, "", "not a mapping", seen, right)]
    data = document.plain()
    if framework is not None and isinstance(data.get("spec"), dict):
        data["spec"].setdefault("framework", framework.value)
    job, problems = read_as(TrainingJob, document, path, data, _priced(document, path, data))
    if job is not None and job.spec.optimizer is not None and (known := knows(job.spec.framework)) is not None:
        problems = sorted(_optimizer(document, path, job.spec, known), key=lambda one: (one.line, one.column))
    return (None if problems else job), problems


def read_as(
    kind: type[Read], document: YamlNode, path: str, data: Any, found: dict[Path, Problem] | None = None
) -> tuple[Read | None, list[Problem]]:
    """What a document, whose values are `data`, holds of a kind, or None, and its mistakes.

    `found`: mistakes by their fields, of which nothing more is said.
    """
    found = dict(_valueless(document, path, kind)) | (found or {})
    made = None
    try:
        made = kind.model_validate(data, by_alias=True, by_name=False)
    except pydantic.ValidationError as invalid:
        for error in invalid.errors(include_url=False)[:_ENOUGH]:
            at = _location(error, kind)
            if error["type"] != "conflicts":
                if not any(_related(at, wrong) for wrong in found):
                    found[at] = _mistake(document, path, at, error, kind)
                continue
            for conflict in error["ctx"]["conflicts"]:
                where, *others = (at + inner for inner in (conflict.at, *conflict.others))
                if not any(_related(each, wrong) for each in (where, *others) for wrong in found):
                    found[where] = _conflict(document, path, where, others, conflict)
    problems = sorted(found.values(), key=lambda problem: (problem.line, problem.column))
    return (None if problems else made), problems


def _priced(document: YamlNode, path: str, data: dict[str, Any]) -> dict[Path, Problem]:
    """Put the numbers of an offer in the place of its name; or say why there is no such offer."""
    spec = data.get("spec")
    named = spec.get("prices") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(named, str) or "/" not in named:
        return {}
    try:
        spec["prices"] = prices.prices_of(named)
    except UserError as error:
        at = ("spec", "prices")
        return {at: Problem(path, *place(document, at), dotted(at), "no such offer", show(named), str(error))}
    return {}


def place(document: YamlNode, at: Path) -> tuple[int, int]:
    """Line and column of the value at a path, or of the deepest part of it that is there."""
    node, line, column = document, document.line, document.column
    for key in at:
        if (found := node.find(key)) is None:
            break
        node = found[1]
        line, column = (node.line, node.column) if node.kind not in (dict, list) else (found[0].line, found[0].column)
    return line, column


def _valueless(node: YamlNode, path: str, kind: type[SpecModel], at: Path = ()) -> Iterator[tuple[Path, Problem]]:
    """Keys with nothing behind them: forgotten, or meant as a default? Better to ask."""
    for key, item in node.items:
        inner = (*at, key.text)
        if item.kind is type(None):
            right = f"{right_for(inner, kind)}; or leave the key out" if lookup(inner, kind) else "a key that there is"
            yield inner, Problem(path, key.line, key.column, dotted(inner), "no value", "nothing", right)
        yield from _valueless(item, path, kind, inner)


def _location(error: ErrorDetails, kind: type[SpecModel]) -> Path:
    """An error's path of YAML keys: without the names of union branches and the mark for keys."""
    at: Path = ()
    for part in error["loc"]:
        node = lookup(at, kind) or {}
        if part in ("<word>", "<object>") and None not in branches(node):
            continue
        if part == "[key]" and "additionalProperties" in (lookup(at[:-1], kind) or {}):
            continue
        at = (*at, str(part))
    return at


def _mistake(document: YamlNode, path: str, at: Path, error: ErrorDetails, of: type[SpecModel]) -> Problem:
    line, column = place(document, at)
    kind, seen = error["type"], show(error["input"])
    right = right_for(at, of)
    if kind == "missing":
        problem, seen = "required", "not there"
    elif kind == "extra_forbidden":
        problem, seen, right = "no such field", show(at[-1]), _similar(at, of)
        if at[:-1] == ("spec", "target") and ("did you mean" not in right or right[13:-1] in at[-1]):
            right = f"of another metric: {{metric: {at[-1][:40]}, value: {show(error['input'])}}}"
        line, column = _key_place(document, at)
    elif kind == "string_pattern_mismatch" and error["ctx"]["pattern"] in OF_KEYS:
        problem, seen, right = "not a good name", show(at[-1]), IN_WORDS[error["ctx"]["pattern"]]
        line, column = _key_place(document, at)
    elif kind == "mistake":
        problem, right = error["ctx"]["problem"], error["ctx"]["right"]
    elif kind in ("too_long", "string_too_long", "string_too_short"):
        problem = "too short" if kind.endswith("short") else "too long"
    else:
        problem = _PROBLEMS.get(kind, "wrong")
        if kind == "string_type" and isinstance(error["input"], (int, float)):
            right = f'text (in quotes, "{show(error["input"])}"): {right}'
    return Problem(path, line, column, dotted(at), problem, seen, right)


def _optimizer(document: YamlNode, path: str, spec: JobSpec, known: optimizers.Catalogue) -> Iterator[Problem]:
    """What the framework would refuse of an optimizer, once training has begun."""
    assert spec.optimizer is not None
    for key, problem, seen, right in optimizers.mistakes(spec.optimizer, spec.framework, known):
        at = ("spec", "optimizer", *key.split("."))
        line, column = place(document, at) if at[-1] == "name" else _key_place(document, at)
        yield Problem(path, line, column, dotted(at), problem, seen, right)


_PROBLEMS = {
    "model_type": "not a mapping",
    "dict_type": "not a mapping",
    "string_type": "not text",
    "string_unicode": "not text",
    "string_pattern_mismatch": "not of the right form",
    "bool_type": "not true or false",
    "int_type": "not a whole number",
    "float_type": "not a number",
    "finite_number": "not a finite number",
    "greater_than": "too small",
    "greater_than_equal": "too small",
    "less_than": "too large",
    "less_than_equal": "too large",
    "enum": "not one of the words",
    "literal_error": "not one of the words",
}


def _conflict(document: YamlNode, path: str, where: Path, others: list[Path], conflict: CrossFieldError) -> Problem:
    found = find(document, where)
    written = [other for other in others if find(document, other)]
    # A default is in conflict: point to what was written.
    line, column = place(document, where if found or not written else written[0])
    default = (lookup(where) or {}).get("default")
    absent = "not there" if default is None else f"the default, {show(default)}"
    seen = show(found.plain()) if found else absent
    return Problem(path, line, column, dotted(where), conflict.problem, seen, conflict.right)


def _similar(at: Path, of: type[SpecModel]) -> str:
    """The name that was probably meant, or all the names there are."""
    part = branches(lookup(at[:-1], of) or {})[0] or {}
    names = list(part.get("properties", {}))
    folded = {name.lower(): name for name in names}
    meant = at[-1][:40].replace("_", "").replace("-", "").lower()
    close = difflib.get_close_matches(meant, folded, 1, 0.7)
    return f"did you mean {folded[close[0]]}?" if close else f"one of {', '.join(names)}"


def _key_place(document: YamlNode, at: Path) -> tuple[int, int]:
    parent = find(document, at[:-1])
    found = parent.find(at[-1]) if parent else None
    return (found[0].line, found[0].column) if found else place(document, at)


def find(document: YamlNode, at: Path) -> YamlNode | None:
    """The node at a path of keys, or None."""
    node: YamlNode | None = document
    for key in at:
        found = node.find(key) if node else None
        node = found[1] if found else None
    return node


def _related(one: Path, other: Path) -> bool:
    """Whether one is the other, or a part of it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
