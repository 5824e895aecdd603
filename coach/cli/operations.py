"""The operations that a command asks: those of the state folder here, or of the cluster that `--context` names."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.service.calls import Operations

#: Context and namespace of `coach --context NAME --namespace NAME`; "" where they are not given.
_PLACE: ContextVar[tuple[str, str]] = ContextVar("place", default=("", ""))
#: Commands that work on a cluster's jobs too.
ON_CLUSTER = (
    *("run", "search", "submit", "suspend", "resume", "cancel", "ps", "show", "why", "events", "logs", "ui"),
    *("plan", "budget", "model", "compare", "prune", "doctor"),
)


def choose(context: str, namespace: str, command: str | None) -> None:
    """Take the place that the command line names. Raises UserError for a command that has none but this one."""
    _PLACE.set((context, namespace))
    if (context or namespace) and command not in ON_CLUSTER:
        raise UserError(
            f"coach --context {command or '(no command)'}: these commands work on a cluster's jobs: "
            f"{', '.join(ON_CLUSTER)}; `coach serve` has --context itself"
        )


def elsewhere() -> tuple[str, str] | None:
    """Context and namespace of the cluster; None for the state folder here."""
    return _PLACE.get() if any(_PLACE.get()) else None


def operations() -> AbstractContextManager[Operations]:
    """The operations of the place that was chosen. Raises CoachError where it cannot be reached."""
    if (place := elsewhere()) is not None:
        from coach.controller.there import cluster

        return cluster(*place)
    from coach.handler.private_files import state_folder
    from coach.service.local.quick import Quick

    return cast("AbstractContextManager[Operations]", Quick(state_folder()))
