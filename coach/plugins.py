"""Registry of policies: makes a policy from its name and parameters.

A package adds its own policies with an entry point in the group `coach.policies`:

    [project.entry-points."coach.policies"]
    newest-first = "mypackage.policies:NewestFirst"

The value is a dataclass with `allocate` (`base.AllocationPolicy`) or `react` (`react.Policy`). Its fields with a
default are the policy's parameters: `newest-first:patience=300`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import numpy as np

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.core.policies.adapters.live import Live
from coach.core.policies.adapters.placing import Placing
from coach.core.policies.api.base import AllocationPolicy, Objective
from coach.core.policies.api.parameters import GIVEN, form, parsed
from coach.core.policies.api.react import Policy
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.drf import DrfPolicy
from coach.core.policies.fifo import FifoPolicy
from coach.core.policies.fitgpp import FitGpp
from coach.core.policies.kod2 import KOD2
from coach.core.policies.lrtp import Lrtp
from coach.core.policies.optimus import OptimusPolicy
from coach.core.policies.random_preemption import RandomPreemption
from coach.core.policies.specon import RoundRobin, SpeCon
from coach.core.policies.srtf import SrtfPolicy
from coach.core.policies.static import StaticPolicy
from coach.core.policies.tetris import TetrisPolicy
from coach.core.policies.tf_operator import TFOperator

#: Group of the entry points that add policies.
GROUP = "coach.policies"

#: Seed of the random generator that `policy` and `reactive` use without one from their caller.
SEED = 0

AnyPolicy = AllocationPolicy | Policy


class PolicyEntry(NamedTuple):
    """A registered policy: its syntax, and a function that makes it from the text after the colon.

    `make` returns None where that text is not valid.
    """

    syntax: str
    make: Callable[[str, np.random.Generator], AnyPolicy | None]


def _coach(argument: str, _: np.random.Generator) -> AnyPolicy | None:
    return CoachPolicy(Objective(argument or "soonest")) if argument in {"", *Objective} else None


def _static(argument: str, _: np.random.Generator) -> AnyPolicy | None:
    counts = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", argument)
    return StaticPolicy(Allocation(int(counts[1]), int(counts[2] or 0))) if counts else None


def _entry(name: str, kind: type[Any]) -> PolicyEntry:
    """The entry of a policy that is a dataclass."""

    def make(argument: str, rng: np.random.Generator) -> AnyPolicy | None:
        keywords = parsed(kind, argument)
        if keywords is None:
            return None
        if any(field.name == GIVEN for field in fields(kind)):
            keywords[GIVEN] = rng
        policy: AnyPolicy = kind(**keywords)
        return policy

    return PolicyEntry(form(name, kind), make)


#: Policies by name. Those with `allocate` choose allocations, for real and simulated jobs. Those with `react` also
#: choose nodes and preempt jobs.
POLICIES: dict[str, PolicyEntry] = {
    "coach": PolicyEntry(f"coach or coach:<{'|'.join(Objective)}>", _coach),
    "static": PolicyEntry("static:<workers>x<servers>, such as static:2x1, or static:<workers>", _static),
    "fifo": _entry("fifo", FifoPolicy),
    "srtf": _entry("srtf", SrtfPolicy),
    "drf": _entry("drf", DrfPolicy),
    "tetris": _entry("tetris", TetrisPolicy),
    "optimus": _entry("optimus", OptimusPolicy),
    "fitgpp": _entry("fitgpp", FitGpp),
    "lrtp": _entry("lrtp", Lrtp),
    "rand": _entry("rand", RandomPreemption),
    "round-robin": _entry("round-robin", RoundRobin),
    "specon": _entry("specon", SpeCon),
    "kod2": _entry("kod2", KOD2),
    "tf-operator": _entry("tf-operator", TFOperator),
}


def policy(spec: str, rng: np.random.Generator | None = None) -> AllocationPolicy:
    """The policy that `spec` names, such as `coach:cheapest`, `static:2x1` or `drf`, as an allocation policy.

    `Live` adapts a policy that also chooses nodes and preempts jobs. A policy that makes random choices draws them
    from `rng`. Raises UserError, with all valid names, for any other text.
    """
    made = _made(spec, rng or np.random.default_rng(SEED))
    allocating: AllocationPolicy = made if hasattr(made, "allocate") else Live(made, spec.strip())
    return allocating


def reactive(spec: str, rng: np.random.Generator | None = None) -> Policy:
    """The policy that `spec` names, as a policy that reacts to events; `Placing` adapts an allocation policy.

    `rng` and UserError as for `policy`.
    """
    made = _made(spec, rng or np.random.default_rng(SEED))
    reacting: Policy = made if hasattr(made, "react") else Placing(made)
    return reacting


def _made(spec: str, rng: np.random.Generator) -> Any:
    name, _, argument = spec.strip().partition(":")
    entry = POLICIES.get(name) or _from_package(name)
    made = entry.make(argument, rng) if entry else None
    if made is None:
        raise UserError(f"there is no policy {spec!r}, nothing was started; valid are: {_known()}")
    return made


def _from_package(name: str) -> PolicyEntry | None:
    """The policy that an installed package registers as `name`."""
    # Only for names that Coach itself does not have, because this searches all installed packages.
    for point in entry_points(group=GROUP, name=name):
        loaded: Any = point.load()
        methods = hasattr(loaded, "allocate") or hasattr(loaded, "react")
        if not (isinstance(loaded, type) and is_dataclass(loaded) and methods):
            raise UserError(
                f"the policy {name!r} of an installed package is {loaded!r}; it must be a dataclass with a method "
                "allocate or react (docs/how-to/write-a-policy.md)"
            )
        return _entry(name, loaded)
    return None


def _known() -> str:
    built_in = [entry.syntax for entry in POLICIES.values()]
    from_packages = sorted({point.name for point in entry_points(group=GROUP)} - POLICIES.keys())
    return "; ".join([*built_in, *from_packages])
