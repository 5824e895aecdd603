"""What a search tries: parameters with their values or ranges, and the job of each trial.

`optimizer.learningRate=0.01,0.1` is a list; `lr=loguniform(1e-4,1e-1)`, `uniform(a,b)`, `randint(a,b)` and
`lograndint(a,b)` are ranges, both ends included. A parameter of a job file is a field of `spec`; one of a program is a
`{name}` in its command.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.jobfiles.changes import ALIASES
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_contents

#: Labels of a trial's job: the search's name, and the trial's number.
SEARCH, TRIAL = "coach.dev/search", "coach.dev/trial"
#: The parameter of `--seeds`.
SEED = "seed"
#: A value of a parameter.
Value = str | int | float | bool

_RANGE = re.compile(r"(log)?(uniform|randint)\(([^,()]+),([^,()]+)\)")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RIGHT = "values such as 0.01,0.1, or a range: uniform(0,1), loguniform(1e-4,1e-1), randint(1,8), lograndint(16,512)"


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these values."""

    values: tuple[Value, ...]


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

    @classmethod
    def read(cls, written: Sequence[str], seeds: int = 0) -> Space:
        """The space of `KEY=VALUES` texts, each set of values with `seeds` seeds. Raises UserError."""
        found: dict[str, Choices | Range] = {}
        for text in written:
            key, equals, values = text.partition("=")
            key = key.strip().removeprefix("spec.")
            if not equals or not _KEY.fullmatch(key):
                raise UserError(f"--set {text!r}: a parameter and its values, KEY=VALUES; {_RIGHT}")
            if key in found or (seeds and key == SEED):
                raise UserError(f"--set {text!r}: {key} is set twice")
            found[key] = _domain(text, values.strip())
        if seeds:
            found[SEED] = Choices(tuple(range(1, seeds + 1)))
        if not found:
            raise UserError(f"nothing to search; name a parameter: --set KEY=VALUES; {_RIGHT}")
        return cls(found)

    @property
    def grid(self) -> list[dict[str, Value]] | None:
        """All sets of values, the last parameter changing first; None where there is a range."""
        lists = [one.values for one in self.parameters.values() if isinstance(one, Choices)]
        if len(lists) < len(self.parameters):
            return None
        return [dict(zip(self.parameters, values, strict=True)) for values in itertools.product(*lists)]

    def corners(self) -> list[dict[str, Value]]:
        """Sets of values in which each value of a list, and both ends of each range, are at least once."""
        ends = [
            one.values if isinstance(one, Choices) else (_number(one.low, one), _number(one.high, one))
            for one in self.parameters.values()
        ]
        most = max(map(len, ends))
        return [{key: one[at % len(one)] for key, one in zip(self.parameters, ends, strict=True)} for at in range(most)]


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
    if not values or "(" in values or any(not one.strip() for one in values.split(",")):
        raise UserError(f"--set {text!r}: {_RIGHT}")
    listed = tuple(_scalar(one.strip()) for one in values.split(","))
    if len(set(listed)) < len(listed):
        raise UserError(f"--set {text!r}: a value is there twice; to repeat trials: --seeds 3")
    return Choices(listed)


def _scalar(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def written(parameters: Mapping[str, Value]) -> str:
    """`lr=0.01 batch=32`."""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in parameters.items()
    )


def trial_job(base: TrainingJob, search: str, number: int, parameters: Mapping[str, Value]) -> TrainingJob:
    """The job of a trial, paid by the account of its search. Raises UserError for a parameter that it cannot have."""
    document = copy.deepcopy(base.to_json())
    spec = document["spec"]
    bounded = base.spec.target or base.spec.program or base.spec.max_epochs or base.spec.time_limit
    amount = {key: spec["budget"][key] for key in ("amount", "currency") if not bounded and key in spec["budget"]}
    document["metadata"] = {
        "name": f"{search}-{number}",
        "labels": {**base.metadata.labels, SEARCH: search, TRIAL: str(number)},
    }
    # The search decides which trial goes on.
    spec |= {"budget": {**amount, "account": search}, "stopEarly": False}
    for key, value in parameters.items():
        if base.spec.program is not None:
            _fill(spec["program"], key, value)
        else:
            _put(spec, key, value)
    try:
        return load_contents([(Path("job.yaml"), json.dumps(document).encode())], check_files=False)[0].spec
    except JobFileError as error:
        one = error.problems[0]
        seen = f" ({one.seen})" if one.seen else ""
        raise UserError(f"--set {written(parameters)}: {one.field}: {one.problem}{seen} - {one.right}") from error


def _fill(program: dict[str, Any], key: str, value: Value) -> None:
    """Put a value for `{key}` into a command and its environment."""
    marked = f"{{{key}}}"
    env = program.get("env", {})
    if not any(marked in word for word in (*program["command"], *env.values())):
        raise UserError(f"--set {key}: the command has no {marked}; mark where it goes, such as --{key} {marked}")
    program["command"] = [word.replace(marked, str(value)) for word in program["command"]]
    program["env"] = {name: word.replace(marked, str(value)) for name, word in env.items()}


def _put(spec: dict[str, Any], key: str, value: Value) -> None:
    """Set a field of a job file by its path."""
    *path, last = ALIASES.get(key, key).split(".")
    for name in path:
        inner = spec.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {key}: {name} is {inner!r} in the job file, and has no fields")
        spec = inner
    spec[last] = value
