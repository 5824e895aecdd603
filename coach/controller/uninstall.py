"""What `helm uninstall` runs first: jobs of the namespace end while their handler can still settle their money.

python -m coach.controller.uninstall
"""

from __future__ import annotations

import asyncio
import sys
import time

from coach.core.errors import CoachError
from coach.platforms.kubernetes_api.client import COACH, Api, ApiError

#: Seconds that the handler has to end all jobs. Where it does not run, nothing else would ever release them.
HANDLER_SECONDS = 60.0
#: Seconds that it has to stop searches, and to remove budgets, which takes a moment.
BUDGET_SECONDS = 10.0
POLL_SECONDS = 0.5


async def end_all(api: Api, kind: str = "trainingjobs", seconds: float = HANDLER_SECONDS) -> list[str]:
    """Delete the namespace's objects of a kind; the names of those not released in time. Raises ApiError."""
    path = f"{COACH}/namespaces/{api.namespace}/{kind}"
    await api.delete(path)  # the whole collection
    deadline = time.monotonic() + seconds
    while (left := (await api.get(path))["items"]) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    for found in left:
        name = found["metadata"]["name"]
        try:
            await api.merge(f"{path}/{name}", {"metadata": {"finalizers": None}})
        except ApiError as error:
            if error.status != 404:
                raise
    return [found["metadata"]["name"] for found in left]


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
