"""Which jobs of simulated runs can never run, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coach.jobfiles.diagnostics import plain
from coach.simulation.metrics import Result

#: Jobs that are named in lines, and characters of a name that a line shows.
NAMED, SHOWN = 5, 60


def never_fit(results: Iterable[Result]) -> dict[str, str]:
    """Why jobs can never run on the nodes of these runs, by their names."""
    return {
        result.names.get(number, str(number)): why for result in results for number, why in result.never_fits.items()
    }


def never_fit_lines(jobs: Mapping[str, str]) -> list[str]:
    """A line for each of the first such jobs, and how many more there are."""
    lines = [f"NeverFits: job {plain(name, SHOWN)} {why}" for name, why in list(jobs.items())[:NAMED]]
    more = len(jobs) - NAMED
    return [*lines, f"NeverFits: {more} job{'' if more == 1 else 's'} more; -o json has all"] if more > 0 else lines
