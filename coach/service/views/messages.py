"""What a handler's user is sent: a URL gets each message by POST, a command gets it on its standard input.

Messages are notices of budgets over jobs, jobs that have spent 80 % of their own budget, predictions that changed, and
ends of jobs. Nothing waits for the receiver: messages queue up in memory, one is sent at a time and tried again a few
times, and when too many wait, new ones are dropped with a line in the log. What waits is lost when the handler is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.core.plain_text import plain
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.report.formatting import amount, iso, spent_of
from coach.report.history import notice
from coach.report.prediction_changes import Predictions
from coach.report.status import job_row

log = logging.getLogger(__name__)

#: Part of a job's own budget at which it is sent.
NEARLY_SPENT = 0.8
#: Seconds for one answer; seconds before a message is sent again, after which it is given up.
ANSWER_SECONDS, PAUSES = 10.0, (1.0, 5.0, 30.0, 120.0)
#: Seconds that a command has for a message.
COMMAND_SECONDS = 60.0
#: Messages that may wait, and seconds that the rest of them has when the handler ends.
MOST_WAITING, LAST_SECONDS = 1000, 5.0
#: Answers after which the same message may succeed later, in addition to those from 500 on.
LATER = (408, 425, 429)


def checked(receiver: str) -> str:
    """A receiver: a URL, or a command. Raises UserError for a URL that cannot be used."""
    parts = urlsplit(receiver)
    if "://" in receiver.partition(" ")[0] and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise UserError(f"--notify {receiver!r}: neither https://HOST/PATH nor a command, such as 'mail -s coach me'")
    return receiver


@contextlib.asynccontextmanager
async def sending(
    receiver: str, handler: Handler, journal: Journal, pauses: Sequence[float] = PAUSES
) -> AsyncIterator[None]:
    """Send messages for the length of a block; without a receiver none."""
    if not receiver:
        yield
        return
    waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    messages = Messages(handler, journal)

    def observe(event: ev.Event, actions: Sequence[act.Action]) -> None:
        for message in messages.about(event, actions):
            if waiting.qsize() < MOST_WAITING:
                waiting.put_nowait(message)
            else:
                log.warning("notify: %d messages wait; dropped: %s", MOST_WAITING, message["text"])

    handler.observers.append(observe)
    sender = asyncio.create_task(_send_all(receiver, waiting, pauses))
    try:
        yield
    finally:
        handler.observers.remove(observe)
        waiting.put_nowait(None)
        await asyncio.wait({sender}, timeout=LAST_SECONDS)
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


class Messages:
    """The messages of a handler. A job's own budget and predictions are new to it where they were when it began."""

    def __init__(self, handler: Handler, journal: Journal) -> None:
        self._handler = handler
        self._journal = journal
        self._nearly_spent = {name: job.money.ledger.budget for name, job in handler.jobs.items() if _nearly_spent(job)}
        self._predictions = Predictions()

    def about(self, event: ev.Event, actions: Sequence[act.Action]) -> Iterator[dict[str, Any]]:
        """What is sent of an event and what followed. `id` differs from message to message."""
        for number, record in enumerate((event, *actions)):
            head = {"id": f"{self._journal.identity}-{self._journal.last_seq()}-{number}", "at": iso(record.at)}
            if isinstance(record, act.NoticeAccount):
                yield head | self._account(record)
            elif isinstance(record, ev.MetricNotFound):
                yield head | self._job("metric", self._handler.jobs[record.job], record.message)
            elif isinstance(record, act.SetStatus) and (job := self._handler.jobs[record.job]).ended:
                spent = f"{amount(to_amount(job.money.ledger.spent))} {job.price_book.currency}"
                yield head | self._job("job", job, f"{job.state}, {spent} spent; {job.message}")
            elif isinstance(record, act.RunEpoch) and (found := record.job_forecast) is not None:
                job = self._handler.jobs[record.job]
                if changed := self._predictions.changed(job, record):
                    yield head | self._job("prediction", job, changed) | {"seconds": found.seconds, "cost": found.cost}
        of = self._handler.jobs.get(event.job)
        if of is not None and not of.ended and _nearly_spent(of):
            budget = of.money.ledger.budget
            if self._nearly_spent.get(of.name) != budget:
                self._nearly_spent[of.name] = budget
                head = {"id": f"{self._journal.identity}-{self._journal.last_seq()}-b", "at": iso(event.at)}
                spent = spent_of(of.money.ledger.spent, budget, of.price_book.currency)
                yield head | self._job("budget", of, f"over {NEARLY_SPENT:.0%} of its budget: {spent} spent")

    def _account(self, record: act.NoticeAccount) -> dict[str, Any]:
        account = self._handler.accounts.known[record.account]
        money = {"spent": to_amount(record.spent), "amount": to_amount(record.amount)}
        text = f"{notice(record)} {account.currency}"
        about = {"account": record.account, "percent": record.percent, "currency": account.currency}
        return {"kind": "notice", "text": text, **about, **money, "period": account.period.kind}

    def _job(self, kind: str, job: Job, text: str) -> dict[str, Any]:
        row = job_row(job, self._handler.now())
        fields = ("name", "state", "reason", "message", "spent", "budget", "currency", "account")
        shown = {key: getattr(row, key) for key in fields}
        return {"kind": kind, "text": f"{job.name}: {text}", **shown, "labels": job.job_file.metadata.labels}


def _nearly_spent(job: Job) -> bool:
    return job.money.ledger.budget is not None and job.money.ledger.spent >= NEARLY_SPENT * job.money.ledger.budget


async def _send_all(receiver: str, waiting: asyncio.Queue[dict[str, Any] | None], pauses: Sequence[float]) -> None:
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as http:
        while (message := await waiting.get()) is not None:
            try:
                if urlsplit(receiver).scheme in ("http", "https"):
                    await _send(http, receiver, message, pauses)
                else:
                    await _run(receiver, message)
            except Exception:  # of one message: the next ones are sent
                log.exception("notify: a message was not sent: %s", message["text"])


async def _run(command: str, message: dict[str, Any]) -> None:
    """Run the command of a shell with a message: as JSON on its standard input, its text in COACH_TEXT."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, "COACH_TEXT": plain(message["text"]), "COACH_KIND": message["kind"]},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            await process.communicate(json.dumps(message).encode() + b"\n")
        said = f"exit code {process.returncode}"
    except TimeoutError:
        said = f"not done within {COMMAND_SECONDS:g} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        log.warning("notify: the command did not take a message (%s): %s", said, message["text"])


async def _send(http: httpx.AsyncClient, url: str, message: dict[str, Any], pauses: Sequence[float]) -> None:
    said = ""
    for pause in (0.0, *pauses):
        await asyncio.sleep(pause)
        try:
            status = (await http.post(url, json=message)).status_code
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {error}"
        else:
            if status < 300:
                return
            said = f"HTTP {status}"
            if status < 500 and status not in LATER:
                break
    # A URL may have a secret in its path.
    log.warning("notify: %s did not take a message (%s); given up: %s", urlsplit(url).hostname, said, message["text"])
