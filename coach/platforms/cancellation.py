"""Requests that may be cancelled at any instant without leaving a connection open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

Answer = TypeVar("Answer")


async def cancellable(request: Coroutine[Any, Any, Answer]) -> Answer:
    """What an httpx `request` gives; where the caller is cancelled, the request is ended first.

    Before a request httpcore closes connections that are of no use any more: the pool has forgotten them by then, and
    anyio's shield is to keep cancellation away. `Task.cancel` goes through that shield, and what was still to be
    closed stays open. So the request has a task of its own, which is cancelled by anyio's means.
    """
    scope = anyio.CancelScope()

    async def inside() -> Answer:
        with scope:
            return await request
        raise asyncio.CancelledError  # the scope was cancelled: the caller waits for no answer

    task = asyncio.ensure_future(inside())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        scope.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved
        raise
