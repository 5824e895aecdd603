"""What `helm uninstall` runs first: jobs of the namespace end while their handler can still settle their money.

python -m coach.controller.uninstall

And what lets a namespace go that is deleted as a whole.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable

from coach.core.errors import CoachError
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object

#: Seconds that the handler has to end all jobs. Where it does not run, nothing else would ever release them.
HANDLER_SECONDS = 60.0
#: Seconds that it has to stop searches, and to remove budgets, which takes a moment.
BUDGET_SECONDS = 10.0
POLL_SECONDS = 0.5
#: Plural of each kind.
KINDS = {
    "TrainingJob": "trainingjobs",
    "TrainingBudget": "trainingbudgets",
    "TrainingSearch": "trainingsearches",
}


async def end_all(api: Api, kind: str = "trainingjobs", seconds: float = HANDLER_SECONDS) -> list[str]:
    """Delete the namespace's objects of a kind; the names of those not released in time. Raises ApiError."""
    path = f"{COACH}/namespaces/{api.namespace}/{kind}"
    await api.delete(path)  # the whole collection
    deadline = time.monotonic() + seconds
    while (left := (await api.get(path))["items"]) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    await _release(api, path, left)
    return [found["metadata"]["name"] for found in left]


async def let_go(api: Api) -> None:
    """Release all objects where their namespace is being deleted: pods end first, and no further handler comes.

    Raises ApiError.
    """
    namespace = await api.get(f"{CORE}/namespaces/{api.namespace}")
    if namespace["status"]["phase"] == "Terminating":
        for kind in KINDS.values():
            path = f"{COACH}/namespaces/{api.namespace}/{kind}"
            await _release(api, path, (await api.get(path))["items"])


async def _release(api: Api, path: str, objects: Iterable[Object]) -> None:
    for found in objects:
        try:
            await api.merge(f"{path}/{found['metadata']['name']}", {"metadata": {"finalizers": None}})
        except ApiError as error:
            if error.status != 404:
                raise


async def _main() -> int:
    try:
        async with await Api.connect() as api:
            await end_all(api, "trainingsearches", BUDGET_SECONDS)  # they would begin further trials
            abandoned = await end_all(api)
            await end_all(api, "trainingbudgets", BUDGET_SECONDS)  # no job needs them any more
    except CoachError as error:
        if isinstance(error, ApiError) and error.status == 404:
            return 0  # the resource itself has gone, and all jobs with it
        sys.stderr.write(f"uninstall: {error}\n")
        return error.exit_code
    for name in abandoned:
        sys.stderr.write(
            f"trainingjob {name}: no handler settled its money in {HANDLER_SECONDS:g} s; deleted all the same\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
