"""What a command and its user put into job files: `--set FIELD=VALUE`, and the user's own defaults.

The defaults are a file with fields of `spec`, such as `prices` and `budget`. A job has those that its file leaves out;
of `budget` also the currency, where the file says an amount without one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coach.core.errors import UserError
from coach.core.money import HOURS
from coach.jobfiles.diagnostics import JobFileError, Problem, show
from coach.jobfiles.schema import lookup
from coach.jobfiles.yaml_nodes import Key, YamlNode, read

#: Fields that may be set by another name.
ALIASES = {"optimizer.lr": "optimizer.learningRate"}
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_/-]+)*")
_RIGHT = "a field and its value, such as optimizer.learningRate=0.1, workers.max=4 or 'target={loss: 0.3}'"


@dataclass(frozen=True, slots=True)
class Changes:
    """Fields by their paths, set in each job; and defaults, with the file that they are from."""

    fields: tuple[tuple[tuple[str, ...], YamlNode], ...] = ()
    defaults: YamlNode = field(default_factory=lambda: YamlNode(1, 1, kind=dict))
    path: Path = Path()

    @classmethod
    def read(cls, written: Sequence[str] = (), defaults: Path | None = None) -> Changes:
        """Of `FIELD=VALUE` texts, values in YAML, and of a file of defaults. Raises UserError."""
        fields = []
        for text in written:
            name, equals, value = text.partition("=")
            name = ALIASES.get(name := name.strip().removeprefix("spec."), name)
            nodes, problems = read(value.encode("utf-8", "replace"), "--set")
            if not equals or not _FIELD.fullmatch(name) or len(nodes) != 1 or problems:
                raise UserError(f"--set {text!r}: {_RIGHT}")
            path = tuple(name.split("."))
            fields.append((path if path[0] == "metadata" else ("spec", *path), nodes[0]))
        if defaults is None or not defaults.is_file():
            return cls(tuple(fields))
        nodes, problems = read(defaults.read_bytes(), str(defaults))
        if problems:
            raise JobFileError(problems)
        found = nodes[0] if nodes else YamlNode(1, 1, kind=dict)
        right = "fields of a job's spec, such as prices and budget"
        if found.kind is not dict:
            raise JobFileError([Problem(str(defaults), 1, 1, "", "not a mapping", show(found.plain()), right)])
        if unknown := [key for key, _ in found.items if lookup(("spec", key.text)) is None]:
            raise JobFileError(
                [Problem(str(defaults), key.line, key.column, "", "no such field", show(key.text), right)
                 for key in unknown]
            )  # fmt: skip
        return cls(tuple(fields), found, defaults)

    def apply(self, document: YamlNode) -> tuple[str, ...]:
        """Put them into a document; the names of the defaults that it took. A document without `spec` stays."""
        for path, node in self.fields:
            _put(document, path, node)
        spec = document.find("spec")
        if spec is None or spec[1].kind is not dict:
            return ()
        taken = []
        for key, node in self.defaults.items:
            if key.text == "prices" and _counts_hours(spec[1]):
                continue  # prices of money
            own = spec[1].find(key.text)
            at: tuple[str, ...] = ("spec", key.text)
            if key.text == "budget":
                currency = node.find("currency")
                lacks = own is not None and own[1].find("amount") is not None and own[1].find("currency") is None
                if currency is not None and lacks:
                    at, node, own = (*at, "currency"), currency[1], None  # noqa: PLW2901
                elif currency is not None and len(node.items) == 1:
                    continue  # the currency of budgets, but no budget
            if own is None:
                _put(document, at, node)
                taken.append(".".join(at[1:]))
        return tuple(taken)

    def placed(self, mistake: Problem, taken: Sequence[str]) -> Problem:
        """A mistake in what was set, as line N of `--set`, counted from 1; in a default that was taken, in its file."""
        for number, (path, _) in enumerate(self.fields, 1):
            if f"{mistake.field}.".startswith(f"{'.'.join(path)}."):
                return replace(mistake, path="--set", line=number, column=1)
        for key, _ in self.defaults.items:
            if any(f"{mistake.field}.".startswith(f"spec.{name}.") for name in taken if name.split(".")[0] == key.text):
                return replace(mistake, path=str(self.path), line=key.line, column=key.column)
        return mistake


NO_CHANGES = Changes()


def defaults_file() -> Path:
    """The user's file of defaults: COACH_DEFAULTS, else `coach/defaults.yaml` in the folder of configurations."""
    chosen = os.environ.get("COACH_DEFAULTS")
    config = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(config) if config else Path.home() / ".config"
    return Path(chosen).expanduser() if chosen else folder / "coach" / "defaults.yaml"


def _counts_hours(spec: YamlNode) -> bool:
    budget = spec.find("budget")
    currency = budget[1].find("currency") if budget else None
    return currency is not None and currency[1].value in HOURS


def _put(document: YamlNode, path: tuple[str, ...], value: YamlNode) -> None:
    """Set the field at a path; its place is that of the value before, or of the mapping that it is put into.

    An alias's value is one node in several places, so the mappings on the way are copied.
    """
    node = document
    for at, name in enumerate(path):
        if node.kind is not dict:
            there = f"{path[at - 1]} is {show(node.plain())} in the job file"
            raise UserError(f"--set {'.'.join(path)}: {there}, and has no fields")
        last = at == len(path) - 1
        found = node.find(name)
        place = (found[1].line, found[1].column) if found else (node.line, node.column)
        new = _placed(value, *place) if last else replace(found[1]) if found else YamlNode(*place, kind=dict)
        new.items = list(new.items)
        key = found[0] if found else Key(name, *place)
        node.items = [item for item in node.items if item[0].text != name] + [(key, new)]
        node = new


def _placed(node: YamlNode, line: int, column: int) -> YamlNode:
    """The value as if it stood at that place."""
    items = [(Key(key.text, line, column), _placed(inner, line, column)) for key, inner in node.items]
    return replace(node, line=line, column=column, items=items)
