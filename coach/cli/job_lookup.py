"""Finding jobs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coach.core.errors import UserError
from coach.handler.state.state_directory import StateDirectory, StoredJob, unknown_job


def past_jobs(home: StateDirectory) -> dict[str, StoredJob]:
    """All jobs. Raises UserError without one, with the command that starts one."""
    past = home.past()
    if not past:
        raise UserError(f"no job was run yet in {home.path}; start one with: coach run FILE")
    return past


def find(past: Mapping[str, StoredJob], name: str) -> StoredJob:
    """The job of that name. Raises UserError with the nearest names."""
    if name in past:
        return past[name]
    raise unknown_job(name, past)


def find_all(past: Mapping[str, StoredJob], names: Sequence[str], *, last: bool = False) -> list[StoredJob]:
    """The jobs of these names, or all of them without names; `last`: those of the run that was started last.

    Raises UserError for unknown names, and for names together with `last`.
    """
    if last:
        if names:
            raise UserError("--last names the jobs already; leave it or the names out")
        newest = max(one.asked_at for one in past.values())
        return [one for one in past.values() if one.asked_at == newest]
    return [find(past, name) for name in dict.fromkeys(names)] if names else list(past.values())
