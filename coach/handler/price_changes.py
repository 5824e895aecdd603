"""Offers whose prices have changed since the jobs that are billed by them had theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from coach.core.errors import UserError
from coach.core.jobs.job import Job
from coach.core.spec.resources import InlinePrices
from coach.jobfiles.prices import prices_of

#: Seconds between two looks at the catalogues.
LOOK_SECONDS = 60.0


def changed(
    jobs: Iterable[Job], read: Callable[[str], dict[str, Any]] = prices_of
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The jobs, with their offer's prices as they are now, and what has changed.

    An offer that is there no longer, or is another machine now, keeps its price.
    """
    for job in jobs:
        before = job.spec.prices
        if job.ended or not isinstance(before, InlinePrices) or before.offer is None:
            continue
        try:
            now = InlinePrices.model_validate(read(before.offer))
        except UserError:
            continue
        was, found = before.book(), now.book()
        if found == was or was.instance is None or found.instance is None:
            continue
        hour, earlier = found.instance.hour, was.instance.hour
        if replace(found, instance=replace(found.instance, hour=earlier)) == was:
            why = f"{before.offer} costs {hour:g} {now.currency} an hour, it was {earlier:g}"
            yield job.name, now.model_dump(mode="json", by_alias=True, exclude_none=True), why
