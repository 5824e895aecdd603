"""What a framework would refuse of a job's optimizer, as the functions' own Python says which ones it has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coach.core.spec.training import Framework, Optimizer, Schedule
from coach.jobfiles.diagnostics import show

#: Kinds of arguments (functions/training/model/catalogue.py); an empty one says nothing.
FLAG, NUMBER, PAIR, WORD = "true or false", "a number", "two numbers", "a word"

#: Another name of an argument of MXNet's, which the functions take too.
SYNONYMS = {"weight_decay": "wd"}


@dataclass(frozen=True, slots=True)
class Class:
    """An optimizer or a schedule of a framework: kinds of its arguments by name, or why it cannot be used."""

    arguments: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What one Python's framework has, by name."""

    optimizers: Mapping[str, Class]
    schedules: Mapping[str, Class]


#: The catalogue of the Python that runs a framework's functions; None where it cannot be asked, as on a cluster: then
#: the functions refuse what they do not have.
Knows = Callable[[Framework], Catalogue | None]


class Mistake(NamedTuple):
    """What is wrong with the field `key` of an optimizer, and what would be right there."""

    key: str
    problem: str
    seen: str
    right: str


_ELSEWHERE = "; the model file's optimizer() can give others"


def nothing_known(_: Framework) -> None:
    """A `Knows` where no Python is to be asked."""


def mistakes(optimizer: Optimizer, framework: Framework, known: Catalogue) -> list[Mistake]:
    """What the framework would refuse of an optimizer. Names of optimizers may have other capitals than it has."""
    given = {key: value for key, value in optimizer.arguments.items() if key != "learning_rate"}
    is_torch = framework is Framework.PYTORCH
    module, synonyms = ("torch.optim", {}) if is_torch else ("MXNet", SYNONYMS)
    folded = {name.lower(): name for name in known.optimizers}
    spelled = folded.get(optimizer.name.lower(), optimizer.name)
    problem = f"{module} has no such optimizer"
    found = [*_class("name", spelled, optimizer.name, given, known.optimizers, problem, _ELSEWHERE, synonyms)]
    return found + (list(_schedule(optimizer.schedule, known)) if optimizer.schedule else [])


def _schedule(schedule: Schedule, known: Catalogue) -> Iterator[Mistake]:
    problem = "torch.optim.lr_scheduler has no such schedule"
    otherwise = "; or the model file's schedule(optimizer)"
    name = schedule.name
    for key, *rest in _class("name", name, name, schedule.arguments, known.schedules, problem, otherwise, {}):
        yield Mistake(f"schedule.{key}", *rest)


def _class(  # noqa: PLR0917 - it is called twice
    key: str,
    name: str,
    written: str,
    given: Mapping[str, Any],
    known: Mapping[str, Class],
    problem: str,
    otherwise: str,
    synonyms: Mapping[str, str],
) -> Iterator[Mistake]:
    fit = [each for each, one in known.items() if not one.unfit]
    one = known.get(name)
    if one is None:
        yield Mistake(key, problem, show(written), _nearest(name, fit, otherwise))
    elif one.unfit:
        yield Mistake(key, f"not here: {one.unfit}", show(written), f"one of {', '.join(fit)}{otherwise}")
    else:
        yield from _arguments(name, given, one.arguments, synonyms)
        for missing in one.required:
            if missing not in given:
                kind = one.arguments[missing] or "a value"
                yield Mistake(key, f"{name} needs {missing}", "not there", f"{missing}: {kind}")


def _arguments(
    name: str, given: Mapping[str, Any], known: Mapping[str, str], synonyms: Mapping[str, str]
) -> Iterator[Mistake]:
    for key, value in given.items():
        meant = synonyms.get(key, key)
        if meant not in known:
            yield Mistake(key, f"{name} has no such argument", show(key), _nearest(key, list(known)))
        elif meant != key and meant in given:
            yield Mistake(key, f"said twice: it is another name of {meant}", show(value), meant)
        elif not _is(value, known[meant]):
            yield Mistake(key, f"not {known[meant]}", show(value), known[meant])


def _is(value: Any, kind: str) -> bool:
    if kind == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == PAIR:
        return isinstance(value, tuple) and len(value) == 2
    return not kind or isinstance(value, bool if kind == FLAG else str)


def _nearest(name: str, known: list[str], otherwise: str = "") -> str:
    """The name that was probably meant, or all there are."""
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), folded, 1, 0.6)
    return f"did you mean {folded[near[0]]}?" if near else f"one of {', '.join(sorted(known))}{otherwise}"
