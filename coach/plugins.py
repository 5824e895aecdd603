"""Registry of policies: makes a policy from its name and parameters.

A package adds its own policies with an entry point in the group `coach.policies`:

    [project.entry-points."coach.policies"]
    newest-first = "mypackage.policies:NewestFirst"

The value is a dataclass and a `coach.core.policies.Policy`. Its fields with a default are the policy's parameters:
`newest-first:patience=300`. A policy that reads the text after the colon in a way of its own has a class method
`from_text(text)`, which returns None for a wrong one, and a `syntax`. The papers' policies are such a package:
`research/coach_research/policies`. That package also extends Coach itself, by entry points of `coach.extensions`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import numpy as np

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.core.policies.api.allocation import Objective
from coach.core.policies.api.parameters import GIVEN, form, parsed
from coach.core.policies.api.policy import Policy
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.drf import DrfPolicy
from coach.core.policies.fifo import FifoPolicy
from coach.core.policies.optimus import OptimusPolicy
from coach.core.policies.srtf import SrtfPolicy
from coach.core.policies.static import StaticPolicy

#: Group of the entry points that add policies.
GROUP = "coach.policies"

#: Group of the entry points that add to Coach itself what few need.
EXTENSIONS = "coach.extensions"

#: Where users get the papers' policies, and what their experiments need.
RESEARCH = "pip install ./research (in a clone of Coach)"

#: Where users read how to write one.
GUIDE = "docs/advanced/policies.md"

#: Seed of the random generator that `policy` uses without one from its caller.
SEED = 0


class PolicyEntry(NamedTuple):
    """A registered policy: its syntax, and a function that makes it from the text after the colon.

    `make` returns None where that text is not valid.
    """

    syntax: str
    make: Callable[[str, np.random.Generator], Policy | None]


def _coach(argument: str, _: np.random.Generator) -> Policy | None:
    return CoachPolicy(Objective(argument or "soonest")) if argument in {"", *Objective} else None


def _static(argument: str, _: np.random.Generator) -> Policy | None:
    counts = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", argument)
    return StaticPolicy(Allocation(int(counts[1]), int(counts[2] or 0))) if counts else None


def _entry(name: str, kind: type[Any]) -> PolicyEntry:
    """The entry of a policy that is a dataclass."""

    def make(argument: str, rng: np.random.Generator) -> Policy | None:
        if hasattr(kind, "from_text"):
            own: Policy | None = kind.from_text(argument)
            return own
        keywords = parsed(kind, argument)
        if keywords is None:
            return None
        if any(field.name == GIVEN for field in fields(kind)):
            keywords[GIVEN] = rng
        made: Policy = kind(**keywords)
        return made

    return PolicyEntry(getattr(kind, "syntax", "") or form(name, kind), make)


#: Policies by name.
POLICIES: dict[str, PolicyEntry] = {
    "coach": PolicyEntry(f"coach or coach:<{'|'.join(Objective)}>", _coach),
    "static": PolicyEntry("static:<workers>x<servers>, such as static:2x1, or static:<workers>", _static),
} | {kind.registered: _entry(kind.registered, kind) for kind in (FifoPolicy, SrtfPolicy, DrfPolicy, OptimusPolicy)}


def policy(spec: str, rng: np.random.Generator | None = None) -> Policy:
    """The policy that `spec` names, such as `coach:cheapest`, `static:2x1` or `drf`, for one run.

    A policy that makes random choices draws them from `rng`. Raises UserError, with all valid names, for any other
    text.
    """
    name, _, argument = spec.strip().partition(":")
    entry = POLICIES.get(name) or _from_package(name)
    made = entry.make(argument, rng or np.random.default_rng(SEED)) if entry else None
    if made is None:
        raise UserError(f"there is no policy {spec!r}, nothing was started; valid are: {_known()}")
    return made


def _from_package(name: str) -> PolicyEntry | None:
    """The policy that an installed package registers as `name`."""
    # Only for names that Coach itself does not have, because this searches all installed packages.
    for point in entry_points(group=GROUP, name=name):
        try:
            loaded: Any = point.load()
        except ImportError as error:
            raise UserError(
                f"the policy {name!r} of an installed package cannot be imported ({error}); what policies need is in "
                f"coach.core.policies: {GUIDE}"
            ) from error
        if not (isinstance(loaded, type) and issubclass(loaded, Policy) and is_dataclass(loaded)):
            raise UserError(
                f"the policy {name!r} of an installed package is {loaded!r}; it must be a dataclass and a "
                f"Policy of coach.core.policies: {GUIDE}"
            )
        return _entry(name, loaded)
    return None


def extension(name: str, options: str) -> Any:
    """What an installed package adds as `name`. Raises UserError where none does, with the `options` that need it."""
    for point in entry_points(group=EXTENSIONS, name=name):
        return point.load()
    raise UserError(f"{options}: this is in the research package, nothing was started; {RESEARCH}")


def placement(text: str) -> Any:
    """How single pods get nodes, from `default` or `thesis` with their parameters; None: `gang`. Raises UserError."""
    return None if text == "gang" else extension("pod-by-pod", "--placement").parse_placement(text)


def names() -> list[str]:
    """The policies that there are: Coach's own in the order of its page, then those of installed packages."""
    return [*POLICIES, *sorted({point.name for point in entry_points(group=GROUP)} - POLICIES.keys())]


def _known() -> str:
    known = [_syntax(name) for name in names()]
    if len(known) == len(POLICIES):
        known.append(f"the papers' policies after {RESEARCH}")
    return "; ".join(known)


def _syntax(name: str) -> str:
    """How a policy is written; its name alone where its package cannot be imported."""
    with contextlib.suppress(UserError):
        entry = POLICIES.get(name) or _from_package(name)
        return entry.syntax if entry else name
    return name
