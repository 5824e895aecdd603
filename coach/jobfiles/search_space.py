"""What a search tries: parameters with their values or ranges, and the job of each trial.

`optimizer.learningRate=0.01,0.1` is a list; `lr=loguniform(1e-4,1e-1)`, `uniform(a,b)`, `randint(a,b)` and
`lograndint(a,b)` are ranges, both ends included. `momentum=uniform(0,1) if optimizer.name=sgd` is there for these
values of another parameter alone. A parameter of a job file is a field of `spec`; one of a program is a `{name}` in
its command, which gets a listed value as it was typed. `layers="64,64","128"` are texts, which may have commas.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.jobfiles.changes import NO_CHANGES, Changes
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_contents

#: Labels of a trial's job: the search's name, and the trial's number.
SEARCH, TRIAL = "coach.dev/search", "coach.dev/trial"
#: Label of a final job: the trial whose parameters it trains with another seed.
FINAL = "coach.dev/final-of"
#: The parameter of `--seeds`.
SEED = "seed"
#: A value of a parameter.
Value = str | int | float | bool

_RANGE = re.compile(r"(log)?(uniform|randint)\(([^,()]+),([^,()]+)\)")
#: A value of a list: a text in quotes, or what has no comma.
_LISTED = re.compile(r'\s*(?:"([^"]*)"|([^,"]*[^,"\s]))\s*(?:,|$)')
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RIGHT = "values such as 0.01,0.1, or a range: uniform(0,1), loguniform(1e-4,1e-1), randint(1,8), lograndint(16,512)"


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these values; `typed`: how each was written."""

    values: tuple[Value, ...]
    typed: tuple[str, ...] = field(default=(), compare=False)

    def text(self, value: Value) -> str:
        """A value as it was written."""
        same = (text for one, text in zip(self.values, self.typed, strict=False) if repr(one) == repr(value))
        return next(same, str(value))


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`: whole, or any; `log`: evenly by its logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters of a search, by name."""

    parameters: Mapping[str, Choices | Range]
    #: By parameter: another one, said before it, and those of its values with which it is there.
    conditions: Mapping[str, tuple[str, tuple[Value, ...]]] = field(default_factory=dict)

    @classmethod
    def read(cls, written: Sequence[str], seeds: int = 0) -> Space:
        """The space of `KEY=VALUES` texts, each set of values with `seeds` seeds. Raises UserError."""
        found: dict[str, Choices | Range] = {}
        conditions = {}
        for text in written:
            key, equals, values = text.partition("=")
            key = key.strip().removeprefix("spec.")
            if not equals or not _KEY.fullmatch(key):
                raise UserError(f"--set {text!r}: a parameter and its values, KEY=VALUES; {_RIGHT}")
            if key in found or (seeds and key == SEED):
                raise UserError(f"--set {text!r}: {key} is set twice")
            values, when, condition = values.partition(" if ")
            if when:
                conditions[key] = _condition(text, condition, found)
            found[key] = _domain(text, values.strip())
        if seeds:
            found[SEED] = Choices(tuple(range(1, seeds + 1)))
        if not found:
            raise UserError(f"nothing to search; name a parameter: --set KEY=VALUES; {_RIGHT}")
        return cls(found, conditions)

    def active(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Those of `values` whose conditions hold."""
        found: dict[str, Value] = {}
        for key, value in values.items():
            other, wanted = self.conditions.get(key, ("", ()))
            if not other or found.get(other) in wanted:
                found[key] = value
        return found

    def place(self, values: Mapping[str, Value]) -> tuple[float, ...]:
        """Where a set of values is, each coordinate from 0 to 1; a list with words has one for each of its values."""
        found: list[float] = []
        for key, domain in self.parameters.items():
            value = values.get(key)
            if isinstance(domain, Range):
                low, high, at = domain.low, domain.high, domain.low if value is None else float(value)
                low, high, at = (math.log(one) if domain.log else one for one in (low, high, at))
                found.append((at - low) / (high - low))
            elif any(isinstance(one, str | bool) for one in domain.values):
                found += [float(one == value) for one in domain.values]
            else:
                ranks = sorted(domain.values)
                found.append(ranks.index(value) / max(1, len(ranks) - 1) if value in ranks else 0.0)
        return tuple(found)

    @property
    def grid(self) -> list[dict[str, Value]] | None:
        """All sets of values, the last parameter changing first; None where there is a range."""
        lists = [one.values for one in self.parameters.values() if isinstance(one, Choices)]
        if len(lists) < len(self.parameters):
            return None
        found: list[dict[str, Value]] = []
        for values in itertools.product(*lists):
            one = self.active(dict(zip(self.parameters, values, strict=True)))
            if not self.conditions or one not in found:
                found.append(one)
        return found

    def corners(self) -> list[dict[str, Value]]:
        """Sets of values in which each value of a list, and both ends of each range, are at least once."""
        ends = {
            key: one.values if isinstance(one, Choices) else (_number(one.low, one), _number(one.high, one))
            for key, one in self.parameters.items()
        }
        found = []
        for at in range(max(map(len, ends.values()))):
            values = {key: one[at % len(one)] for key, one in ends.items()}
            found.append(self.active(values))
            for key in self.conditions.keys() - found[-1].keys():
                met, parent = dict(values), key
                while parent in self.conditions:
                    parent, wanted = self.conditions[parent]
                    met[parent] = wanted[0]
                found.append(self.active(met))
        return found


def _number(value: float, of: Range) -> int | float:
    return int(value) if of.whole else value


def _domain(text: str, values: str) -> Choices | Range:
    if found := _RANGE.fullmatch(values.replace(" ", "")):
        log, kind, *ends = found.groups()
        low, high = (_scalar(end) for end in ends)
        whole = kind == "randint"
        numbers = all(
            isinstance(end, int if whole else (int, float)) and not isinstance(end, bool) for end in (low, high)
        )
        if not numbers or not low < high or (log and not low > 0):  # type: ignore[operator]
            what = f"two {'whole ' if whole else ''}numbers, the smaller one first{', both above 0' if log else ''}"
            raise UserError(f"--set {text!r}: {what}; {_RIGHT}")
        return Range(float(low), float(high), log=bool(log), whole=whole)
    read, at = list[tuple[Value, str]](), 0
    while not read or at < len(values) or values.endswith(",", 0, at):
        one = _LISTED.match(values, at)
        if one is None or "(" in (one[2] or ""):
            raise UserError(f'--set {text!r}: {_RIGHT}; a text with a comma in quotes: "64,64"')
        read.append((_scalar(one[2]), one[2]) if one[1] is None else (one[1], one[1]))
        at = one.end()
    listed, typed = zip(*read, strict=True)
    if len({(isinstance(value, bool), value) for value in listed}) < len(listed):
        raise UserError(f"--set {text!r}: a value is there twice; to repeat trials: --seeds 3")
    return Choices(listed, typed)


def _condition(text: str, condition: str, known: Mapping[str, Choices | Range]) -> tuple[str, tuple[Value, ...]]:
    """`optimizer.name=sgd,nag` behind `if`. Raises UserError."""
    other, equals, values = condition.partition("=")
    other = other.strip().removeprefix("spec.")
    domain, wanted = known.get(other), tuple(_scalar(one.strip()) for one in values.split(","))
    if not equals or not isinstance(domain, Choices) or not set(wanted) <= set(domain.values):
        lists = [f"{key}={','.join(map(str, one.values))}" for key, one in known.items() if isinstance(one, Choices)]
        right = f"some of the values of a list that comes before it: {' or '.join(lists) or 'there is none'}"
        raise UserError(f"--set {text!r}: if {condition}: {right}")
    return other, wanted


def _scalar(text: str) -> Value:
    if _NUMBER.fullmatch(text):
        whole = _WHOLE.fullmatch(text)
        if whole or "." in text or "e" in text.lower():
            return int(text) if whole else float(text)
    return {"true": True, "false": False}.get(text, text)


def written(parameters: Mapping[str, Value]) -> str:
    """`lr=0.01 batch=32`."""
    return " ".join(
        f"{key}={f'{value:.4g}' if isinstance(value, float) else _plain(value)}" for key, value in parameters.items()
    )


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def trial_job(  # noqa: PLR0917 - what a trial is
    base: TrainingJob,
    search: str,
    number: int,
    parameters: Mapping[str, Value],
    space: Space,
    final_epochs: int = 0,
) -> TrainingJob:
    """The job of a trial, paid by the account of its search. Raises UserError for a parameter that it cannot have.

    Those of the `space` that are not among `parameters` are left out of a command. `final_epochs`: of one that trains
    a trial's parameters with another seed.
    """
    document = copy.deepcopy(base.to_json())
    spec = document["spec"]
    bounded = base.spec.target or base.spec.program or base.spec.max_epochs or base.spec.time_limit
    amount = {key: spec["budget"][key] for key in ("amount", "currency") if not bounded and key in spec["budget"]}
    name = f"{search}-{number}-seed-{parameters[SEED]}" if final_epochs else f"{search}-{number}"
    own = {SEARCH: search, FINAL if final_epochs else TRIAL: str(number)}
    document["metadata"] = {"name": name, "labels": {**base.metadata.labels, **own}}
    # The search decides which trial goes on.
    spec |= {"budget": {**amount, "account": search}, "stopEarly": False}
    if final_epochs:
        spec["maxEpochs"] = final_epochs
    changes = NO_CHANGES
    if base.spec.program is not None:
        for key in space.parameters.keys() - parameters.keys():
            _leave_out(spec["program"], key)
        for key, value in parameters.items():
            domain = space.parameters.get(key)
            _fill(spec["program"], key, domain.text(value) if isinstance(domain, Choices) else _plain(value))
    else:
        changes = Changes.read([f"{key}={json.dumps(value)}" for key, value in parameters.items()])
    content = json.dumps(document).encode()
    try:
        return load_contents([(Path("job.yaml"), content)], check_files=False, changes=changes)[0].spec
    except JobFileError as error:
        one = error.problems[0]
        seen = f" ({one.seen})" if one.seen else ""
        raise UserError(f"--set {written(parameters)}: {one.field}: {one.problem}{seen} - {one.right}") from error


def _fill(program: dict[str, Any], key: str, text: str) -> None:
    """Put a value for `{key}` into a command and its environment."""
    marked = f"{{{key}}}"
    env = program.get("env", {})
    if not any(marked in word for word in (*program["command"], *env.values())):
        raise UserError(f"--set {key}: the command has no {marked}; mark where it goes, such as --{key} {marked}")
    program["command"] = [word.replace(marked, text) for word in program["command"]]
    program["env"] = {name: word.replace(marked, text) for name, word in env.items()}


def _leave_out(program: dict[str, Any], key: str) -> None:
    """Take the words with `{key}` out of a command and its environment, and the option before `{key}`."""
    marked, command = f"{{{key}}}", program["command"]
    out = {at for at, word in enumerate(command) if marked in word}
    out |= {at - 1 for at in out if at and command[at] == marked and command[at - 1].startswith("-")}
    program["command"] = [word for at, word in enumerate(command) if at not in out]
    program["env"] = {name: word for name, word in program.get("env", {}).items() if marked not in word}
