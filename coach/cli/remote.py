"""`coach --context NAME COMMAND`: the commands about jobs, for the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from coach.core.errors import UserError

#: Commands that run in the handler's pod.
IN_POD = ("ps", "show", "why", "events", "logs", "cancel", "budget", "doctor", "plan", "compare", "prune")
#: Commands that change the cluster's objects.
ON_OBJECTS = ("submit", "suspend", "resume")
#: The command that brings a file from the handler's pod, and the one that makes its page reachable from here.
MODEL, UI = "model", "ui"
#: With a file it applies a TrainingSearch; with options alone, such as --show, it runs in the handler's pod.
SEARCH = "search"
_OPTIONS = ("--context", "--namespace")


def split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`--context` and `--namespace` before the command, and the rest. Raises UserError for one without a value."""
    rest, found = list(arguments), dict[str, str]()
    while rest and rest[0].partition("=")[0] in _OPTIONS:
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            if not rest:
                raise UserError(f"{name} needs a value, such as: coach {name} NAME ps")
            value = rest.pop(0)
        found[name] = value
    return found, rest


def invoke(options: dict[str, str], arguments: Sequence[str]) -> int:
    """Run a command on a cluster; its exit code. Raises CoachError."""
    command = arguments[0] if arguments else ""
    if command not in (*IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI):
        known = ", ".join(("run", *IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI))
        raise UserError(
            f"coach --context {command or '(no command)'}: these commands work on a cluster's jobs: {known}; "
            "`coach serve` has --context itself"
        )
    import asyncio

    from coach.cli import remote_commands

    return asyncio.run(remote_commands.invoke(options, list(arguments)))
