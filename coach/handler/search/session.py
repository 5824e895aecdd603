"""A search in the foreground, on a handler of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.money import Money
from coach.handler import accounts
from coach.handler.handler import Handler
from coach.handler.interactive_run import INTERRUPTED
from coach.handler.search.definition import Definition
from coach.handler.search.driver import Driver
from coach.handler.search.standing import Standing, exit_code, standing
from coach.handler.session import Session, suspend_orphans
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import Chosen, StateDirectory, StoredJob


class SearchSession(Session):
    """Runs a search in the foreground. `run` returns the exit code; then `outcome` says how it ended."""

    def __init__(self, definition: Definition, account: ev.AccountSet, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._definition = replace(definition, outcome="", stopped=False)
        self._account = account
        self._driver: Driver | None = None

    @property
    def definition(self) -> Definition:
        """The search as it is written now."""
        return self._driver.definition if self._driver else self._definition

    @property
    def outcome(self) -> str:
        """Why the search ended; "" where it was interrupted."""
        return "" if self._stops else self.definition.outcome

    @property
    def standing(self) -> Standing:
        """The search as its jobs are now."""
        return self._driver.standing if self._driver else standing(self._definition, {})

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of the search."""
        return self._driver.jobs if self._driver else {}

    def run(self) -> int:
        """Until no trial gets another epoch, or it is interrupted. Raises CoachError as `Session.run`."""
        super().run()
        found = self.standing
        if not self.outcome:
            return INTERRUPTED
        return 1 if found.failed else exit_code(found.row())

    def _choose(self, past: dict[str, StoredJob]) -> list[Chosen]:
        return []

    def _open(self, wanted: Path | None) -> Journal:
        return self._open_accounts(self._definition.name)

    async def _main(self, journal: Journal, past: dict[str, StoredJob], planning: contextlib.ExitStack) -> None:
        self._listen_to_signals()
        suspend_orphans(journal)
        platform = self.make_platform(self.home, lambda: self.handler.now() if self.handler else 0.0)
        self.handler = handler = Handler(platform, journal, self.policy, resumed=())
        handler.observers.append(self._observe)
        meanwhile = self.meanwhile(handler, journal) if self.meanwhile else contextlib.nullcontext()
        async with self._watched(), handler, meanwhile:
            if not self._account_is_set(handler):
                handler.set_account(self._account)
            await handler.wait(lambda: self._account_is_set(handler))
            self._driver = driver = Driver(self._definition, self.home, handler, self.nodes, past.values, self._say)
            with contextlib.closing(driver):
                driver.begin()
                planning.close()
                await handler.wait(lambda: driver.over)

    def _account_is_set(self, handler: Handler) -> bool:
        known = handler.accounts.known.get(self._definition.name)
        return known is not None and known.amount == self._account.amount

    def _can_suspend(self) -> bool:
        return self._driver is not None

    def _suspend(self, names: Sequence[str], *, now: bool) -> None:
        assert self._driver is not None
        self._driver.stop("interrupted", now)


def money_left(home: StateDirectory, name: str) -> tuple[Money, Money, str]:
    """Amount and spent of a search's account, and its currency; zeros without one."""
    known, _ = accounts.read(home)
    account = known.known.get(name)
    if account is None:
        return 0, 0, ""
    return account.amount, account.payments.since(float("-inf")), account.currency
