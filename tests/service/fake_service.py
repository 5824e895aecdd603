"""`coach serve` on a platform in memory: what the service does by itself, without waiting for MXNet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coach.cli.clusters import led
from coach.core import leadership
from coach.core.errors import CoachError
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.kubernetes_api import election
from coach.plugins import policy
from coach.service.logging import LogFormat, begin_logging
from coach.service.serve import Serving, serve
from tests.handler.fake_platform import CLUSTER, FakePlatform


def main(words: Sequence[str]) -> int:
    """Serve until a signal; the exit code.

    `words`: the port, seconds an epoch, and how long a request may wait. Where COACH_LEASE is set it leads by a short
    lease.
    """
    begin_logging(LogFormat.JSON)
    port, seconds = int(words[0]), float(words[1]) if len(words) > 1 else 0.05
    home = StateDirectory.default()
    platform = FakePlatform(nodes=CLUSTER, epoch_seconds=seconds, linger_seconds=0.0)
    leadership.LEASE_SECONDS, leadership.VALID_SECONDS = 3.0, 2.0
    election.LOOK_SECONDS, election.RENEW_SECONDS = 0.3, 0.5
    try:
        with led(home, "", "", "127.0.0.1", port) as lead:
            return serve(
                Serving(
                    home,
                    CLUSTER,
                    policy("coach"),
                    lambda home, now: platform,
                    port=port,
                    folders=(Path.cwd(),),
                    lead=lead,
                ),
                lambda endpoint: print(f"ready {endpoint.url}", flush=True),
            )
    except CoachError as error:
        print(f"coach: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
