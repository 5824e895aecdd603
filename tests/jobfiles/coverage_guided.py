"""Job files changed by what their parsing has touched so far (atheris, libFuzzer): the answer is jobs or mistakes.

    make fuzz SECONDS=60                                   # installs atheris first; it is no part of the locked set
    python -m tests.jobfiles.coverage_guided CORPUS -max_total_time=60

What breaks the rules of `tests/jobfiles/test_fuzz.py` is written to a file in tests/counterexamples/job-files, which
that test reads from then on, and the exit code is not 0.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["coach.jobfiles", "coach.core.jobs", "yaml"]):
    from tests.jobfiles.test_fuzz import FOUND, answer


def one_input(data: bytes) -> None:
    """Read one job file."""
    answer(data)


def main() -> None:
    """Fuzz; does not return."""
    FOUND.mkdir(parents=True, exist_ok=True)
    atheris.Setup([*sys.argv, f"-artifact_prefix={FOUND}/"], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
