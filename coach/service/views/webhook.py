"""Notices of budgets over jobs, and the ends of jobs, sent to a URL by POST.

Nothing waits for the receiver: messages queue up in memory, one is sent at a time and tried again a few times, and when
too many wait, new ones are dropped with a line in the log. What waits is lost when the service is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.money import to_amount
from coach.report.formatting import amount, iso
from coach.report.history import notice
from coach.service.operations import Service

log = logging.getLogger(__name__)

#: Seconds for one answer; seconds before a message is sent again, after which it is given up.
ANSWER_SECONDS, PAUSES = 10.0, (1.0, 5.0, 30.0, 120.0)
#: Messages that may wait, and seconds that the rest of them has when the service ends.
MOST_WAITING, LAST_SECONDS = 1000, 5.0
#: Answers after which the same message may succeed later, in addition to those from 500 on.
LATER = (408, 425, 429)


def checked(url: str) -> str:
    """A webhook's URL. Raises UserError for one that cannot be used."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--webhook {url!r}: no URL of a receiver; such as https://hooks.example.com/coach")
    return url


@contextlib.asynccontextmanager
async def sending(url: str, service: Service, pauses: Sequence[float] = PAUSES) -> AsyncIterator[None]:
    """Send messages for the length of a block; without a URL none."""
    if not url:
        yield
        return
    waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def observe(event: ev.Event, actions: Sequence[act.Action]) -> None:
        for message in messages(service, event, actions):
            if waiting.qsize() < MOST_WAITING:
                waiting.put_nowait(message)
            else:
                log.warning("webhook: %d messages wait; dropped: %s", MOST_WAITING, message["text"])

    service.handler.observers.append(observe)
    sender = asyncio.create_task(_send_all(url, waiting, pauses))
    try:
        yield
    finally:
        service.handler.observers.remove(observe)
        waiting.put_nowait(None)
        await asyncio.wait({sender}, timeout=LAST_SECONDS)
        sender.cancel()


def messages(service: Service, event: ev.Event, actions: Sequence[act.Action]) -> Iterator[dict[str, Any]]:
    """What is sent of an event and what followed: notices, and ends of jobs. `id` differs from message to message."""
    for number, record in enumerate((event, *actions)):
        head = {"id": f"{service.identity}-{service.last_seq()}-{number}", "at": iso(record.at)}
        if isinstance(record, act.NoticeAccount):
            account = service.handler.accounts.known[record.account]
            money = {"spent": to_amount(record.spent), "amount": to_amount(record.amount)}
            text = f"{notice(record)} {account.currency}"
            about = {"account": record.account, "percent": record.percent, "currency": account.currency}
            yield {**head, "kind": "notice", "text": text, **about, **money, "period": account.period.kind}
        elif isinstance(record, act.SetStatus) and (job := service.jobs[record.job]).ended:
            row = service.row(job.name)
            text = f"{job.name}: {row.state}, {amount(row.spent)} {row.currency} spent; {row.message}"
            fields = ("name", "state", "reason", "message", "spent", "currency", "account")
            shown = {key: getattr(row, key) for key in fields}
            yield {**head, "kind": "job", "text": text, **shown, "labels": job.job_file.metadata.labels}


async def _send_all(url: str, waiting: asyncio.Queue[dict[str, Any] | None], pauses: Sequence[float]) -> None:
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as http:
        while (message := await waiting.get()) is not None:
            await _send(http, url, message, pauses)


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
    log.warning("webhook: %s did not take a message (%s); given up: %s", urlsplit(url).hostname, said, message["text"])
