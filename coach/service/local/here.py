"""The operations in this process: on the journals of a state folder, and by its service where one has the job.

Commands that run jobs in the foreground have a handler of their own (`coach.handler.session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, BinaryIO, TypeVar

from coach.core.errors import UserError
from coach.core.jobs.events import AccountSet
from coach.core.optional_feature import OptionalFeature
from coach.handler import accounts, offline
from coach.handler.endpoint import find
from coach.handler.resume_rules import NotNowError
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.report.accounting import account_rows, spending_rows
from coach.report.row_types import AccountRow, JobList, JobRow
from coach.service import schemas
from coach.service.calls import Operation, Operations
from coach.service.job_history import Stories
from coach.service.local.read_only import Journals
from coach.service.views.answers import Answers
from coach.service.views.models import checkpoint

T = TypeVar("T")


class Here(Operations):
    """The operations of a state folder. Raises UserError for what only a service can do where none runs."""

    def __init__(self, home: StateDirectory) -> None:
        self.home = home

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        if "_answers" in self.__dict__:
            self._answers.service.close()
            del self._answers

    def perform(self, operation: Operation[..., T], *args: Any, **kwargs: Any) -> Any:
        """Do it with this class's own method, with an answer from the journals, or by the service."""
        name = operation.name
        if (own := getattr(self, f"_{name}", None)) is not None:
            return own(*args, **kwargs)
        if hasattr(Answers, name):
            return asyncio.run(getattr(self._answers, name)(*args, **kwargs))
        return self._by_service(name, *args, **kwargs)

    def page(self, port: int, opened: Callable[[str, str, str], None]) -> None:
        """Have `opened` called with the address of the jobs' page and a login's code; without a service serve it."""
        if find(self.home):
            from coach.service.client import service_of

            with service_of(self.home) as client:
                opened(client.url, client.login_codes().code, "")
        else:
            from coach.service.local.page_only import serve_page

            words = "the page of the jobs in this folder, without a service: it changes nothing; Ctrl-C ends it"
            serve_page(self.home, port, lambda url, code: opened(url, code, words))

    def save_model(self, name: str, to: BinaryIO, epoch: str = "best") -> None:
        """Write a job's checkpoint to a file."""
        with checkpoint(self._answers.service.job(name), epoch) as file:
            shutil.copyfileobj(file, to)

    def to_run_here(self, name: str) -> StoredJob | None:
        """The job, where a command has to run it; None where a service has it."""
        return None if self.served(name) else self._answers.service.past(name)

    def served(self, name: str) -> bool:
        """Whether a service has the job."""
        return find(self.home) is not None and self._answers.service.past(name).journal == self.home.journal(1)

    @cached_property
    def _answers(self) -> Answers:
        return Answers(Journals(self.home), Stories(self.home))

    def _by_service(self, name: str, *args: Any, **kwargs: Any) -> Any:
        from coach.service.client import service_of

        with service_of(self.home) as client:
            return getattr(client, name)(*args, **kwargs)

    def _checks(self, also: Collection[OptionalFeature] = ()) -> list[schemas.Check]:
        from coach.service.doctor import checks

        return list(checks(self.home, tuple(also)))

    def _list_jobs(self, **asked: Any) -> JobList:
        if not self.home.journals():
            return JobList(seq=0, stream="", total=0, next=None, jobs=[])
        found: JobList = asyncio.run(self._answers.list_jobs(**asked))
        return found

    def _cancel(self, name: str) -> JobRow:
        past = self._answers.service.past(name)
        if past.job.ended:
            raise NotNowError(f"{name} has ended already: {past.job.state.value}")
        if self.served(name):
            row: JobRow = self._by_service("cancel", name)
            return row
        if past.held:
            raise UserError(f"another `coach run` has {name} now: stop it there with Ctrl-C, then cancel it")
        with contextlib.closing(self.home.open_journal(past.journal, clock_is_right=True)) as journal:
            offline.cancel(journal, [name])
        self.__exit__()
        return self._answers.service.row(name)

    def _suspend(self, name: str, *, now: bool = False) -> JobRow:
        past = self._answers.service.past(name)
        if past.job.ended:
            raise UserError(f"{name} has ended already: {past.job.state.value}; nothing was suspended")
        if not self.served(name):
            if past.held:
                raise UserError(f"a `coach run` has {name}: stop it there with Ctrl-C; nothing was suspended")
            raise UserError(f"{name} does not run; continue it with: coach resume {name}")
        row: JobRow = self._by_service("suspend", name, now=now)
        return row

    def _accounts(self) -> schemas.Accounts:
        known, jobs = accounts.read(self.home)
        return schemas.Accounts(accounts=account_rows(known, jobs, time.time()))

    def _spending(self) -> schemas.Spending:
        known, jobs = accounts.read(self.home)
        paying = {name: known.innermost(job) for name, job in jobs.items()}
        return schemas.Spending(rows=spending_rows(known, jobs, accounts.payments(self.home, paying)))

    def _set_account(self, name: str, amount: float, currency: str, *terms: Any, **more: Any) -> AccountRow:
        if find(self.home):
            row: AccountRow = self._by_service("set_account", name, amount, currency, *terms, **more)
            return row
        return self._set(accounts.terms(name, amount, currency, *terms, **more))

    def _remove_account(self, name: str) -> schemas.Accounts:
        if find(self.home):
            self._by_service("remove_account", name)
        else:
            accounts.set_account(self.home, accounts.removal(accounts.read(self.home)[0], name))
        return self._accounts()

    def _set(self, wanted: AccountSet) -> AccountRow:
        accounts.set_account(self.home, wanted)
        return next(row for row in self._accounts().accounts if row.name == wanted.account)
