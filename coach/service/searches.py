"""The searches of a service: those that it drives, and those of its state folder that have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.jobs.events import AccountSet
from coach.core.money import to_amount
from coach.core.search.freeze_thaw import FreezeThaw
from coach.handler.accounts import terms
from coach.handler.handler import Handler
from coach.handler.search.definition import Definition, known, load, named, save
from coach.handler.search.driver import Driver
from coach.handler.search.standing import SearchRow, Standing, TrialRow, standing_on
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.jobfiles.search_space import SEARCH
from coach.jobfiles.training_search import load_search

log = logging.getLogger("coach.service")


@dataclass(eq=False)
class Searches:
    """The searches of a service, which gives its own `past` jobs, sets accounts, and waits until something holds.

    `options`: those with which files are read.
    """

    home: StateDirectory
    handler: Handler
    nodes: tuple[Node, ...]
    past: dict[str, StoredJob]
    set_account: Callable[[AccountSet], Awaitable[object]]
    until: Callable[[Callable[[], bool]], Awaitable[None]]
    options: dict[str, Any]
    _drivers: dict[str, Driver] = field(default_factory=dict)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)  #: held while one is begun, so that no two get one name

    def begin(self, resumed: list[str]) -> None:
        """Go on with those that have not ended. `resumed`: jobs that the service has just resumed."""
        for one in known(self.home):
            if one.name in self.handler.accounts.known and not (one.stopped or self.standing(one).over):
                self._drive(one, resumed)

    def close(self) -> None:
        """Drive none any more; the next service goes on."""
        for driver in self._drivers.values():
            driver.close()
        self._drivers.clear()

    def standing(self, definition: Definition) -> Standing:
        """A search as its jobs are now."""
        return standing_on(definition, self.handler)

    def all(self) -> Iterator[Standing]:
        """All searches of the state folder whose jobs are here."""
        return map(self.standing, known(self.home))

    async def outlook(self, name: str) -> tuple[SearchRow, list[TrialRow], float | None]:
        """A search, its trials, and by how much as much money again would improve its best value."""
        found = self.standing(load(self.home, name))
        row, rows, view, gain = found.row(), found.rows(), found.view(), None
        if row.best is not None:
            gain = await asyncio.to_thread(FreezeThaw().outlook, view, max(row.spent, 1e-9))
        return row, rows, gain

    async def start(self, path: Path, data: bytes) -> Standing:
        """Begin the search of a file, or go on with it. Raises JobFileError, UserError."""
        spec, base = await asyncio.to_thread(load_search, path, data, **self.options)
        wanted = await asyncio.to_thread(Definition.of, spec, base)
        async with self._one:
            taken = self.handler.accounts.known
            found = await asyncio.to_thread(named, self.home, wanted, taken.keys(), list(self.handler.jobs))
            return await self._go_on(found, spec.budget.amount, spec.budget.currency)

    async def resume(self, name: str, amount: float | None = None, time_limit: float = 0.0) -> Standing:
        """Go on with a search; `amount`: its whole budget from now on, `time_limit`: seconds from now."""
        found = replace(load(self.home, name), outcome="", stopped=False)
        if time_limit:
            found = replace(found, time_limit=time_limit, deadline=0.0)
        account = self.handler.accounts.known.get(name)
        if account is None:
            raise UserError(f"search {name} has no budget here; give the file again: coach search FILE")
        return await self._go_on(found, to_amount(account.amount) if amount is None else amount, account.currency)

    async def _go_on(self, definition: Definition, amount: float, currency: str) -> Standing:
        account = terms(definition.name, amount, currency, parent=definition.parent)
        before = self.handler.accounts.known.get(definition.name)
        if before is None or not _same(before.terms(), account):
            await self.set_account(account)
        if (driver := self._drivers.get(definition.name)) is not None:
            if not driver.definition.outcome and driver.definition.time_limit == definition.time_limit:
                return driver.standing  # it runs as it is
            driver.close()
        save(self.home, definition)
        driver = self._drive(definition, [])
        await self.until(lambda: driver.submitted)
        if driver.definition.outcome and not driver.standing.jobs:
            raise UserError(driver.definition.outcome)
        return driver.standing

    def stop(self, name: str, *, now: bool = False) -> Standing:
        """No job of it gets another epoch; it can be resumed."""
        definition = load(self.home, name)
        if name in self._drivers:
            self._drivers[name].stop("stopped by its user", now)
            definition = self._drivers[name].definition
        return self.standing(definition)

    def _drive(self, definition: Definition, resumed: list[str]) -> Driver:
        driver = Driver(definition, self.home, self.handler, self.nodes, self.past.values, log.info)
        jobs = self.handler.jobs
        own = [name for name in resumed if jobs[name].job_file.metadata.labels.get(SEARCH) == definition.name]
        try:
            driver.begin(own)
        except UserError as error:
            driver.stop(str(error))
            log.warning("search %s: %s", definition.name, error)
        self._drivers[definition.name] = driver
        return driver


def _same(one: AccountSet, other: AccountSet) -> bool:
    return replace(one, at=0.0) == replace(other, at=0.0)
