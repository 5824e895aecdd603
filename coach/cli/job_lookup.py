"""Finding jobs by name in the state folder."""

from __future__ import annotations

from collections.abc import Sequence

from coach.core.errors import UserError
from coach.handler.state.state_directory import StateDirectory, StoredJob, unknown_job


def past_jobs(names: Sequence[str]) -> tuple[StateDirectory, dict[str, StoredJob]]:
    """The state folder and all jobs. Raises UserError without any, and for names that none has, with the nearest."""
    home = StateDirectory.default()
    past = home.past()
    if not past:
        raise UserError(f"no job was run yet in {home.path}; start one with: coach run FILE")
    for name in names:
        if name not in past:
            raise unknown_job(name, past)
    return home, past


def find(name: str) -> tuple[StateDirectory, StoredJob]:
    """The state folder and the job of that name. Raises UserError as `past_jobs` does."""
    home, past = past_jobs([name])
    return home, past[name]


def find_all(names: Sequence[str], *, last: bool = False) -> tuple[StateDirectory, list[StoredJob]]:
    """The state folder and the jobs of these names, or all of them without names; `last`: those of the last run.

    Raises UserError as `past_jobs` does, and for names together with `last`.
    """
    home, past = past_jobs(() if last else names)
    if last:
        if names:
            raise UserError("--last names the jobs already; leave it or the names out")
        newest = max(one.asked_at for one in past.values())
        return home, [one for one in past.values() if one.asked_at == newest]
    return home, [past[name] for name in dict.fromkeys(names or past)]
