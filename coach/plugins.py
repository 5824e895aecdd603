"""The names of policies, and what makes a policy of a name.

Users add their own from a package, by an entry point in the group `coach.policies`:

    [project.entry-points."coach.policies"]
    newest-first = "mypackage.policies:NewestFirst"

whose value is a dataclass with `allocate` (`base.AllocationPolicy`) or `react` (`react.Policy`). Its fields with a
default are parameters: `newest-first:patience=300`.
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

#: Entry points of packages that bring policies.
GROUP = "coach.policies"

#: Where `policy` and `reactive` find randomness if their caller gives none.
SEED = 0

AnyPolicy = AllocationPolicy | Policy


class Named(NamedTuple):
    """A name's policy: how it is written, and what makes it of the text behind the colon (None: that is wrong)."""

    written: str
    make: Callable[[str, np.random.Generator], AnyPolicy | None]


def _coach(argument: str, _: np.random.Generator) -> AnyPolicy | None:
    return CoachPolicy(Objective(argument or "soonest")) if argument in {"", *Objective} else None


def _static(argument: str, _: np.random.Generator) -> AnyPolicy | None:
    counts = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", argument)
    return StaticPolicy(Allocation(int(counts[1]), int(counts[2]))) if counts else None


def named(name: str, kind: type[Any]) -> Named:
    """The entry of a policy that is a dataclass."""

    def make(argument: str, rng: np.random.Generator) -> AnyPolicy | None:
        keywords = parsed(kind, argument)
        if keywords is None:
            return None
        if any(field.name == GIVEN for field in fields(kind)):
            keywords[GIVEN] = rng
        made: AnyPolicy = kind(**keywords)
        return made

    return Named(form(name, kind), make)


#: Policies by name. Those with `allocate` run live and simulated, those with `react` decide on nodes and preemption
#: too.
POLICIES: dict[str, Named] = {
    "coach": Named(f"coach or coach:<{'|'.join(Objective)}>", _coach),
    "static": Named("static:<workers>x<servers>, such as static:2x1", _static),
    "fifo": named("fifo", FifoPolicy),
    "srtf": named("srtf", SrtfPolicy),
    "drf": named("drf", DrfPolicy),
    "tetris": named("tetris", TetrisPolicy),
    "optimus": named("optimus", OptimusPolicy),
    "fitgpp": named("fitgpp", FitGpp),
    "lrtp": named("lrtp", Lrtp),
    "rand": named("rand", RandomPreemption),
    "round-robin": named("round-robin", RoundRobin),
    "specon": named("specon", SpeCon),
    "kod2": named("kod2", KOD2),
    "tf-operator": named("tf-operator", TFOperator),
}


def policy(spec: str) -> AllocationPolicy:
    """The policy that `spec` names, such as `coach:cheapest`, `static:2x1` or `drf`, to be asked for allocations.

    One that decides on nodes and preemption too is asked by `Live`.

    Raises UserError, with all that would be right, for any other text.
    """
    made = _made(spec, np.random.default_rng(SEED))
    allocating: AllocationPolicy = made if hasattr(made, "allocate") else Live(made, spec.strip())
    return allocating


def reactive(spec: str, rng: np.random.Generator | None = None) -> Policy:
    """The policy that `spec` names, to be told of events; an allocation policy is placed by `Placing`.

    `rng` is where it draws from if it draws at all. Raises UserError as `policy` does.
    """
    made = _made(spec, rng or np.random.default_rng(SEED))
    reacting: Policy = made if hasattr(made, "react") else Placing(made)
    return reacting


def _made(spec: str, rng: np.random.Generator) -> Any:
    name, _, argument = spec.strip().partition(":")
    entry = POLICIES.get(name) or _from_package(name)
    made = entry.make(argument, rng) if entry else None
    if made is None:
        raise UserError(f"there is no policy {spec!r}, nothing was started; right would be: {_known()}")
    return made


def _from_package(name: str) -> Named | None:
    """The policy that an installed package calls `name`."""
    # Asked only for names that are not ours: it looks through all installed packages.
    for point in entry_points(group=GROUP, name=name):
        loaded: Any = point.load()
        methods = hasattr(loaded, "allocate") or hasattr(loaded, "react")
        if not (isinstance(loaded, type) and is_dataclass(loaded) and methods):
            raise UserError(
                f"the policy {name!r} of an installed package is {loaded!r}; right would be a dataclass with a method "
                "allocate or react (docs/how-to/write-a-policy.md)"
            )
        return named(name, loaded)
    return None


def _known() -> str:
    ours = [entry.written for entry in POLICIES.values()]
    others = sorted({point.name for point in entry_points(group=GROUP)} - POLICIES.keys())
    return "; ".join([*ours, *others])
