"""Runs the contract and the scenarios against Nuclio's own controller and processor, and writes down what they printed.

    python -m tests.platforms.nuclio.record

needs COACH_NUCLIO_CONTROLLER, _PROCESSOR, _WRAPPER and _PYTHONPATH, and what `make test-kubernetes` needs; it takes
some ten minutes. Writes results/kubernetes/nuclio-controller.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import NamedTuple

from tests.docs.pages import ROOT
from tests.platforms.nuclio.controllers import CONTROLLER

PAGE = ROOT / "results/kubernetes/nuclio-controller.md"
PATHS = (
    "tests/platforms/nuclio/test_controller.py",
    "tests/platforms/nuclio/test_platform.py",
    "tests/kubernetes/test_nuclio.py",
)
INTRO = """# Nuclio's controller: what Coach relies on

With `platform: nuclio` ([how](../../docs/advanced/nuclio.md)) Nuclio's controller makes the pods. It is published as a
container image only, so most tests run with a stand-in (`tests/platforms/nuclio/controller_double.py`). What Coach
relies on is one list of cases (`tests/platforms/nuclio/test_controller.py`, and `test_platform.py` for Coach's side).
They run against the stand-in in `make test`, and against the real controller where its path is given. So does
`tests/kubernetes/test_nuclio.py`: whole jobs in pods on three nodes, and what is killed there.

```bash not-run: needs Nuclio's controller and processor
COACH_NUCLIO_CONTROLLER=/path/to/controller COACH_NUCLIO_PROCESSOR=/path/to/processor \\
COACH_NUCLIO_WRAPPER=/path/to/_nuclio_wrapper.py COACH_NUCLIO_PYTHONPATH=/folder/with/msgpack \\
python -m tests.platforms.nuclio.record       # runs all of them, and writes this page
```

The stand-in has no HPA, ingress, cron trigger, secret, sidecar, dashboard or scale-to-zero state, and its monitor
knows no time of grace after a deployment. Nothing that Coach does reaches these. When a NuclioProject is deleted
Nuclio deletes its functions, the stand-in does not.
"""


class Case(NamedTuple):
    """A test that ran, as pytest names it."""

    name: str
    outcome: str


def cases(output: str) -> list[Case]:
    """The tests that a verbose run of pytest reports, without the stand-in's."""
    lines = re.findall(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", output, re.MULTILINE)
    return [Case(name, outcome) for name, outcome in lines if not re.search(r"\[double\W", f"{name}]")]


def recorded() -> list[Case]:
    """What the page says."""
    return cases(PAGE.read_text())


def engine() -> tuple[str, str]:
    """Version and commit of Nuclio's processor."""
    command = [os.environ["COACH_NUCLIO_PROCESSOR"], "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    label = re.search(r'Label:"([^"]*)", GitCommit:"([^"]*)"', said)
    return (label[1], label[2]) if label else ("unknown", "unknown")


def main() -> int:
    """Run, and write the page."""
    if not os.environ.get(CONTROLLER):
        print(f"{CONTROLLER} is not set: {__doc__}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *PATHS]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    version, commit = engine()
    found = cases(ran.stdout)
    lines = [f"{case.name} {case.outcome}" for case in found]
    PAGE.write_text(
        f"{INTRO}\n## The last real run\n\n"
        f"Nuclio {version} (commit {commit[:12]}), Kubernetes 1.35.4, "
        f"on {datetime.now(UTC):%Y-%m-%d}:\n\n"
        "```text\n" + "\n".join(lines) + f"\n{ran.stdout.strip().splitlines()[-1].strip('= ')}\n```\n"
    )
    print(ran.stdout[-2000:])
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
