"""`coach --context NAME COMMAND`: the commands about jobs, for the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from coach.core.errors import UserError

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
    import asyncio

    from coach.cli import remote_commands

    return asyncio.run(remote_commands.invoke(options, list(arguments)))
